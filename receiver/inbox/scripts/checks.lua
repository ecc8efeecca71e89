#!lua
-- checks: give stores whose subscriptions are to be looked at to the caller, each to one.
-- ARGV  1 time between two looks at a store (ms)  2 how long the caller has (ms)  3 how many  4... every store there is
-- gives the stores. A store that nobody has seen before gets its place: the first at once, the others spread over the
-- time between two looks. One that is no more in the list is forgotten.
local every, time, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local known, stores = {}, {}
local have = redis.call('ZRANGE', P .. 'check', 0, -1, 'WITHSCORES')
for at = 4, #ARGV do stores[ARGV[at]] = true end
for at = 1, #have, 2 do
  if not stores[have[at]] then
    redis.call('ZREM', P .. 'check', have[at])
  elseif tonumber(have[at + 1]) > NOW + math.max(every, time) then
    redis.call('ZADD', P .. 'check', NOW + every, have[at]) -- the clock was set back, or looks are more frequent now
  end
  known[have[at]] = true
end
local new = 0
for at = 4, #ARGV do
  if not known[ARGV[at]] then
    redis.call('ZADD', P .. 'check', NOW + math.floor(new * every / (#ARGV - 3)), ARGV[at])
    new = new + 1
  end
end
local due = redis.call('ZRANGEBYSCORE', P .. 'check', '-inf', NOW, 'LIMIT', 0, most)
for _, store in ipairs(due) do redis.call('ZADD', P .. 'check', NOW + time, store) end
return due
