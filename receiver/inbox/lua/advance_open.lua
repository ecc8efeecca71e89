#!lua flags=allow-oom
-- advance_open: move `open_since` on to the oldest open event, over a slice of those that are not open any more.
-- ARGV  1 maximum number of events
-- returns how many were passed; the maximum if there may be more
return function()
  local slice, key = tonumber(ARGV[1]), P .. 'open_since'
  local known = redis.pcall('GET', key)
  local since = type(known) == 'string' and tonumber(known) or 0 -- a damaged key is written again
  local last = redis.pcall('GET', P .. 'accepted_until')
  if type(last) == 'string' and since > (tonumber(last) or 0) + 1 then since = 0 end -- the clock was set back meanwhile
  local found = redis.call('ZRANGEBYSCORE', P .. 'ix', since, '+inf', 'WITHSCORES', 'LIMIT', 0, slice)
  for at = 1, #found, 2 do
    if redis.pcall('HGET', P .. 'e:' .. found[at], 'state') == 'open' then
      redis.call('SET', key, found[at + 1])
      return (at - 1) / 2
    end
  end
  if #found > 0 then redis.call('SET', key, tonumber(found[#found]) + 1) end
  return #found / 2
end
