-- The first run of a handler for an event.
-- Creates a run; its fields are appended to `fields`. With `order` (see order.lua) it is an ordered run, which is queued if
-- others of its key come first. A run that is due later waits. With a token the run is leased, and the result is its handler;
-- of an ordered run with its order, after a space. Without a token, or if it may not begin at once, it is made ready.
local function begin_run(id, store, handler, queue, start, received, token, lease_end, fields, order, topic, resource)
  local delay = tonumber(string.match(start, '^>(%d+)$') or 0)
  local due = delay > 0 and due_at(delay, received) or 0
  if lanes[handler] ~= queue then redis.call('HSET', P .. 'lanes', handler, queue) end
  lanes[handler] = queue
  local mark = order ~= '' and order_mark(order, id, store, topic, resource)
  if mark then fields[#fields + 1], fields[#fields + 2] = 'k:' .. handler, mark end
  fields[#fields + 1] = 'r:' .. handler
  local is_leased = token and due <= NOW and may_begin(handler)
  if mark and not join_order(id, handler, mark, store, is_leased and string.sub(mark, 1, 1) ~= 'm') then
    fields[#fields + 1] = 'queued 0 0 ' .. queue .. ' ' .. (delay > 0 and delay or '')
    return nil
  end
  if due > NOW then
    fields[#fields + 1] = 'later 0 0 ' .. queue .. ' ' .. delay
    batch('ZADD', P .. 'later', due, item_of(id, handler))
    return nil
  end
  if is_leased then
    fields[#fields + 1] = 'leased 0 0 ' .. queue .. ' ' .. token
    batch('ZADD', P .. 'leased', lease_end, item_of(id, handler))
    return mark and handler .. ' ' .. lease_text(mark) or handler
  end
  fields[#fields + 1] = 'ready 0 0 ' .. queue .. ' '
  make_ready(id, handler, store)
  wake(queue)
  return nil
end
