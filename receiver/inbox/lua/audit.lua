#!lua flags=allow-oom
-- audit: record what a person is about to do, or how it ended. Also at maxmemory, where a person must act.
-- ARGV  1 entry (JSON)  2 maximum number of entries
-- Returns its time (ms, with three places: entries of one millisecond keep their order).
return function()
  local time = redis.call('TIME')
  local now = string.format('%.3f', time[1] * 1000 + time[2] / 1000)
  redis.call('ZADD', P .. 'audit', now, ARGV[1])
  redis.call('ZREMRANGEBYRANK', P .. 'audit', 0, -tonumber(ARGV[2]) - 1)
  return now
end
