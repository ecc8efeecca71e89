#!lua flags=allow-oom
-- finish: write how leased runs ended.
-- ARGV  for each run: item, token, outcome, detail (JSON), delay (ms)
--       outcome: done dropped failed; retry (an attempt, due after the delay); release (no attempt, ready at once);
--       busy (no attempt, ready at once, and the handler's limit is shut for everyone until the delay is over)
-- gives for each run "ok" or "stale" (the token no longer fits; nothing was changed)
local function finish(item, token, outcome, detail, delay)
  local id, handler = split(item)
  local e = P .. 'e:' .. id
  local run = read_run(id, handler)
  if not run or run.state ~= 'leased' or run.token ~= token then
    redis.call('HINCRBY', P .. 'n', 'stale', 1)
    return 'stale'
  end
  local about = redis.call('HMGET', e, 'store', 'topic', 'resource')
  local store = about[1]
  redis.call('ZREM', P .. 'leased', item)
  free_slot(id, handler, run)
  run.token = ''
  if outcome == 'release' or outcome == 'busy' then
    if outcome == 'busy' then
      local limit = redis.call('HGET', P .. 'limits', handler) or 'h:' .. handler
      redis.call('HSET', P .. 'shut', limit, NOW + tonumber(delay))
      redis.call('HSET', e, 'x:' .. handler, detail)
    end
    run.state = 'ready'
    write_run(id, handler, run)
    make_first(id, handler)
    wake(run.queue)
    return 'ok'
  end
  run.attempts = run.attempts + 1
  if outcome == 'failed' then
    fail_run(id, handler, run, store, detail)
  else
    run.state = outcome == 'retry' and 'later' or outcome
    write_run(id, handler, run)
    redis.call('HSET', e, 'x:' .. handler, detail)
    if outcome == 'retry' then
      redis.call('ZADD', P .. 'later', NOW + tonumber(delay), item)
      join_group(id, handler, store, 'retrying', detail)
    else
      end_run(id, store, false)
      if run.attempts > 1 then leave_group(id, handler, store) end
    end
  end
  tell(item, outcome, store, about[2], about[3], detail)
  return 'ok'
end

local results = {}
for at = 1, #ARGV, 5 do
  results[#results + 1] = finish(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
end
return results
