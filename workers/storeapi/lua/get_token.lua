-- get_token: the shared token, or the task of fetching it. See keys.py.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local have = redis.call('HMGET', KEYS[1], 'value', 'fingerprint', 'refresh', 'expires')
local complete = have[1] and have[2] and have[3] and have[4] -- otherwise damaged: fetched again
local usable = complete and have[2] ~= ARGV[3] and tonumber(have[4]) > now
if usable and tonumber(have[3]) > now then
  return { 'use', have[1], tonumber(have[3]) - now }
end
for at = 2, 3 do -- they expire sooner than this: the clock was set back
  local longest = ARGV[at == 2 and 2 or 4]
  if redis.call('PTTL', KEYS[at]) > tonumber(longest) then redis.call('PEXPIRE', KEYS[at], longest) end
end
local error = redis.call('GET', KEYS[3])
if not error and redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return { 'fetch', usable and 1 or 0 }
end
if usable then return { 'use', have[1], 250 } end -- another process is fetching the next one; this one is still valid
if error then return { 'error', error, redis.call('PTTL', KEYS[3]) } end
return { 'wait' }
