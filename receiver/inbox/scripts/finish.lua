#!lua flags=allow-oom
-- finish: write how leased runs ended.
-- ARGV  for each run: item, token, outcome, detail (JSON), delay (ms)
--       outcome: done dropped failed; retry (an attempt, due after the delay); release (no attempt, ready at once);
--       busy (no attempt, ready at once, and the handler's limit is shut for everyone until the delay is over)
-- gives for each run "ok" or "stale" (the token no longer fits; nothing was changed)
local told = {}

-- The run ended well: its field, how it went, and the event's own state, in one write.
local function end_well(id, handler, run, detail, store, open, bad)
  local fields = { 'r:' .. handler, packed(run), 'x:' .. handler, detail, 'open', open }
  if open <= 0 then
    local state = bad > 0 and 'failed' or 'settled'
    fields[7], fields[8] = 'state', state
    if state == 'settled' then gather('ZADD', P .. 'done', NOW, id) end
    count('open', store, -1)
    count(state, store, 1)
  end
  redis.call('HSET', P .. 'e:' .. id, unpack(fields))
  if run.attempts > 1 then leave_group(id, handler, store) end
end

local function retry(id, handler, item, run, detail, store, delay)
  run.state = 'later'
  redis.call('HSET', P .. 'e:' .. id, 'r:' .. handler, packed(run), 'x:' .. handler, detail)
  redis.call('ZADD', P .. 'later', NOW + tonumber(delay), item)
  join_group(id, handler, store, 'retrying', detail)
end

local function give_back(id, handler, run, outcome, detail, delay)
  if outcome == 'busy' then
    redis.call('HSET', P .. 'shut', limit_of(handler) or 'h:' .. handler, NOW + tonumber(delay))
    redis.call('HSET', P .. 'e:' .. id, 'x:' .. handler, detail)
  end
  run.state = 'ready'
  write_run(id, handler, run)
  make_first(id, handler)
  wake(run.queue)
end

local function finish(item, token, outcome, detail, delay)
  local id, handler = split(item)
  local about = redis.pcall('HMGET', P .. 'e:' .. id, 'r:' .. handler, 'store', 'topic', 'resource', 'open', 'bad')
  local run = not about.err and parse_run(about[1])
  if not run or run.state ~= 'leased' or run.token ~= token then
    redis.call('HINCRBY', P .. 'n', 'stale', 1)
    was_only_late(id, handler, token)
    return 'stale'
  end
  local store = about[2]
  gather('ZREM', P .. 'leased', item)
  free_slot(id, handler, run)
  run.token = ''
  if outcome == 'release' or outcome == 'busy' then
    give_back(id, handler, run, outcome, detail, delay)
    return 'ok'
  end
  run.attempts = run.attempts + 1
  if outcome == 'failed' then
    fail_run(id, handler, run, store, detail)
  elseif outcome == 'retry' then
    retry(id, handler, item, run, detail, store, delay)
  else
    run.state = outcome
    end_well(id, handler, run, detail, store, tonumber(about[5] or 1) - 1, tonumber(about[6] or 0))
  end
  told[#told + 1] = { item, outcome, store, about[3], about[4], detail }
  return 'ok'
end

local results = {}
for at = 1, #ARGV, 5 do
  results[#results + 1] = finish(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
end
if #told > 0 then redis.call('PUBLISH', P .. 'journal', cjson.encode(told)) end
return results
