#!lua flags=allow-oom
-- route: give events a run for each handler that wants them.
-- ARGV  1 version of the declarations they were routed by  2 lease (ms)
--       then for each event: token, id, how many handlers, and for each of these: handler, queue, and "1" to lease it
--       to the caller, "0" to leave it ready, or ">ms": it is due so long after the event's arrival
-- gives for each event {"routed", the handlers leased to the caller...}, or {"unhandled"}, {"stale"} (the token no
--       longer fits, or its record is damaged and it was quarantined) or {"reroute"} (the declarations have changed). A
--       run that may not begin at once, because its handler is paused or shut or an older run of it waits, is left
--       ready, whatever was asked.
local lease_end, up_to_date
local PROBE = 'storehooks-probe.sent' -- our own: no handler is meant to want it

-- The event as it is, in one reading: to be routed or not, its store, its open runs, when it came, its topic, and the
-- runs it has already.
local function read_event(id, first, many)
  local fields = { 'r:', 'store', 'open', 'received', 'topic' }
  for at = 0, many - 1 do fields[#fields + 1] = 'r:' .. ARGV[first + 3 * at] end
  local found = redis.pcall('HMGET', P .. 'e:' .. id, unpack(fields))
  return not found.err and found or {}
end

local function route(token, id, first, many)
  local e, now = P .. 'e:' .. id, read_event(id, first, many)
  local event = parse_run(now[1])
  if not event or event.state ~= 'leased' or event.token ~= token then
    redis.call('HINCRBY', P .. 'n', 'stale', 1)
    was_only_late(id, '', token)
    return { 'stale' }
  end
  if not up_to_date then return { 'reroute' } end
  local store, open, had, answer, fields = now[2], tonumber(now[3] or 1), 0, { 'routed' }, {}
  gather('ZREM', P .. 'leased', id)
  if not store or not open then
    quarantine(id, 'its record names no store, or no number of open runs')
    return { 'stale' }
  end
  for at = 0, many - 1 do
    local part = first + 3 * at
    if now[6 + at] then
      had = had + 1
    else
      local handler, how = ARGV[part], ARGV[part + 2]
      local due, wanted = due_at(how, now[4]), how == '1' and token
      if begin_run(id, store, handler, ARGV[part + 1], due, wanted, lease_end, fields) then
        answer[#answer + 1] = handler
      end
    end
  end
  redis.call('HDEL', e, 'r:')
  if #fields > 0 then
    redis.call('HSET', e, 'open', open + #fields / 2 - 1, unpack(fields))
    return answer
  end
  -- No new run: the event to be routed was an open item of its own, and that ends here.
  end_run(id, store, false)
  if had == 0 then
    redis.call('HSET', e, 'reason', now[5] == PROBE and 'probe' or 'unhandled')
    if now[5] ~= PROBE then count('unhandled', store, 1) end
    return { 'unhandled' }
  end
  return answer
end

return function()
  lease_end = NOW + tonumber(ARGV[2])
  up_to_date = ARGV[1] == (redis.call('GET', P .. 'declarations_version') or '0')

  local answers, at = {}, 3
  while at <= #ARGV do
    local many = tonumber(ARGV[at + 2])
    answers[#answers + 1] = route(ARGV[at], ARGV[at + 1], at + 3, many)
    at = at + 3 + 3 * many
  end
  return answers
end
