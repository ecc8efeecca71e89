#!lua
-- count_spooled: count duplicates that a spool found, each once, even if the drain dies before it deletes its count.
-- ARGV  1 store  2 how many  3 the token of this count
-- returns how many were counted now
return function()
  local key, many = P .. 'spool_counted:' .. ARGV[3], tonumber(ARGV[2])
  local more = many - tonumber(redis.call('GET', key) or 0)
  redis.call('SET', key, many, 'EX', 86400)
  count('duplicates', ARGV[1], more)
  return more
end
