#!lua flags=allow-oom
-- route: give events a run for each handler that wants them.
-- ARGV  1 version of the declarations they were routed by  2 lease (ms)
--       then for each event: token, id, how many handlers, and for each of these: handler, queue,
--       "1" to lease it to the caller or "0" to leave it ready
-- gives for each event {"routed", the handlers leased to the caller...}, or {"unhandled"}, {"stale"} (the token no
--       longer fits) or {"reroute"} (the declarations have changed). A paused handler's run is left ready, whatever
--       was asked.
local lease_end = NOW + tonumber(ARGV[2])
local up_to_date = ARGV[1] == (redis.call('GET', P .. 'declv') or '0')
local anything_paused = redis.call('EXISTS', P .. 'paused') == 1
local lanes, paused = {}, {}

local function is_paused(handler)
  if anything_paused and paused[handler] == nil then
    paused[handler] = redis.call('SISMEMBER', P .. 'paused', 'handler:' .. handler) == 1
  end
  return paused[handler]
end

local function note_lane(handler, queue)
  if lanes[handler] ~= queue then redis.call('HSET', P .. 'lanes', handler, queue) end
  lanes[handler] = queue
end

-- The event as it is, in one reading: to be routed or not, its store, its open runs, and the runs it has already.
local function read_event(id, first, many)
  local fields = { 'r:', 'store', 'open' }
  for at = 0, many - 1 do fields[#fields + 1] = 'r:' .. ARGV[first + 3 * at] end
  local found = redis.pcall('HMGET', P .. 'e:' .. id, unpack(fields))
  return not found.err and found or {}
end

-- The new run of a handler: its field goes to `fields`, and the run to ready or to the caller's leases.
local function begin(id, store, token, handler, queue, mine, fields, answer)
  note_lane(handler, queue)
  fields[#fields + 1] = 'r:' .. handler
  if mine and not is_paused(handler) then
    fields[#fields + 1] = 'leased 0 0 ' .. queue .. ' ' .. token
    gather('ZADD', P .. 'leased', lease_end, item_of(id, handler))
    answer[#answer + 1] = handler
  else
    fields[#fields + 1] = 'ready 0 0 ' .. queue .. ' '
    make_ready(id, handler, store)
    wake(queue)
  end
end

local function route(token, id, first, many)
  local e, now = P .. 'e:' .. id, read_event(id, first, many)
  local event = parse_run(now[1])
  if not event or event.state ~= 'leased' or event.token ~= token then
    redis.call('HINCRBY', P .. 'n', 'stale', 1)
    return { 'stale' }
  end
  if not up_to_date then return { 'reroute' } end
  local store, had, answer, fields = now[2], 0, { 'routed' }, {}
  gather('ZREM', P .. 'leased', id)
  for at = 0, many - 1 do
    local part = first + 3 * at
    if now[4 + at] then
      had = had + 1
    else
      begin(id, store, token, ARGV[part], ARGV[part + 1], ARGV[part + 2] == '1', fields, answer)
    end
  end
  redis.call('HDEL', e, 'r:')
  if #fields > 0 then
    redis.call('HSET', e, 'open', tonumber(now[3] or 1) + #fields / 2 - 1, unpack(fields))
    return answer
  end
  -- No new run: the event to be routed was an open item of its own, and that ends here.
  end_run(id, store, false)
  if had == 0 then
    redis.call('HSET', e, 'reason', 'unhandled')
    count('unhandled', store, 1)
    return { 'unhandled' }
  end
  return answer
end

local answers, at = {}, 3
while at <= #ARGV do
  local many = tonumber(ARGV[at + 2])
  answers[#answers + 1] = route(ARGV[at], ARGV[at + 1], at + 3, many)
  at = at + 3 + 3 * many
end
return answers
