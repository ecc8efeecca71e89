#!lua flags=allow-oom
-- unlock: release the lock on a store's subscriptions. A lock that expired and is another process's by now stays.
-- ARGV  1 store  2 the owner's token
return function()
  local lock = P .. 'sub:lock:' .. ARGV[1]
  if redis.call('GET', lock) ~= ARGV[2] then return 0 end
  return redis.call('DEL', lock)
end
