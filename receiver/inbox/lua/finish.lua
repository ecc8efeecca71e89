#!lua flags=allow-oom
-- finish: write the outcomes of leased runs.
-- ARGV  for each run: item, token, outcome, detail (JSON), delay (ms)
--       outcome: done dropped failed; retry (an attempt, due after the delay; a first attempt without a delay is ready at
--       once, in its place); release (no attempt, ready at once);
--       busy (no attempt, ready at once, and the handler's limit is busy for all workers until the delay is over);
--       wait (no attempt, due after the delay, and no limit is affected)
--       In place of the delay, done and dropped may have the event's place among those of its resource: "s" and its
--       sequence, or "t" or "u" and its time (us), a space, and for how long that is kept (ms)
-- returns for each run "ok" or "stale" (the token does not match and nothing was changed, or the record is damaged and
--       was quarantined)
local published -- the outcomes for the journal

-- The run ended as done or dropped: its field, its result and the event's state, in one write.
local function end_without_failure(id, handler, run, detail, store, open, bad)
  local fields = { 'r:' .. handler, packed(run), 'x:' .. handler, detail, 'open', open }
  local state = open <= 0 and (bad > 0 and 'failed' or 'settled')
  if state then fields[7], fields[8] = 'state', state end
  redis.call('HSET', P .. 'e:' .. id, unpack(fields))
  if state then
    if state == 'settled' then batch('ZADD', P .. 'done', NOW, id) end
    count('open', store, -1)
    count(state, store, 1)
  end
  if run.attempts > 1 then leave_group(id, handler, store) end
end

local function postpone(id, handler, item, run, detail, delay)
  run.state, run.token = 'later', delay
  redis.call('HSET', P .. 'e:' .. id, 'r:' .. handler, packed(run), 'x:' .. handler, detail)
  redis.call('ZADD', P .. 'later', NOW + tonumber(delay), item)
end

-- A first attempt without a delay: most often its child process was killed from outside. Behind those that wait in its lane it
-- would wait as long again.
local function begin_again(id, handler, run, detail)
  run.state = 'ready'
  redis.call('HSET', P .. 'e:' .. id, 'r:' .. handler, packed(run), 'x:' .. handler, detail)
  return_to_front(id, handler, run.urgent)
  wake(run.queue)
end

local function release(id, handler, run, outcome, detail, delay, mark, store)
  if outcome == 'busy' then
    redis.call('HSET', P .. 'busy', limit_of(handler) or 'h:' .. handler, NOW + tonumber(delay) .. ' ' .. delay)
    redis.call('HSET', P .. 'e:' .. id, 'x:' .. handler, detail)
  end
  local comes_first = mark and is_merging(mark) and run.losses > 0 -- as after a loss: it may have been handled already
  if mark and not comes_first then return queue_again(id, handler, run, mark, store) end
  run.state = 'ready'
  write_run(id, handler, run)
  return_to_front(id, handler, run.urgent)
  wake(run.queue)
end

-- Lets the next one of a resource's line begin, which waits for the number that was settled; see gap.lua.
local function begin_next(handler, of, number, store)
  local found = redis.pcall('ZRANGE', P .. 'gap:' .. handler .. of, '(' .. number, '+inf', 'BYSCORE', 'LIMIT', 0, 1)
  local id = found[1] and event_in_line(found[1])
  local run = id and read_run(id, handler)
  if not run or run.state ~= 'later' or run.attempts > 0 then return end -- one that is retried keeps its delay
  redis.call('ZREM', P .. 'later', item_of(id, handler))
  come_due(id, handler, run, store)
  wake(run.queue)
end

-- Keeps the newest event of a resource that a handler has settled. The numbers are compared as text: they may be long.
local function note_newest(id, handler, about, settles)
  local kind, number, keep = string.match(settles, '^(%a)(%d+) (%d+)$')
  if not kind then return end
  local of = '|' .. about[2] .. '|' .. string.match(about[3] or '', '^[^.]*') .. '|' .. (about[4] or '')
  local key = P .. 'newest:' .. handler .. of
  if kind == 's' then begin_next(handler, of, number, about[2]) end
  local found = redis.pcall('GET', key)
  local known = type(found) == 'string' and string.match(found, '^' .. kind .. '(%d+) ')
  if known and (#number < #known or (#number == #known and number < known)) then return end
  redis.call('SET', key, kind .. number .. ' ' .. id, 'PX', keep)
end

-- Publishes a run that is dropped because it was merged. Its resource is that of the run it was merged into.
local function tell_merged(about)
  return function(item, id, detail)
    local topic = redis.call('HGET', P .. 'e:' .. id, 'topic')
    published[#published + 1] = { item, 'dropped', about[2], topic, about[4], detail }
  end
end

-- Keeps the last failed attempts of a run: a line for each, [when it ended, its duration (ms), version, error].
local ATTEMPTS_KEPT = 10
local MAX_ERROR = 300
local function note_attempt(id, handler, detail)
  local e, field = P .. 'e:' .. id, 'a:' .. handler
  local ok, about = pcall(cjson.decode, detail)
  if not ok or type(about) ~= 'table' then about = {} end
  local function text(name) return type(about[name]) == 'string' and about[name] or '' end
  local lines = { cjson.encode({ NOW, tonumber(about.ms) or 0, text('version'), string.sub(text('error'), 1, MAX_ERROR) }) }
  for line in string.gmatch(redis.call('HGET', e, field) or '', '[^\n]+') do
    if #lines < ATTEMPTS_KEPT then lines[#lines + 1] = line end
  end
  redis.call('HSET', e, field, table.concat(lines, '\n'))
end

local function write_end(item, id, handler, run, about, outcome, detail, delay)
  local store, mark = about[2], about[7]
  if not store then error('its record names no store', 0) end
  run.token = ''
  if outcome == 'release' or outcome == 'busy' then
    return release(id, handler, run, outcome, detail, delay, mark, store)
  end
  if outcome == 'wait' then return postpone(id, handler, item, run, detail, delay) end
  run.attempts, run.urgent = run.attempts + 1, false
  if outcome == 'failed' or outcome == 'retry' then note_attempt(id, handler, detail) end
  if outcome == 'failed' then
    fail_run(id, handler, run, store, detail)
  elseif outcome == 'retry' then
    if run.attempts == 1 and delay == '0' then
      begin_again(id, handler, run, detail)
    else
      postpone(id, handler, item, run, detail, delay)
    end
    join_group(id, handler, store, 'retrying', detail)
    count('retried', store, 1)
  else
    run.state, run.token = outcome, NOW
    end_without_failure(id, handler, run, detail, store, tonumber(about[5] or 1) - 1, tonumber(about[6] or 0))
    if delay ~= '0' then note_newest(id, handler, about, delay) end
    if mark and is_merging(mark) then drop_merged(id, handler, mark, store, detail, tell_merged(about)) end
    if mark then leave_order(id, handler, mark, store) end
  end
  published[#published + 1] = { item, outcome, store, about[3], about[4], detail }
end

local function finish(item, token, outcome, detail, delay)
  local id, handler = split(item)
  local about = read_fields(id, 'r:' .. handler, 'store', 'topic', 'resource', 'open', 'bad', 'k:' .. handler)
  local run = about and parse_run(about[1])
  if not run or run.state ~= 'leased' or run.token ~= token then
    redis.pcall('HINCRBY', P .. 'n', 'stale', 1)
    forgive_if_late(id, handler, token)
    return 'stale'
  end
  local ok, problem = pcall(write_end, item, id, handler, run, about, outcome, detail, delay)
  if not ok then quarantine_or_raise(item, problem) end
  batch('ZREM', P .. 'leased', item)
  pcall(free_slot, id, handler, run.queue, token) -- a claim that needs a slot also finds those no run holds any more
  return ok and 'ok' or 'stale'
end

return function()
  require_sets('leased', 'later', 'failed')
  for at = 1, #ARGV, 5 do
    local outcome = ARGV[at + 2]
    local may_be_ready = outcome == 'release' or outcome == 'busy' or outcome == 'retry' and ARGV[at + 4] == '0'
    if may_be_ready or string.sub(ARGV[at + 4], 1, 1) == 's' then -- it, or the next one of its resource
      local _, lane = split(ARGV[at])
      require_lane(lane)
    end
  end
  local results = {}
  published = {}
  for at = 1, #ARGV, 5 do
    results[#results + 1] = finish(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
  end
  -- The outcomes are stored even if publishing is refused: since Redis 7 new users have no right to any channel.
  if #published > 0 then redis.pcall('PUBLISH', P .. 'journal', cjson.encode(published)) end
  return results
end
