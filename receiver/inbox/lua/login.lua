#!lua flags=allow-oom
-- login: begin a session of the console, make a link to it, or count an attempt to log in. Also at maxmemory.
-- ARGV  1 "session", "link" or "attempt"  2 key  3 how long it is stored (s)
--       session: 4 role  5 proof     attempt: 4 free attempts  5 longest wait (ms)
-- Returns 0; for an attempt that comes too early, how long to wait (ms).
return function()
  local kind, key, seconds = ARGV[1], ARGV[2], tonumber(ARGV[3])
  if kind == 'session' then
    redis.call('HSET', P .. 'session:' .. key, 'role', ARGV[4], 'proof', ARGV[5])
    redis.call('EXPIRE', P .. 'session:' .. key, seconds)
    return 0
  elseif kind == 'link' then
    redis.call('SET', P .. 'link:' .. key, 1, 'EX', seconds)
    return 0
  end
  local wait = redis.call('PTTL', P .. 'wait:' .. key)
  if wait > 0 then
    return wait
  end
  local over = redis.call('INCR', P .. 'login:' .. key) - tonumber(ARGV[4])
  redis.call('EXPIRE', P .. 'login:' .. key, seconds)
  if over > 0 then
    redis.call('SET', P .. 'wait:' .. key, 1, 'PX', math.min(tonumber(ARGV[5]), 500 * 2 ^ math.min(over, 16)))
  end
  return 0
end
