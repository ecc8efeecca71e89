#!lua flags=allow-oom
-- relock: extend the lock on a store's subscriptions. An expired lock is not taken again: another process may have had it.
-- ARGV  1 store  2 the owner's token  3 for how much longer (ms); 0 releases it
-- returns 1, or 0 if the caller does not hold it any more
return function()
  local lock = P .. 'sub:lock:' .. ARGV[1]
  if redis.call('GET', lock) ~= ARGV[2] then return 0 end
  return redis.call('PEXPIRE', lock, ARGV[3])
end
