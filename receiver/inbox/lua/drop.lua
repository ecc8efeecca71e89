#!lua flags=allow-oom
-- drop: a person gives up failures, with a reason. A run that is still retried also ends as dropped.
-- ARGV  1 detail (JSON)  then the items
-- returns for each run "dropped" or "no-failure"
local function drop(item)
  local id, handler = split(item)
  local e = P .. 'e:' .. id
  local run = read_run(id, handler)
  local store = redis.call('HGET', e, 'store')
  local retrying = run and run.state == 'later'
  if not run or not store or not (run.state == 'failed' or retrying) then return 'no-failure' end
  leave_group(id, handler, store)
  redis.call('ZREM', P .. 'failed', item)
  redis.call('ZREM', P .. 'later', item)
  run.state = 'dropped'
  write_run(id, handler, run)
  redis.call('HSET', e, 'x:' .. handler, ARGV[1])
  if retrying then
    end_run(id, store, false)
  elseif redis.call('HINCRBY', e, 'bad', -1) == 0 and redis.call('HGET', e, 'state') == 'failed' then
    redis.call('HSET', e, 'state', 'settled')
    redis.call('ZADD', P .. 'done', NOW, id)
    count('failed', store, -1)
    count('settled', store, 1)
  end
  return 'dropped'
end

return function()
  local results = {}
  for at = 2, #ARGV do results[#results + 1] = drop(ARGV[at]) end
  return results
end
