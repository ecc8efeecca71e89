#!lua flags=allow-oom
-- retire: a handler is gone for good. Its declarations go, and its waiting runs end as failures, in slices.
-- ARGV  1 handler  2 how many at most  3 detail (JSON)
-- gives how many became failures
local handler, ended = ARGV[1], 0
for _, name in ipairs(redis.call('HKEYS', P .. 'decl')) do
  if string.match(name, '^([^@]*)@') == handler then
    redis.call('HDEL', P .. 'decl', name)
    redis.call('HDEL', P .. 'seen', name)
    redis.call('INCR', P .. 'declv')
  end
end
for _, item in ipairs(redis.call('ZRANGE', P .. 'ready:' .. handler, 0, tonumber(ARGV[2]) - 1)) do
  local id = split(item)
  local run = read_run(id, handler)
  redis.call('ZREM', P .. 'ready:' .. handler, item)
  if run and run.state == 'ready' then
    fail_run(id, handler, run, redis.call('HGET', P .. 'e:' .. id, 'store'), ARGV[3])
    ended = ended + 1
  end
end
return ended
