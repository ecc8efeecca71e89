#!lua flags=allow-oom
-- erase_texts: replace or remove values that name a person, outside of events.
-- ARGV  for each: the key without its prefix, "hash", "zset" or "key", the field or the member, and what replaces its value
--       or the member, or "" to remove it. A whole key is removed
-- returns how many there were
return function()
  local many = 0
  for at = 1, #ARGV, 4 do
    local key, kind, name, value = P .. ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    if kind == 'hash' and redis.call('HEXISTS', key, name) == 1 then
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
