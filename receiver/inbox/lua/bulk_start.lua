#!lua flags=allow-oom
-- bulk_start: record a bulk action, which the housekeeper carries on. Records of ended ones above a maximum are removed.
-- ARGV  1 id  2 maximum number of records  then its fields and values
return function()
  redis.call('HSET', P .. 'bulk:' .. ARGV[1], 'began', NOW, 'due', NOW, 'position', '', unpack(ARGV, 3))
  redis.call('ZADD', P .. 'bulk', NOW, ARGV[1])
  redis.call('SADD', P .. 'bulk_open', ARGV[1])
  for _, old in ipairs(redis.call('ZRANGE', P .. 'bulk', 0, -tonumber(ARGV[2]) - 1)) do
    if redis.call('SISMEMBER', P .. 'bulk_open', old) == 0 then
      redis.call('UNLINK', P .. 'bulk:' .. old)
      redis.call('ZREM', P .. 'bulk', old)
    end
  end
end
