-- The first run of a handler for an event.
-- When a run is due, and its delay: with ">ms" as `start`, that long after the event's arrival, but at most that long from
-- now, since the receiver's clock may be ahead. Anything else is due at once.
local function due_at(start, received)
  local delay = tonumber(string.match(start, '^>(%d+)$') or 0)
  return delay > 0 and math.min(tonumber(received or 0) or 0, NOW) + delay or 0, delay
end

-- Creates a run; its field is appended to `fields`. A run that is due later waits. With a token the run is leased, and
-- the result is true. Without one, or if it may not begin at once, it is made ready.
local function begin_run(id, store, handler, queue, start, received, token, lease_end, fields)
  local due, delay = due_at(start, received)
  if lanes[handler] ~= queue then redis.call('HSET', P .. 'lanes', handler, queue) end
  lanes[handler] = queue
  fields[#fields + 1] = 'r:' .. handler
  if due > NOW then
    fields[#fields + 1] = 'later 0 0 ' .. queue .. ' ' .. delay
    batch('ZADD', P .. 'later', due, item_of(id, handler))
    return false
  end
  if token and may_begin(handler) then
    fields[#fields + 1] = 'leased 0 0 ' .. queue .. ' ' .. token
    batch('ZADD', P .. 'leased', lease_end, item_of(id, handler))
    return true
  end
  fields[#fields + 1] = 'ready 0 0 ' .. queue .. ' '
  make_ready(id, handler, store)
  wake(queue)
  return false
end
