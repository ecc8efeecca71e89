#!lua flags=allow-oom
-- resume: let runs of a handler or a store begin again, in their order. A store's held work returns in slices. A limit that a
-- handler has closed by Busy is open again.
-- ARGV  1 "handler:NAME" or "store:NAME"  2 maximum number of held items
-- returns how many returned; while that equals the maximum there may be more
return function()
  local kind, name = string.match(ARGV[1], '^(%a+):(.*)$')
  redis.call('SREM', P .. 'paused', ARGV[1])
  if kind == 'store' then
    -- Recorded, so that the next tick continues where a command that died had stopped.
    local first = redis.call('SADD', P .. 'resuming', name) == 1
    return return_held(name, tonumber(ARGV[2]), first)
  end
  redis.call('HDEL', P .. 'busy', limit_of(name) or 'h:' .. name)
  if redis.call('EXISTS', P .. 'ready:' .. name) == 1 then wake(redis.call('HGET', P .. 'lanes', name) or DEFAULT_QUEUE) end
  return 0
end
