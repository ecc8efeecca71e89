#!lua flags=allow-oom
-- resume: let the work of a handler or a store begin again, in its order; a store's held work comes back in slices.
-- ARGV  1 "handler:NAME" or "store:NAME"  2 how many held items at most
-- gives how many came back; as long as that equals the slice there may be more
return function()
  local kind, name = string.match(ARGV[1], '^(%a+):(.*)$')
  redis.call('SREM', P .. 'paused', ARGV[1])
  if kind == 'store' then
    -- Remembered, so that the next tick goes on where a command that died had stopped.
    local first = redis.call('SADD', P .. 'resuming', name) == 1
    return bring_back(name, tonumber(ARGV[2]), first)
  end
  if redis.call('EXISTS', P .. 'ready:' .. name) == 1 then wake(redis.call('HGET', P .. 'lanes', name) or 'default') end
  return 0
end
