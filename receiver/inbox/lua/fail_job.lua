#!lua flags=allow-oom
-- fail_job: put another program's job, which was on one of our queues, into RQ's registry of failed jobs, as RQ does.
-- ARGV  1 queue, as RQ calls it  2 job  3 how long it is kept (s)  4 the reason, as RQ stores it
-- returns 1, or 0 if the job has no record, so that there is nothing to keep
return function()
  local queue, id, seconds, reason = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
  local job, results = 'rq:job:' .. id, 'rq:results:' .. id
  local kind = redis.call('TYPE', job).ok
  if kind == 'none' then return 0 end
  redis.call('ZADD', 'rq:failed:' .. queue, tonumber(clock[1]) + seconds, id)
  if kind == 'hash' then
    redis.call('HSET', job, 'status', 'failed', 'ended_at', iso_now())
    redis.call('EXPIRE', job, seconds) -- it may have had less time in the queue
  end
  -- RQ's number for a failure is 2. A key of another type is left alone.
  redis.pcall('XADD', results, 'MAXLEN', 10, '*', 'type', 2, 'exc_string', reason)
  redis.call('EXPIRE', results, seconds)
  return 1
end
