-- What all scripts share. It is loaded once and called many times, one call after the other: what belongs to a call is
-- kept here and begun anew with the next.
local P, ARGV, NOW, clock -- the prefix of all keys (see keys.py), what the caller gave, and the time

-- What a script changes many times over is gathered while it works, and written once when it ends or fails, or where
-- it says `write_gathered()` because it reads it back: counters, fair times, and members of sorted sets.
local counted, fair, gathered

-- What was read or done already in this call.
local woken, limits, paused, at_once, lanes
local anything_paused, anything_shut

local function begin(keys, arguments)
  P, ARGV, clock = keys[1], arguments, redis.call('TIME')
  NOW = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
  counted, fair, gathered = {}, {}, {}
  woken, limits, paused, at_once, lanes = {}, {}, {}, {}, {}
  anything_paused, anything_shut = nil, nil
end

local function count(name, store, by)
  local own = name .. '|' .. store
  counted[own] = (counted[own] or 0) + by
end

-- One command with many arguments; Lua cannot hand over more than some thousands at once.
local function in_slices(command, key, arguments)
  for at = 1, #arguments, 2000 do
    redis.call(command, key, unpack(arguments, at, math.min(at + 1999, #arguments)))
  end
end

-- `gather('ZADD', key, score, member)` or `gather('ZREM', key, member)`; a script never does both to one member.
local function gather(command, key, first, second)
  local name = command .. key
  local found = gathered[name]
  if not found then
    found = { command = command, key = key, arguments = {} }
    gathered[name] = found
  end
  local arguments = found.arguments
  arguments[#arguments + 1] = first
  if second then arguments[#arguments + 1] = second end
end

-- Gives the first error; whatever it is, the rest is written.
local function write_gathered()
  local problem
  local function try(...)
    local ok, answer = pcall(...)
    if not ok then problem = problem or answer end
  end
  for name, by in pairs(counted) do
    if by ~= 0 then try(redis.call, 'HINCRBY', P .. 'n', name, by) end
  end
  for lane, times in pairs(fair) do try(in_slices, 'HSET', P .. 'fair:' .. lane, times.changed) end
  for _, one in pairs(gathered) do try(in_slices, one.command, one.key, one.arguments) end
  counted, fair, gathered = {}, {}, {}
  return problem
end

-- What was gathered is written however a script ends: a failure must not leave half a step.
local function call(script, keys, arguments)
  begin(keys, arguments)
  local ok, answer = pcall(script)
  local problem = write_gathered()
  if ok and not problem then return answer end
  problem = not ok and answer or problem
  return type(problem) == 'table' and problem or redis.error_reply(tostring(problem))
end

local function quarantine(item, why)
  redis.call('HSET', P .. 'quarantined', item, why)
end

-- What went wrong with one item of many. What its record holds concerns it alone: it is quarantined and shown, and the
-- others go on. What the server has against the caller (NOPERM, OOM, READONLY) concerns all of them, and is raised.
local function quarantine_or_raise(item, problem)
  local why = type(problem) == 'table' and problem.err or tostring(problem)
  local code = string.match(why, '^%-?(%u+) ') -- the server's; an error of Lua has none
  local its_own = not code or code == 'WRONGTYPE' or string.find(why, 'not an integer', 1, true)
  if not its_own then error(problem, 0) end
  quarantine(item, why)
end

local function item_of(id, handler)
  if handler == '' then return id end
  return id .. '|' .. handler
end

local function split(item)
  local at = string.find(item, '|', 1, true)
  if not at then return item, '' end
  return string.sub(item, 1, at - 1), string.sub(item, at + 1)
end

-- A run from its field; nil where that is none.
local function parse_run(raw)
  if type(raw) ~= 'string' then return nil end
  local state, attempts, losses, queue, token = string.match(raw, '^(%a+) (%d+) (%d+) (%S+) (%S*)$')
  if not state then return nil end
  return { state = state, attempts = tonumber(attempts), losses = tonumber(losses), queue = queue, token = token }
end

-- A run's record, or nil where there is none or it cannot be read (pcall: a poisoned key may be of any type).
local function read_run(id, handler)
  return parse_run(redis.pcall('HGET', P .. 'e:' .. id, 'r:' .. handler))
end

local function packed(run)
  return run.state .. ' ' .. run.attempts .. ' ' .. run.losses .. ' ' .. run.queue .. ' ' .. run.token
end

local function write_run(id, handler, run)
  redis.call('HSET', P .. 'e:' .. id, 'r:' .. handler, packed(run))
end

local function fair_times(lane)
  if not fair[lane] then
    fair[lane] = { now = tonumber(redis.call('HGET', P .. 'fair:' .. lane, '') or 0), last = {}, changed = {} }
  end
  return fair[lane]
end

-- Fair order: each store's items are one unit of virtual time apart, and none starts in the past. The times are whole:
-- only what comes back to where it was goes between two of them.
local function make_ready(id, handler, store)
  local times = fair_times(handler)
  local last = times.last[store]
  if not last then
    local at = #times.changed + 1
    last = { at = at, time = tonumber(redis.call('HGET', P .. 'fair:' .. handler, store) or 0) }
    times.last[store], times.changed[at], times.changed[at + 1] = last, store, 0
  end
  last.time = math.floor(math.max(times.now, last.time)) + 1
  times.changed[last.at + 1] = last.time
  gather('ZADD', P .. 'ready:' .. handler, last.time, item_of(id, handler))
end

-- Given back untouched: it goes to the front, where it was.
local function make_first(id, handler)
  redis.call('ZADD', P .. 'ready:' .. handler, fair_times(handler).now, item_of(id, handler))
end

-- 2026-11-15T01:41:26.000000Z, as RQ writes its times. Days to a date after Howard Hinnant's civil_from_days.
local function iso_now()
  local s = tonumber(clock[1])
  local z = math.floor(s / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, doy - math.floor((153 * mp + 2) / 5) + 1,
    math.floor(s % 86400 / 3600), math.floor(s % 3600 / 60), s % 60, tonumber(clock[2]))
end

-- One wake-up for a queue is enough: whoever takes it claims until nothing is ready. Nobody takes it meanwhile. Its
-- record is written once, and says when that was: it is one job, put into the queue again and again.
local function wake(queue)
  if woken[queue] then return end
  woken[queue] = true
  local list, job = 'rq:queue:' .. queue, 'wake-' .. queue
  if redis.call('LLEN', list) > 0 then return end
  if redis.call('EXISTS', 'rq:job:' .. job) == 0 then
    local stamp = iso_now()
    redis.call('SADD', 'rq:queues', list)
    redis.call('HSET', 'rq:job:' .. job, 'status', 'queued', 'origin', queue, 'created_at', stamp, 'enqueued_at', stamp,
      'description', 'work is ready in ' .. queue, 'data', '["workers.runtime.worker.wake_ups.drain", null, [], {}]', 'timeout', 60)
  end
  redis.call('RPUSH', list, job)
end

-- A limit's slots are held by leased runs: those of one claim, which one child process does one after the other, hold one.
-- A slot none of whose runs is leased under its token any more is free, however that came about.
local function slots_taken(limit, most)
  local slots = P .. 'slots:' .. limit
  local held = redis.pcall('HLEN', slots)
  if type(held) == 'table' then -- damaged, and nothing is lost with it
    quarantine(slots, held.err)
    redis.call('UNLINK', slots)
    return 0
  end
  if held < most then return held end
  local found = redis.call('HGETALL', slots)
  for at = 1, #found, 2 do
    local token, handler = string.match(found[at], '^([^|]*)|(.*)$')
    local in_use = false
    for id in string.gmatch(found[at + 1], '%S+') do
      local run = token and read_run(id, handler)
      in_use = in_use or (run and run.state == 'leased' and run.token == token)
    end
    if not in_use then held = held - redis.call('HDEL', slots, found[at]) end
  end
  return held
end

local function limit_of(handler)
  if limits[handler] == nil then limits[handler] = redis.call('HGET', P .. 'limits', handler) end
  return limits[handler]
end

-- A run has ended; the last of its slot gives the slot back.
local function free_slot(id, handler, queue, token)
  local limit = limit_of(handler)
  if not limit then return end
  local slots, name, left = P .. 'slots:' .. limit, token .. '|' .. handler, {}
  for one in string.gmatch(redis.call('HGET', slots, name) or '', '%S+') do
    if one ~= id then left[#left + 1] = one end
  end
  if #left > 0 then
    redis.call('HSET', slots, name, table.concat(left, ' '))
  elseif redis.call('HDEL', slots, name) == 1 and redis.call('EXISTS', P .. 'ready:' .. handler) == 1 then
    wake(queue)
  end
end

-- Whether a handler or a store, "handler:NAME" or "store:NAME", is paused.
local function is_paused(whose)
  if anything_paused == nil then anything_paused = redis.call('EXISTS', P .. 'paused') == 1 end
  if anything_paused and paused[whose] == nil then
    paused[whose] = redis.call('SISMEMBER', P .. 'paused', whose) == 1
  end
  return anything_paused and paused[whose]
end

local function is_shut(handler)
  if anything_shut == nil then anything_shut = redis.call('EXISTS', P .. 'busy') == 1 end
  if not anything_shut then return false end
  return tonumber(redis.call('HGET', P .. 'busy', limit_of(handler) or 'h:' .. handler) or 0) > NOW
end

-- Whether a new run of a handler may begin at once: nobody paused it or said Busy, and no older one waits.
local function may_begin(handler)
  if at_once[handler] == nil then
    local waits = redis.call('EXISTS', P .. 'ready:' .. handler) == 1
    at_once[handler] = not (waits or is_paused('handler:' .. handler) or is_shut(handler))
  end
  return at_once[handler]
end

-- When a run that is routed as `how` says is due: ">ms" is so long after the event's arrival, but never longer from
-- now, since the receiver's clock may be ahead of ours. Anything else is due at once.
local function due_at(how, received)
  local delay = tonumber(string.match(how, '^>(%d+)$') or 0)
  return delay > 0 and math.min(tonumber(received or 0) or 0, NOW) + delay or 0
end

-- The first run of a handler for an event: its field goes to `fields`. What is due later waits for that. With a token
-- it is leased, and this is true; without one, or where it may not begin at once, it is made ready.
local function begin_run(id, store, handler, queue, due, token, lease_end, fields)
  if lanes[handler] ~= queue then redis.call('HSET', P .. 'lanes', handler, queue) end
  lanes[handler] = queue
  fields[#fields + 1] = 'r:' .. handler
  if due > NOW then
    fields[#fields + 1] = 'later 0 0 ' .. queue .. ' '
    gather('ZADD', P .. 'later', due, item_of(id, handler))
    return false
  end
  if token and may_begin(handler) then
    fields[#fields + 1] = 'leased 0 0 ' .. queue .. ' ' .. token
    gather('ZADD', P .. 'leased', lease_end, item_of(id, handler))
    return true
  end
  fields[#fields + 1] = 'ready 0 0 ' .. queue .. ' '
  make_ready(id, handler, store)
  wake(queue)
  return false
end

-- Held items by lane, each lane's in its order, out of `held` and with their runs written as ready.
local function take_held(store, most)
  local held, lanes, back = P .. 'held:' .. store, {}, 0
  for _, item in ipairs(redis.call('ZRANGE', held, 0, most - 1)) do
    local id, handler = split(item)
    local run = read_run(id, handler)
    redis.call('ZREM', held, item)
    if not run or run.state ~= 'held' then
      quarantine(item, 'found in held while its record says ' .. (run and run.state or 'nothing'))
    else
      run.state = 'ready'
      write_run(id, handler, run)
      lanes[handler] = lanes[handler] or { queue = run.queue }
      table.insert(lanes[handler], id)
      back = back + 1
    end
  end
  return lanes, back
end

-- Whether work of a store waits in a lane at or after its virtual time: claims have not come to it.
local function waits(lane, store, now)
  if tonumber(redis.call('HGET', P .. 'fair:' .. lane, store) or 0) > now then return true end
  for _, item in ipairs(redis.call('ZRANGEBYSCORE', P .. 'ready:' .. lane, now, now)) do
    local id = split(item)
    if redis.pcall('HGET', P .. 'e:' .. id, 'store') == store then return true end -- one that is damaged is nobody's
  end
  return false
end

-- Held work of a store that is paused no longer goes back to its lanes, in its order. It takes its turn among the other
-- stores. But where some of the store's work was never claimed and so stayed in the lane (`first` call only: what is
-- there later may be what came back), it goes before that, and so before the others: its turn had come before.
local function bring_back(store, most, first)
  local lanes, back = take_held(store, most)
  for lane, ids in pairs(lanes) do
    local now = fair_times(lane).now
    local before = first and waits(lane, store, now)
    for at, id in ipairs(ids) do
      if before then
        redis.call('ZADD', P .. 'ready:' .. lane, now - 1 + at / (#ids + 1), item_of(id, lane))
      else
        make_ready(id, lane, store)
      end
    end
    wake(ids.queue)
  end
  if redis.call('EXISTS', P .. 'held:' .. store) == 0 then redis.call('SREM', P .. 'resuming', store) end
  return back
end

-- A worker that speaks of a lease which has lapsed was late, not lost: what its run was charged is taken back. Not for
-- ever, since a run that makes its worker late each time must end.
local LATE_ALLOWED = 20
local function note_the_lapse(id, handler, token)
  local e, lapse = P .. 'e:' .. id, 'l:' .. handler
  local late = string.match(redis.call('HGET', e, lapse) or '', ' (%d+)$') or '0'
  redis.call('HSET', e, lapse, token .. ' ' .. late)
end

local function was_only_late(id, handler, token)
  local e, lapse = P .. 'e:' .. id, 'l:' .. handler
  local noted = redis.pcall('HGET', e, lapse)
  local whose, late = string.match(type(noted) == 'string' and noted or '', '^(%S+) (%d+)$')
  if whose ~= token or tonumber(late) >= LATE_ALLOWED then return end
  local run = read_run(id, handler)
  if run and run.losses > 0 and (run.state == 'ready' or run.state == 'leased' or run.state == 'held') then
    redis.call('HSET', e, lapse, '- ' .. late + 1)
    run.losses = run.losses - 1
    write_run(id, handler, run)
  end
end

-- One run fewer is open; the last one closes the event.
local function end_run(id, store, failed)
  local e = P .. 'e:' .. id
  if failed then redis.call('HINCRBY', e, 'bad', 1) end
  if redis.call('HINCRBY', e, 'open', -1) > 0 then return end
  local state = tonumber(redis.call('HGET', e, 'bad') or 0) > 0 and 'failed' or 'settled'
  redis.call('HSET', e, 'state', state)
  if state == 'settled' then redis.call('ZADD', P .. 'done', NOW, id) end
  count('open', store, -1)
  count(state, store, 1)
end

-- Failures of one cause are a group, whether they are still retried or given up. A run is in at most one.
local function leave_group(id, handler, store)
  local e = P .. 'e:' .. id
  local mark = redis.call('HGET', e, 'g:' .. handler)
  if not mark then return end
  local group, kind = string.match(mark, '^(%S+) (%S+)$')
  local g = P .. 'g:' .. group
  redis.call('HDEL', e, 'g:' .. handler)
  redis.call('ZREM', P .. 'gr:' .. group, item_of(id, handler))
  redis.call('HINCRBY', g, kind, -1)
  if redis.call('HINCRBY', g, 's:' .. store, -1) <= 0 then redis.call('HDEL', g, 's:' .. store) end
  if redis.call('EXISTS', P .. 'gr:' .. group) == 0 then
    redis.call('UNLINK', g)
    redis.call('ZREM', P .. 'groups', group)
  end
end

local function join_group(id, handler, store, kind, detail)
  leave_group(id, handler, store)
  local ok, told = pcall(cjson.decode, detail)
  if not ok or type(told) ~= 'table' then told = {} end
  local function said(name)  -- JSON null is no nil in Lua
    return type(told[name]) == 'string' and told[name] or ''
  end
  local group = said('group')
  if group == '' then group = string.sub(redis.sha1hex(said('reason') .. '|' .. handler), 1, 8) end
  local g, item = P .. 'g:' .. group, item_of(id, handler)
  redis.call('HSETNX', g, 'first', NOW)
  redis.call('HSET', g, 'handler', handler, 'error', said('error'), 'at', said('at'), 'last', NOW, 'example', item)
  redis.call('HINCRBY', g, kind, 1)
  redis.call('HINCRBY', g, 's:' .. store, 1)
  redis.call('HINCRBY', g, 'v:' .. (said('version') ~= '' and said('version') or '?'), 1)
  redis.call('ZADD', P .. 'gr:' .. group, NOW, item)
  redis.call('ZADD', P .. 'groups', NOW, group)
  redis.call('HSET', P .. 'e:' .. id, 'g:' .. handler, group .. ' ' .. kind)
end

local function fail_run(id, handler, run, store, detail)
  run.state, run.token = 'failed', ''
  write_run(id, handler, run)
  redis.call('HSET', P .. 'e:' .. id, 'x:' .. handler, detail)
  redis.call('ZADD', P .. 'failed', NOW, item_of(id, handler))
  end_run(id, store, true)
  join_group(id, handler, store, 'failed', detail)
end

-- Why an item of a set cannot be moved: its record is gone, or says otherwise. Nil where nothing is against it.
local function debris(state, run, store)
  if not run then return 'nothing' end
  if run.state ~= state then return run.state end
  return not store and 'no store' or nil
end

-- `move(id, handler, run, store)` for items of a set whose runs are in one state, and out of the set with them; debris
-- and poison are taken out and shown. Gives how many were moved.
local function move_each(set, state, items, move)
  local moved = 0
  for _, item in ipairs(items) do
    local id, handler = split(item)
    local run = read_run(id, handler)
    local store = run and redis.call('HGET', P .. 'e:' .. id, 'store')
    local says = debris(state, run, store)
    if says then
      quarantine(item, 'found in ' .. state .. ' while its record says ' .. says)
    else
      local ok, problem = pcall(move, id, handler, run, store)
      if ok then moved = moved + 1 else quarantine_or_raise(item, problem) end
    end
    gather('ZREM', set, item)
  end
  return moved
end

-- Of these items of a set, where runs are in one state, those of a handler that nobody has any more end as failures;
-- gives how many.
local function end_waiting(set, state, items, handler, detail)
  local its_own = {}
  for _, item in ipairs(items) do
    local _, whose = split(item)
    if whose == handler then its_own[#its_own + 1] = item end
  end
  return move_each(set, state, its_own, function(id, _, run, store) fail_run(id, handler, run, store, detail) end)
end

-- Remove every trace of a closed event but its part in the counters.
local function forget(id)
  local fields = redis.call('HGETALL', P .. 'e:' .. id)
  local store
  for at = 1, #fields, 2 do
    if fields[at] == 'store' then store = fields[at + 1] end
  end
  for at = 1, #fields, 2 do
    if string.sub(fields[at], 1, 2) == 'g:' then
      local handler = string.sub(fields[at], 3)
      leave_group(id, handler, store)
      redis.call('ZREM', P .. 'failed', item_of(id, handler))
    end
  end
  redis.call('ZREM', P .. 'done', id)
  redis.call('ZREM', P .. 'ix', id)
  if store then redis.call('ZREM', P .. 'ix:' .. store, id) end
  redis.call('UNLINK', P .. 'e:' .. id, P .. 'b:' .. id, P .. 'o:' .. id)
end

-- The same for what may be damaged: then it is shown, and is no longer where it was found, a member of `set`.
local function forget_or_quarantine(id, set, member)
  local ok, problem = pcall(forget, id)
  if ok then return end
  quarantine_or_raise(member, problem)
  redis.call('ZREM', set, member)
end
