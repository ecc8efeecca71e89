#!lua flags=allow-oom
-- audit: record what a person is about to do, or how it ended. Also at maxmemory, where a person must act.
-- ARGV  1 entry (JSON)  2 maximum number of entries  3 the bulk action whose end this is, or "". Each has one end
-- Returns its time (ms, with three places: entries of one millisecond keep their order).
return function()
  if ARGV[3] ~= '' and redis.call('SREM', P .. 'bulk_open', ARGV[3]) == 0 then return end
  local time = redis.call('TIME')
  local now = string.format('%.3f', time[1] * 1000 + time[2] / 1000)
  redis.call('ZADD', P .. 'audit', now, ARGV[1])
  redis.call('ZREMRANGEBYRANK', P .. 'audit', 0, -tonumber(ARGV[2]) - 1)
  return now
end
