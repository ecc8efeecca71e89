#!lua flags=allow-oom
-- retire: a handler is gone for good. Its declarations go, and its waiting runs end as failures, in slices.
-- ARGV  1 handler  2 how many at most  3 detail (JSON)
-- gives how many became failures
local handler = ARGV[1]
for _, name in ipairs(redis.call('HKEYS', P .. 'decl')) do
  if string.match(name, '^([^@]*)@') == handler then
    redis.call('HDEL', P .. 'decl', name)
    redis.call('HDEL', P .. 'seen', name)
    redis.call('INCR', P .. 'declv')
  end
end
return end_waiting(handler, tonumber(ARGV[2]), ARGV[3])
