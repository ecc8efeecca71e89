#!lua flags=allow-oom
-- lead: become, or stay, the housekeeper that does the work. Also at maxmemory, because retention frees memory.
-- ARGV  1 name  2 for how long (ms)
-- returns 1 if the caller leads
return function()
  require_format()
  local leader = redis.call('GET', P .. 'leader')
  if leader and leader ~= ARGV[1] then
    -- Longer than it was written for: the clock was set back, and the leader may be dead.
    if redis.call('PTTL', P .. 'leader') > tonumber(ARGV[2]) then redis.call('PEXPIRE', P .. 'leader', ARGV[2]) end
    return 0
  end
  redis.call('SET', P .. 'leader', ARGV[1], 'PX', ARGV[2])
  return 1
end
