#!lua flags=allow-oom
-- route: create a run of each event for each handler that wants it.
-- ARGV  1 version of the declarations they were routed by  2 lease (ms)
--       3 for how long after the first declaration handlers may not be declared yet (ms)
--       then for each event: token, id, how many handlers, and for each of these: handler, queue, "1" to lease it
--       to the caller, "0" to leave it ready, or ">ms": due that long after the event's arrival; and its order or ""
-- returns for each event {"routed", the handlers leased to the caller...}, or {"unhandled"}, {"stale"} (the token does not
--       match, or the record is damaged and was quarantined), {"reroute"} (the declarations have changed) or
--       {"postponed"} (no handler wants it, and some may not be declared yet). After a handler whose run is ordered follow
--       a space and its order, as in claim.lua. A run that may not begin at once, because its handler is paused or busy or
--       an older run of it waits, is left ready in any case.
local PARTS = 4
local LOOK_AGAIN = 5000 -- ms: as often as workers declare their handlers
local lease_end, up_to_date, wait_ms
local PROBE = 'storehooks-probe.sent' -- our own: it needs no handler

-- The event's record in one read: its routing state, store, open runs, time of arrival, topic, resource, and the runs it
-- has already.
local function read_event(id, first, many)
  local fields = { 'r:', 'store', 'open', 'received', 'topic', 'resource' }
  for at = 0, many - 1 do fields[#fields + 1] = 'r:' .. ARGV[first + PARTS * at] end
  return read_fields(id, unpack(fields)) or {}
end

-- How long until an event that no handler wants is looked at again; 0 if it can be settled. At a server that is new, or
-- was emptied, workers with other handlers may not have declared them yet.
local function wait_for_handlers()
  if not wait_ms then
    local since = tonumber(redis.pcall('GET', P .. 'declared_since')) or NOW
    wait_ms = math.max(0, math.min(LOOK_AGAIN, since + tonumber(ARGV[3]) - NOW))
  end
  return wait_ms
end

local function postpone(id, event)
  event.state, event.token = 'later', wait_ms
  write_run(id, '', event)
  batch('ZADD', P .. 'later', NOW + wait_ms, id)
  return { 'postponed' }
end

local function route(token, id, first, many)
  local e, now = P .. 'e:' .. id, read_event(id, first, many)
  local event = parse_run(now[1])
  if not event or event.state ~= 'leased' or event.token ~= token then
    redis.call('HINCRBY', P .. 'n', 'stale', 1)
    forgive_if_late(id, '', token)
    return { 'stale' }
  end
  if not up_to_date then return { 'reroute' } end
  local store, open, had, made, answer, fields = now[2], tonumber(now[3] or 1), 0, 0, { 'routed' }, {}
  batch('ZREM', P .. 'leased', id)
  if not store or not open then
    quarantine(id, 'its record names no store, or no number of open runs')
    return { 'stale' }
  end
  note_routed(id, store)
  for at = 0, many - 1 do
    local part = first + PARTS * at
    if now[7 + at] then
      had = had + 1
    else
      local handler, start = ARGV[part], ARGV[part + 2]
      local wanted = start == '1' and token
      made = made + 1
      answer[#answer + 1] = begin_run(id, store, handler, ARGV[part + 1], start, now[4], wanted, lease_end, fields,
        ARGV[part + 3], now[5], now[6])
    end
  end
  if #fields == 0 and had == 0 and now[5] ~= PROBE and wait_for_handlers() > 0 then return postpone(id, event) end
  redis.call('HDEL', e, 'r:')
  if #fields > 0 then
    redis.call('HSET', e, 'open', open + made - 1, unpack(fields))
    return answer
  end
  -- No new run: the item of the event to be routed ends here.
  end_run(id, store, false)
  if had == 0 then
    redis.call('HSET', e, 'reason', now[5] == PROBE and 'probe' or 'unhandled')
    if now[5] ~= PROBE then count('unhandled', store, 1) end
    return { 'unhandled' }
  end
  return answer
end

return function()
  require_sets('leased', 'later')
  lease_end, wait_ms = NOW + tonumber(ARGV[2]), nil
  up_to_date = ARGV[1] == (redis.call('GET', P .. 'declarations_version') or '0')

  local answers, at = {}, 4
  while at <= #ARGV do
    local many = tonumber(ARGV[at + 2])
    answers[#answers + 1] = route(ARGV[at], ARGV[at + 1], at + 3, many)
    at = at + 3 + PARTS * many
  end
  release_heads_of_routed()
  return answers
end
