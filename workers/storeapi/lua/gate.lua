-- gate: one place in the queue of a store's rate limit, by the server's clock. See keys.py.
-- `tat` is when the next call is due if calls come evenly; a call may come up to burst - 1 intervals before it.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst, longest, hold = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local have = redis.call('HMGET', KEYS[1], 'tat', 'held')
local tat, held = tonumber(have[1] or 0), tonumber(have[2] or 0)
local function keep(name, value)
  redis.call('HSET', KEYS[1], name, string.format('%.0f', value))
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), math.ceil((value - now) / 1000) + 60000))
end
if hold > 0 then
  if now + hold > held then keep('held', now + hold) end
  return 0
end
local at = math.max(tat, held, now)
local wait = math.max(at - (burst - 1) * interval, held, now) - now
if wait > longest then return -wait end
if interval > 0 then keep('tat', at + interval) end
return wait
