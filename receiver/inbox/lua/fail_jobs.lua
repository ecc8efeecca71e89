#!lua flags=allow-oom
-- fail_jobs: put other programs' jobs, which were taken from one of our queues, into RQ's registry of failed jobs, as RQ does.
-- ARGV  1 queue, as RQ calls it  2 the id of its wake-up  3 how long a job is kept (s)  4 the reason, as RQ stores it
-- returns their ids
local SLICE = 100

local function fail(queue, id, seconds, reason)
  local job, results = 'rq:job:' .. id, 'rq:results:' .. id
  local kind = redis.call('TYPE', job).ok
  if kind == 'none' then return end -- it has no record, so there is nothing to keep
  redis.call('ZADD', 'rq:failed:' .. queue, tonumber(clock[1]) + seconds, id)
  if kind == 'hash' then
    redis.call('HSET', job, 'status', 'failed', 'ended_at', iso_now())
    redis.call('EXPIRE', job, seconds) -- it may have had less time in the queue
  end
  -- RQ's number for a failure is 2. A key of another type is left alone.
  redis.pcall('XADD', results, 'MAXLEN', 10, '*', 'type', 2, 'exc_string', reason)
  redis.call('EXPIRE', results, seconds)
end

return function()
  local queue, wake_up, seconds, reason = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
  local taken, failed = 'rq:queue:' .. queue .. ':intermediate', {}
  for _, id in ipairs(redis.call('LRANGE', taken, 0, SLICE - 1)) do
    if id ~= wake_up then
      fail(queue, id, seconds, reason)
      table.insert(failed, id)
    end
  end
  redis.call('LTRIM', taken, SLICE, -1) -- last, because a write may fail
  return failed
end
