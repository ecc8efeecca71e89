-- take_slot: one slot of a rate limit, by the server's clock. See keys.py.
-- `tat` (theoretical arrival time) is when the next call is due if calls come evenly. A call may come up to
-- burst - 1 intervals before it.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst, max_wait, pause = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
-- A time that is further ahead than when it was written: the clock was set back.
local function read(name)
  local have = redis.call('HMGET', KEYS[1], name, name .. '_ahead')
  return math.min(tonumber(have[1] or 0), now + tonumber(have[2] or 0))
end
local tat, paused_until = read('tat'), read('paused_until')
local function save(name, value)
  redis.call('HSET', KEYS[1], name, string.format('%.0f', value), name .. '_ahead', string.format('%.0f', value - now))
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), math.ceil((value - now) / 1000) + 60000))
end
if pause > 0 then
  if now + pause > paused_until then save('paused_until', now + pause) end
  return 0
end
local at = math.max(tat, paused_until, now)
local wait = math.max(at - (burst - 1) * interval, paused_until, now) - now
if wait > max_wait then return -wait end
if interval > 0 then save('tat', at + interval) end
return wait
