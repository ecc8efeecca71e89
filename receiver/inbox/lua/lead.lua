#!lua flags=allow-oom
-- lead: be the housekeeper that does the work for a while. At maxmemory too: retention is what frees memory.
-- ARGV  1 name  2 for how long (ms)
-- gives 1 if it is the caller
return function()
  local leader = redis.call('GET', P .. 'leader')
  if leader and leader ~= ARGV[1] then return 0 end
  redis.call('SET', P .. 'leader', ARGV[1], 'PX', ARGV[2])
  return 1
end
