#!lua flags=allow-oom
-- resume: let the work of a handler or a store begin again, in its order; a store's held work comes back in slices.
-- ARGV  1 "handler:NAME" or "store:NAME"  2 how many held items at most
-- gives how many came back; as long as that equals the slice there may be more
local kind, name = string.match(ARGV[1], '^(%a+):(.*)$')
redis.call('SREM', P .. 'paused', ARGV[1])
local back = 0
if kind == 'store' then
  for _, item in ipairs(redis.call('ZRANGE', P .. 'held:' .. name, 0, tonumber(ARGV[2]) - 1)) do
    local id, handler = split(item)
    local run = read_run(id, handler)
    redis.call('ZREM', P .. 'held:' .. name, item)
    if run and run.state == 'held' then
      run.state = 'ready'
      write_run(id, handler, run)
      make_ready(id, handler, name)
      wake(run.queue)
      back = back + 1
    end
  end
elseif redis.call('EXISTS', P .. 'ready:' .. name) == 1 then
  wake(redis.call('HGET', P .. 'lanes', name) or 'default')
end
return back
