#!lua flags=allow-oom
-- route: give an event a run for each handler that wants it.
-- ARGV  1 token  2 id  3 version of the declarations it was routed by  4 lease (ms)
--       then for each handler: handler, queue, and "1" to lease it to the caller, "0" to leave it ready, or ">ms": it
--       is due so long after the event's arrival
-- gives {"routed", the handlers leased to the caller...}, or {"unhandled"}, {"stale"} (the token no longer fits) or
--       {"reroute"} (the declarations have changed). A paused handler's run is left ready, whatever was asked.
local token, id, lease = ARGV[1], ARGV[2], tonumber(ARGV[4])
local e = P .. 'e:' .. id
local event = read_run(id, '')
if not event or event.state ~= 'leased' or event.token ~= token then
  redis.call('HINCRBY', P .. 'n', 'stale', 1)
  return { 'stale' }
end
if ARGV[3] ~= (redis.call('GET', P .. 'declv') or '0') then return { 'reroute' } end

local store = redis.call('HGET', e, 'store')
local open, had, queues, answer = 0, 0, {}, { 'routed' }
local anything_paused = redis.call('EXISTS', P .. 'paused') == 1
redis.call('HDEL', e, 'r:')
redis.call('ZREM', P .. 'leased', id)
for at = 5, #ARGV, 3 do
  local handler, queue, mine = ARGV[at], ARGV[at + 1], ARGV[at + 2] == '1'
  local delay = tonumber(string.match(ARGV[at + 2], '^>(%d+)$') or 0)
  if redis.call('HEXISTS', e, 'r:' .. handler) == 1 then
    had = had + 1
  else
    open = open + 1
    if mine and anything_paused and redis.call('SISMEMBER', P .. 'paused', 'handler:' .. handler) == 1 then mine = false end
    redis.call('HSET', P .. 'lanes', handler, queue)
    -- Never later than the delay from now: the receiver's clock may be ahead of ours.
    local due = delay > 0 and math.min(tonumber(redis.call('HGET', e, 'received') or 0), NOW) + delay or 0
    local run = { state = mine and 'leased' or due > NOW and 'later' or 'ready', attempts = 0, losses = 0,
      queue = queue, token = mine and token or '' }
    write_run(id, handler, run)
    if due > NOW then
      redis.call('ZADD', P .. 'later', due, item_of(id, handler))
    elseif mine then
      answer[#answer + 1] = handler
      redis.call('ZADD', P .. 'leased', NOW + lease, item_of(id, handler))
    else
      make_ready(id, handler, store)
      queues[queue] = true
    end
  end
end
for queue in pairs(queues) do wake(queue) end
if open > 0 then
  redis.call('HINCRBY', e, 'open', open - 1)
  return answer
end
-- No new run: the event to be routed was an open item of its own, and that ends here.
end_run(id, store, false)
if had == 0 then
  local probe = redis.call('HGET', e, 'topic') == 'storehooks-probe.sent' -- our own: no handler is meant to want it
  redis.call('HSET', e, 'reason', probe and 'probe' or 'unhandled')
  if not probe then count('unhandled', store, 1) end
  return { 'unhandled' }
end
return answer
