#!lua flags=allow-oom
-- lock_store: one process at a time changes the subscriptions of a store. The lock is short, so that another process need
-- not wait long for one that was killed. After an outage it may have expired; its owner takes it again if no other has.
-- ARGV  1 "take", "extend" or "release"  2 store  3 the owner's token  4 how long the lock lasts (ms)
--       5 for how long its owner may take it again (ms)
-- returns 1 if the caller has the lock now, else 0
return function()
  local action, token, lasts, known = ARGV[1], ARGV[3], ARGV[4], ARGV[5]
  local lock, owner = P .. 'sub:lock:' .. ARGV[2], P .. 'sub:owner:' .. ARGV[2]
  local holder = redis.call('GET', lock)
  if action == 'take' then
    if holder then return 0 end
  elseif redis.call('GET', owner) ~= token or holder and holder ~= token then
    return 0
  end
  if action == 'release' then
    redis.call('DEL', lock, owner)
    return 0
  end
  redis.call('SET', lock, token, 'PX', lasts)
  redis.call('SET', owner, token, 'PX', known)
  return 1
end
