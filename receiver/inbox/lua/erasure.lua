#!lua flags=allow-oom
-- erasure: record that an erasure has begun, or its receipt at the end.
-- ARGV  1 "begin" or "end"  2 the digest of the subject  3 the record, or the receipt, as JSON
--       4 at the end: after how long receipts are removed (ms, 0 = never)
-- begin returns the record: of an erasure of this subject that was begun and has not ended, else this one. end returns 1
return function()
  local key = P .. 'erasure:' .. ARGV[2]
  if ARGV[1] == 'begin' then
    redis.call('SET', key, ARGV[3], 'NX')
    return redis.call('GET', key)
  end
  redis.call('ZADD', P .. 'receipts', NOW, ARGV[3])
  if tonumber(ARGV[4]) > 0 then redis.call('ZREMRANGEBYSCORE', P .. 'receipts', '-inf', NOW - tonumber(ARGV[4])) end
  redis.call('UNLINK', key)
  return 1
end
