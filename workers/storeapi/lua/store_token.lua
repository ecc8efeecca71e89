-- store_token: store the result of fetching a token, and free the lock. See keys.py.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
if ARGV[2] == '' then
  redis.call('SET', KEYS[3], ARGV[3], 'PX', ARGV[4])
  return 1
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local refresh, expires = now + ARGV[4], now + ARGV[5]
redis.call('HSET', KEYS[1], 'value', ARGV[2], 'fingerprint', ARGV[3], 'refresh', refresh, 'expires', expires)
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return 1
