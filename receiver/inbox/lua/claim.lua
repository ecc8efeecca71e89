#!lua flags=allow-oom
-- claim: lease ready items to the caller.
-- ARGV  1 token  2 lease (ms)  3 maximum number in all  4 version of the declarations that the routes are based on
--       5 "1" to begin with the lanes that have suspects  6 how many lanes
--       then for each lane: lane, its maximum number, its limit or "", concurrency (0 = any), spacing (ms, 0 = any), burst,
--       "1" if its runs of a key are leased one at a time
--       then the routes the caller knows, for each: store, topic, how many handlers, and for each of these: handler,
--       queue, "1" if it may be leased to the caller, "0" if not, or ">ms": due that long after the event's arrival,
--       and its order or ""
-- returns {declarations' version, ms until a limit allows more work (0 = no limit stops any), item...}
--       where an item is {item, attempts, losses, replays, order, store, topic, delivery, resource, received, occurred,
--       source, data_path, body}, followed by the handlers leased to the caller if the event was routed here. The order is
--       that of an ordered run: its fence, a space and its mark (see order.lua and lease_merged). After a handler whose run is
--       ordered follow a space and its order
-- The runs that one claim takes of a lane with a concurrency hold one slot: the caller has one child process perform them,
-- one after the other. So while more is ready than slots are free, the next run begins without a call to the server.
-- An item that lost its worker before is a suspect. It is claimed alone, so that no other item is charged with a loss that
-- it causes. It is skipped while others are claimed. Its lane is recorded, and callers begin with such lanes every other time,
-- so that both suspects and the others have their turn soon.
-- If fewer runs are ready than the caller wants, the runs that are queued behind those it gets are leased to it too: one child
-- process performs the runs of a key one after the other. So a single key needs no call to the server for each run. The same
-- holds for the runs of a key whose events are routed here: they are leased at once, and never queued.
-- An event whose route the caller knows is routed in the same step, as `route` would. Any other is leased to be routed.
-- Events are routed only while the caller has room for a run: a run that is made ready first is read and written once more.
local FIRST_LANE = 7
local LANE_PARTS = 7
local MAX_BYTES = 8 * 1024 * 1024 -- of bodies in one claim: the server must also answer others
local MERGED_BYTES = 4096 -- a merged run takes the server about as long as a body of this size
local MAX_FOLLOWERS = 127 -- queued runs that are leased with the first of their key; more than a claim routes, so they get fewer
local PARTS = 4 -- of a handler in a route
local MAX_SKIPPED = 256 -- suspects of a lane that one claim skips
local token, lease_end, version, first_route
local capacity, taken, wait_ms, size, left, suspected
local rooms -- of how many handlers the caller can be given more runs
local ready_before -- how many items each lane had when the claim began
local free_slots -- of the current limit, if it has a concurrency
local routes, places, fields
local firsts -- the ordered runs leased of the current lane

local function begin_claim()
  token, lease_end, capacity = ARGV[1], NOW + tonumber(ARGV[2]), tonumber(ARGV[3])
  version = redis.call('GET', P .. 'declarations_version') or '0'
  first_route = FIRST_LANE + LANE_PARTS * tonumber(ARGV[6])
  taken, wait_ms, size, left, free_slots = {}, 0, 0, {}, 0
  routes, places, fields = {}, {}, {}
  firsts, rooms = {}, 0
  suspected, ready_before = {}, {}
  for _, lane in ipairs(redis.call('SMEMBERS', P .. 'suspects')) do suspected[lane] = true end
end

-- The fields that are read of an item: its run, its replays, what is returned to the caller, and the mark of its order.
local function fields_of(handler)
  return { 'r:' .. handler, 'p:' .. handler, 'store', 'topic', 'delivery', 'resource', 'received', 'occurred', 'source',
    'data_path', 'k:' .. handler }
end
local MARK, OPEN = 11, 12

-- The routes by store and topic. For an event to be routed two more things are read: how many of its runs are open, and the
-- runs of the handlers in the routes. `places` has the position of each handler in the reply.
local function read_routes()
  fields[''] = fields_of('')
  fields[''][OPEN] = 'open'
  local at = ARGV[4] == version and first_route or #ARGV + 1
  while at <= #ARGV do
    local many = tonumber(ARGV[at + 2])
    local last = at + 2 + PARTS * many
    routes[ARGV[at] .. ' ' .. ARGV[at + 1]] = { first = at + 3, last = last, many = many }
    for part = at + 3, last, PARTS do
      if not places[ARGV[part]] then
        places[ARGV[part]] = #fields[''] + 1
        fields[''][#fields[''] + 1] = 'r:' .. ARGV[part]
      end
    end
    at = last + 1
  end
end

-- The record of an item; nil if its key has another type.
local function about_item(id, handler)
  if not fields[handler] then
    if handler == '' then read_routes() else fields[handler] = fields_of(handler) end
  end
  return read_fields(id, unpack(fields[handler]))
end

local function count_leased(lane)
  left[lane] = left[lane] - 1
  if left[lane] == 0 and lane ~= '' then rooms = rooms - 1 end
end

local function take(item, id, run, about, handlers)
  local body = redis.pcall('GET', P .. 'b:' .. id)
  if type(body) ~= 'string' then body = false end
  size = size + (body and #body or 0)
  local order = about[MARK] and lease_text(about[MARK])
  taken[#taken + 1] = { item, run.attempts, run.losses, about[2], order, about[3], about[4], about[5], about[6], about[7],
    about[8], about[9], about[10], body, unpack(handlers) }
end

-- The caller's route for an event, if it can be used: the event has none of these runs yet and has lost no worker.
local function known_route(run, about)
  local route = about[3] and about[4] and routes[about[3] .. ' ' .. about[4]]
  if not route or run.losses > 0 then return nil end
  for part = route.first, route.last, PARTS do
    if about[places[ARGV[part]]] then return nil end
  end
  return route
end

local function route_here(item, id, run, about, route)
  local made, mine, open = {}, {}, tonumber(about[OPEN] or 1) + route.many - 1
  note_routed(id, about[3])
  for part = route.first, route.last, PARTS do
    local handler, start = ARGV[part], ARGV[part + 2]
    local wanted = start == '1' and (left[handler] or 0) > 0 and token
    local leased = begin_run(id, about[3], handler, ARGV[part + 1], start, about[7], wanted, lease_end, made, ARGV[part + 3],
      about[4], about[6])
    if leased then
      count_leased(handler)
      mine[#mine + 1] = leased
    end
  end
  redis.call('HSET', P .. 'e:' .. id, 'open', open, unpack(made))
  redis.call('HDEL', P .. 'e:' .. id, 'r:')
  if #mine > 0 then take(item, id, run, about, mine) end
end

local function lease(item, id, handler, run, about)
  run.state, run.token = 'leased', token
  write_run(id, handler, run)
  batch('ZADD', P .. 'leased', lease_end, item)
  count_leased(handler)
  take(item, id, run, about, {})
end

-- Leases the newest of the runs that wait for one resource. The ids of the others are in its order, after "m:".
local function lease_merged(id, handler, run, about)
  local mark, newest, others = about[MARK], id, {}
  if run.losses > 0 then
    others = noted_as_merged(id, handler)
  else
    redis.call('HDEL', P .. 'e:' .. id, 'm:' .. handler)
    if not run.urgent then newest, others = merge_waiting(id, handler, run, mark, about[3], about[8]) end
  end
  if newest ~= id then
    about = about_item(newest, handler)
    run = parse_run(about[1])
  end
  size = size + #others * MERGED_BYTES
  if #others > 0 then about[MARK] = 'm:' .. table.concat(others, ',') .. ' ' .. key_in(mark) end
  lease(item_of(newest, handler), newest, handler, run, about)
end

local function lease_item(item, id, handler, run, about)
  local route = handler == '' and known_route(run, about)
  if route then return route_here(item, id, run, about, route) end
  local mark = about[MARK]
  if mark and not may_lease(id, handler, run, mark, about[3]) then return end
  if mark and is_merging(mark) then return lease_merged(id, handler, run, about) end
  lease(item, id, handler, run, about)
  if mark and run.losses == 0 then firsts[#firsts + 1] = { id = id, mark = mark, store = about[3] } end
end

-- Leases the runs that are queued behind the first one of their key, at most `most`. If these are all, those that are routed next
-- are leased with them: else each claim would route as many into the queue as it takes from there.
local function take_followers(handler, first, most)
  local queue, gone, ids = queue_of(handler, first.mark), {}, { first.id }
  local asked = math.min(most, MAX_FOLLOWERS)
  local found = asked > 0 and read_or_set_aside('ZRANGE', queue, 0, asked - 1, 'WITHSCORES') or {}
  for at = 1, #found, 2 do
    local item = found[at]
    local id = split(item)
    local about = about_item(id, handler)
    local run = about and parse_run(about[1])
    if size > MAX_BYTES or has_unrouted_before(first.store, tonumber(found[at + 1])) then break end
    if run and run.state == 'queued' then
      local is_due = run.token == '' or due_at(tonumber(run.token), about[7]) <= NOW
      if run.losses > 0 or not is_due or is_merging(about[MARK] or '') then break end
      lease(item, id, handler, run, about)
      ids[#ids + 1] = id
    else
      quarantine(item, 'found in queued while its record says ' .. (run and run.state or 'nothing'))
    end
    gone[#gone + 1] = item
  end
  in_slices('ZREM', P .. queue, gone)
  if #ids > 1 then set_active(handler, key_in(first.mark), table.concat(ids, ' ')) end
  if #found == 2 * #gone and #gone < asked then leased_keys[handler][key_in(first.mark)] = true end
end

-- Work of a paused store leaves the lane, so that claims need not search past it. `resume` returns it in order.
local function hold_if_paused(item, id, handler, run, store, score)
  if not store or not is_paused('store:' .. store) then return false end
  run.state = 'held'
  write_run(id, handler, run)
  redis.call('ZADD', P .. 'held:' .. store, score, item)
  return true
end

local function take_item(item, id, lane, score, run, about)
  if not run or run.state ~= 'ready' then
    quarantine(item, 'found ready while its record says ' .. (run and run.state or 'nothing'))
  elseif not hold_if_paused(item, id, lane, run, about[3], score) then
    lease_item(item, id, lane, run, about)
  end
end

local function note_wait(ms)
  if wait_ms == 0 or ms < wait_ms then wait_ms = math.max(1, math.ceil(ms)) end
end

-- How many of `want` runs may begin now under the lane's limit.
local function allowed(lane, want, limit, concurrency, spacing, burst)
  local busy = busy_until(limit ~= '' and limit or 'h:' .. lane)
  if busy then
    note_wait(busy - NOW)
    return 0
  end
  if limit == '' then return want end
  if concurrency > 0 then
    free_slots = concurrency - slots_taken(limit, concurrency)
    if free_slots < 1 then return 0 end
    want = spacing > 0 and 1 or math.min(want, math.ceil(ready_before[lane] / free_slots))
  end
  if spacing > 0 and want > 0 then
    local due = tonumber(redis.call('HGET', P .. 'paces', limit)) or 0
    if due > NOW + burst * spacing then -- further than a claim ever sets it: the clock was set back
      due = NOW + burst * spacing
      redis.call('HSET', P .. 'paces', limit, due)
    end
    local free = math.floor((NOW - due) / spacing) + 1
    if free < 1 then
      note_wait(due - NOW)
      return 0
    end
    want = math.min(want, free, burst)
  end
  return want
end

local function record_taken(lane, limit, concurrency, spacing, burst, first, got)
  if got == 0 then return end
  if limit == '' then -- it may have had a limit before, and Busy would be recorded for that one
    redis.call('HDEL', P .. 'limits', lane)
    return
  end
  redis.call('HSET', P .. 'limits', lane, limit)
  if concurrency > 0 then
    local ids = {}
    for at = first, first + got - 1 do ids[#ids + 1] = split(taken[at][1]) end
    redis.call('HSET', P .. 'slots:' .. limit, token .. '|' .. lane, table.concat(ids, ' '))
    free_slots = free_slots - 1
  end
  if spacing > 0 then
    local due = tonumber(redis.call('HGET', P .. 'paces', limit)) or 0
    due = math.max(due, NOW - (burst - 1) * spacing) + got * spacing
    redis.call('HSET', P .. 'paces', limit, due)
    note_wait(due - NOW)
  end
end

-- Records whether a lane has suspects, as far as this claim has seen.
local function record_suspects(lane, suspects)
  if suspects and not suspected[lane] then redis.call('SADD', P .. 'suspects', lane) end
  if suspected[lane] and not suspects then redis.call('SREM', P .. 'suspects', lane) end
end

-- Reads a lane, at most its first `most` items, until `want` have left it. Returns the virtual time of the last one, and an
-- error that concerns all.
local function read_lane(lane, ready, want, most)
  local gone, read, skipped, last, alone, refused = {}, 0, 0, nil, false, nil
  repeat
    local asked = math.min(want - #gone, most - read)
    local found = redis.call('ZRANGE', ready, read, read + asked - 1, 'WITHSCORES')
    read = read + asked
    for at = 1, #found, 2 do
      local item = found[at]
      local id = split(item)
      local about = about_item(id, lane)
      local run = about and parse_run(about[1])
      local suspect = run and run.losses > 0
      if suspect and #taken > 0 then
        skipped = skipped + 1
      else
        last = found[at + 1]
        local ok, problem = pcall(take_item, item, id, lane, last, run, about)
        if not ok then ok, refused = pcall(quarantine_or_raise, item, problem) end
        if not ok then break end
        gone[#gone + 1] = item
        alone = suspect and #taken == 1
      end
      if size > MAX_BYTES or alone then
        capacity = 0
        break
      end
      if rooms == 0 then break end
    end
  until #gone >= want or #found < 2 * asked or read >= most or capacity == 0 or rooms == 0 or refused or
    skipped > MAX_SKIPPED
  in_slices('ZREM', ready, gone)
  record_suspects(lane, alone or skipped > 0)
  return last, refused
end

-- Takes up to `want` items of a lane.
local function take_from(lane, want, limit, concurrency, spacing, burst, one_at_a_time)
  local ready, before = P .. 'ready:' .. lane, #taken
  if ready_before[lane] == 0 then return record_suspects(lane, false) end
  local most = is_paused('handler:' .. lane) and count_urgent(lane) or math.huge
  if most == 0 then return end
  want = allowed(lane, want, limit, concurrency, spacing, burst)
  if want < 1 then return end
  firsts = {}
  local last, refused = read_lane(lane, ready, want, most)
  if refused then error(refused, 0) end
  if limit == '' and most == math.huge and not one_at_a_time then
    for _, first in ipairs(firsts) do take_followers(lane, first, want - (#taken - before)) end
  end
  if last and tonumber(last) >= -1 then redis.call('HSET', P .. 'fair:' .. lane, '', last) end -- not for urgent runs
  local got = #taken - before
  record_taken(lane, limit, concurrency, spacing, burst, before + 1, got)
  capacity = capacity - got
  local more = last and (concurrency == 0 or free_slots > 0)
  if more and redis.call('EXISTS', ready) == 1 then wake(redis.call('HGET', P .. 'lanes', lane) or DEFAULT_QUEUE) end
end

return function()
  require_sets('leased', 'later')
  begin_claim()
  for at = FIRST_LANE, first_route - 1, LANE_PARTS do
    ready_before[ARGV[at]] = require_lane(ARGV[at])
    left[ARGV[at]] = tonumber(ARGV[at + 1])
    if ARGV[at] ~= '' then rooms = rooms + 1 end
    if ARGV[at + 6] ~= '1' then leased_keys[ARGV[at]] = {} end
  end
  if rooms == 0 then rooms = math.huge end -- a caller without handlers only routes
  local begins = ARGV[5] == '1' and suspected or {}
  for _, turn in ipairs({ true, false }) do
    for at = FIRST_LANE, first_route - 1, LANE_PARTS do
      local lane, want = ARGV[at], rooms > 0 and math.min(left[ARGV[at]], capacity) or 0
      if want > 0 and (begins[lane] or false) == turn then
        take_from(lane, want, ARGV[at + 2], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]),
          ARGV[at + 6] == '1')
      end
    end
  end
  if rooms == 0 and left[''] and redis.call('EXISTS', P .. 'ready:') == 1 then wake(DEFAULT_QUEUE) end
  release_heads_of_routed()
  return { version, wait_ms, unpack(taken) }
end
