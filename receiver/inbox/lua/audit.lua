#!lua flags=allow-oom
-- audit: record what a person is about to do, or how it ended. Also at maxmemory, where a person must act.
-- ARGV  1 entry (JSON)  2 maximum number of entries
-- Returns its time (ms).
return function()
  local now = string.format('%.0f', NOW)
  redis.call('ZADD', P .. 'audit', now, ARGV[1])
  redis.call('ZREMRANGEBYRANK', P .. 'audit', 0, -tonumber(ARGV[2]) - 1)
  return now
end
