#!lua flags=allow-oom
-- erasure: record an erasure that has begun, or its receipt at the end.
-- ARGV  1 "begin" or "end"  2 its id  3 the record, or the receipt, as JSON
--       4 at the end: after how long receipts are removed (ms, 0 = never)
-- returns 1
return function()
  if ARGV[1] == 'begin' then
    redis.call('HSET', P .. 'erasures', ARGV[2], ARGV[3])
    return 1
  end
  redis.call('ZADD', P .. 'receipts', NOW, ARGV[3])
  if tonumber(ARGV[4]) > 0 then redis.call('ZREMRANGEBYSCORE', P .. 'receipts', '-inf', NOW - tonumber(ARGV[4])) end
  redis.call('HDEL', P .. 'erasures', ARGV[2])
  return 1
end
