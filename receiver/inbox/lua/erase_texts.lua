#!lua flags=allow-oom
-- erase_texts: replace or remove values that name a person, outside of events.
-- ARGV  for each: the key without its prefix, "hash", "zset" or "key", the field or the member, the value of the field that was
--       read, and what replaces its value or the member, or "" to remove it. A whole key is removed
-- returns how many there were. A field with another value by now is left as it is
return function()
  local many = 0
  for at = 1, #ARGV, 5 do
    local key, kind, name, read, value = P .. ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
    if kind == 'hash' and redis.call('HGET', key, name) == read then
      if value == '' then redis.call('HDEL', key, name) else redis.call('HSET', key, name, value) end
      many = many + 1
    end
    if kind == 'key' then many = many + redis.call('UNLINK', key) end
    local score = kind == 'zset' and redis.call('ZSCORE', key, name)
    if score then
      redis.call('ZREM', key, name)
      if value ~= '' then redis.call('ZADD', key, score, value) end
      many = many + 1
    end
  end
  return many
end
