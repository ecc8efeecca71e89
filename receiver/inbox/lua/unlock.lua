#!lua flags=allow-oom
-- unlock: let others change a store's subscriptions again. A lock that has ended, and is another's by now, stays.
-- ARGV  1 store  2 who held it
return function()
  local lock = P .. 'sub:lock:' .. ARGV[1]
  if redis.call('GET', lock) ~= ARGV[2] then return 0 end
  return redis.call('DEL', lock)
end
