#!lua flags=allow-oom
-- relock: go on changing a store's subscriptions. A lock that has ended is not taken again: somebody may have come.
-- ARGV  1 store  2 who holds it  3 for how much longer (ms)
-- gives 1, or 0 where it is not held any more
return function()
  local lock = P .. 'sub:lock:' .. ARGV[1]
  if redis.call('GET', lock) ~= ARGV[2] then return 0 end
  return redis.call('PEXPIRE', lock, ARGV[3])
end
