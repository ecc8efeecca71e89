#!lua
-- accept: store events, each once, and wake a worker.
-- ARGV  1 the window for repeats (ms)  2 how many event names of a store are counted one by one
--       3 whether all of them are one batch (1 or 0): then all are stored, or none; "write" without any delivery
--       then for each delivery: id, store, topic, theirs, delivery, resource, received (ms), occurred, source, data_path,
--       headers and body, repeat mark or "", quota of open events (0 = none), why it is unreadable (JSON) or "",
--       digest of the body, first id or "", how long it waited on its host (ms), 1 if other bodies count, fingerprint of the
--       secret that it was signed with, digest of its resource or ""
-- returns for each {"accepted" | "duplicate" | "full", id}, or {"failed", the error}
-- No allow-oom: at maxmemory new events are refused while workers drain.
--
-- Where the body is part of a delivery's identity, the first body under a delivery id is stored under the first id, and
-- only another body under the same delivery id gets an id of its own. So a second body is noticed by the record of the
-- first, without another key, and only a second body costs another lookup. The record of the first may be removed by age
-- before that of the second. Where the id counts alone, another event that has it is stored under the other id.
local FIRST, PARTS = 4, 20
local TO_BE_ROUTED = 'ready 0 0 ' .. DEFAULT_QUEUE .. ' '
local TOO_LARGE = '9007199254740992' -- 2^53, from where Lua cannot add one to a number: no time
-- What writes an event. A user who may run only some of it would store a part, and the next delivery would be a duplicate.
local WAKE_UPS = 'rq:queue:' .. rq_queue(DEFAULT_QUEUE)
local WRITES = { { 'SET', '', '' }, { 'HSET', '', '', '' }, { 'HINCRBY', '', '', '0' }, { 'ZADD', '', '0', '' },
  { 'LLEN', WAKE_UPS }, { 'SADD', 'rq:queues', '' }, { 'RPUSH', WAKE_UPS, '' } }
local window, max_names, open_before, names, accepted_at, new, newest, linked, contents, times, last

-- A duplicate also writes, so that waiting for replicas covers the first write. One with the same time of arrival as the
-- event, or as its last duplicate, of an earlier call is not counted: its receiver sends it again, because the first time was
-- not acknowledged.
-- The body of an event that has not ended well is stored again if it was lost, so that the event can be replayed; but not
-- if it was erased.
local function duplicate(of, store, received, body)
  local id = real_id(of)
  local e = P .. 'e:' .. id
  local times = new[id] and {} or redis.pcall('HMGET', e, 'received', 'repeated', 'state', 'erased')
  if body and times[3] and times[3] ~= 'settled' and not times[4] then redis.call('SET', P .. 'b:' .. id, body, 'NX') end
  if tonumber(times[1]) == received or tonumber(times[2]) == received then
    redis.pcall('HINCRBY', P .. 'n', 'duplicates|' .. store, 0) -- a damaged counter must not cost a part of a batch
  else
    if new[id] or times[1] then redis.call('HSET', e, 'repeated', string.format('%.0f', received)) end
    new[id] = true
    count('duplicates', store, 1)
  end
  return { 'duplicate', id }
end

local function is_full(store, quota)
  if quota == 0 then return false end
  if not open_before[store] then open_before[store] = tonumber(redis.call('HGET', P .. 'n', 'open|' .. store) or 0) end
  return open_before[store] + (counted['open|' .. store] or 0) >= quota
end

-- Reserves acceptance times for the events of this call: the server's time in microseconds, after every earlier one, even
-- if the clock was set back. If the last one is lost or damaged, the newest event has it. Returns the time before them.
local function reserve_times(many)
  local key, now = P .. 'accepted_until', tonumber(clock[1]) * 1000000 + tonumber(clock[2])
  local found = redis.pcall('SET', key, string.format('%.0f', now + many), 'GET')
  local last = type(found) == 'string' and string.match(found, '^%d+$') and tonumber(found)
  if last and last < now then return now end
  if not last or last >= tonumber(TOO_LARGE) then
    local newest = redis.pcall('ZRANGE', P .. 'ix', '(' .. TOO_LARGE, 0, 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
    last = tonumber(newest[2] or 0)
  end
  last = math.max(last, now)
  redis.call('SET', key, string.format('%.0f', last + many))
  return last
end

-- The time that an event is accepted at. An exact number as an argument of a command; as a text Lua would round it.
local function next_time()
  accepted_at = (accepted_at or reserve_times((#ARGV - FIRST + 1) / PARTS)) + 1
  return accepted_at
end

local function note_name(store, name, received)
  if name == '' then return end
  local own = names[store]
  if not own then
    own = {}
    names[store] = own
  end
  local seen = own[name]
  if not seen then
    own[name] = { 1, received }
  else
    seen[1], seen[2] = seen[1] + 1, math.max(seen[2], received)
  end
end

local function write_names(store, own)
  for name, seen in pairs(own) do count_name(store, name, seen[1], seen[2], max_names) end
end

-- Whether a delivery is the first one with another body: both have the same topic, resource and time. If the store gives
-- no time, this is not known, and an update must not be lost.
local function is_altered(id, at)
  local theirs, resource, occurred, moved, same =
    unpack(redis.pcall('HMGET', P .. 'e:' .. real_id(id), 'theirs', 'resource', 'occurred', 'moved', 'same'))
  moved = moved or same -- one that was erased
  if moved then return moved ~= '' and moved == sameness(ARGV[at + 3], ARGV[at + 5], ARGV[at + 7]) end
  return theirs == ARGV[at + 3] and resource == ARGV[at + 5] and occurred == ARGV[at + 7] and occurred ~= ''
end

-- The id of an event whose delivery has the id of another event; the same as in receiver/contract/event.py.
local function other_event_id(id, digest)
  local named = string.sub(redis.sha1hex(id .. ' ' .. digest), 1, 26)
  return (string.gsub(named, '[0189]', { ['0'] = 'g', ['1'] = 'h', ['8'] = 'i', ['9'] = 'j' }))
end

local function content_at(at)
  return content_of(ARGV[at + 3], ARGV[at + 14])
end

-- Whether the resource has had another event since this one: then an equal body is a state that has returned. The events of
-- an equal batch are no others. If the newest one has left Redis, it is not known, and not assumed. If it is newer by the
-- store's own time, the equal body was only sent again.
local function has_changed_since(id, at)
  local resource = ARGV[at + 19]
  local found, occurred = contents[resource], times[resource]
  if not found and newest[resource] then found, occurred = content_after(id, newest[resource]) end
  if found and ARGV[at + 7] ~= '' and occurred > ARGV[at + 7] then return false end
  return found and found ~= content_at(at) and found ~= last[resource]
end

-- Returns the event that a delivery is a duplicate of, or nil, and the id that it is stored under if it is new; then
-- whether another body was accepted under its delivery id, and when it arrived. Changes nothing.
local function judge(at)
  local id, store, mark, digest, first_id = ARGV[at], ARGV[at + 1], ARGV[at + 11], ARGV[at + 14], ARGV[at + 15]
  local second_body, arrived = false, nil
  if first_id ~= '' then
    if redis.call('EXISTS', P .. 'e:' .. first_id, P .. 'e:' .. id) == 0 then
      id = first_id
    elseif digest_of(first_id) == digest then
      return first_id
    elseif ARGV[at + 17] == '1' and is_altered(first_id, at) then
      return first_id, nil, true
    else
      second_body = true
    end
  end
  if id ~= first_id and redis.call('EXISTS', P .. 'e:' .. id) == 1 then
    if ARGV[at + 17] == '0' or digest_of(id) == digest then return id end
    if is_altered(id, at) then return id, nil, true end
    id, second_body = other_event_id(id, digest), true
    if redis.call('EXISTS', P .. 'e:' .. id) == 1 then return id end
  end
  if mark ~= '' then
    arrived = NOW - tonumber(ARGV[at + 16])
    local first = repeat_of(store, mark, tonumber(ARGV[at + 6]), arrived, window)
    if first and not has_changed_since(first, at) then return first end
  end
  return nil, id, second_body, arrived
end

-- When the newest event of each resource in this call was accepted, read in one command: {digest = time}.
local function read_newest()
  local digests, found = {}, {}
  for at = FIRST, #ARGV, PARTS do
    if ARGV[at + 19] ~= '' then digests[#digests + 1] = ARGV[at + 19] end
  end
  local times = #digests > 0 and redis.pcall('HMGET', P .. 'resources', unpack(digests, 1, math.min(#digests, 2000))) or {}
  for place, time in ipairs(times) do found[digests[place]] = time or nil end
  return found
end

-- Links an event to the one of its resource before it; see shared/resources.lua.
local function link(at, accepted, fields)
  local digest = ARGV[at + 19]
  if digest == '' then return end
  if newest[digest] then fields[#fields + 1], fields[#fields + 2] = 'earlier', newest[digest] end
  newest[digest], contents[digest], times[digest] = accepted, content_at(at), ARGV[at + 7]
  linked[#linked + 1], linked[#linked + 2] = digest, accepted
end

local function require_rights()
  for _, one in ipairs(WRITES) do
    local key = one[2] == '' and P or one[2]
    if not redis.acl_check_cmd(one[1], key, unpack(one, 3)) then
      error("NOPERM this user has no permissions to run the '" .. string.lower(one[1]) .. "' command", 0)
    end
  end
end

local function accept(at)
  local store, received, body, mark, digest = ARGV[at + 1], tonumber(ARGV[at + 6]), ARGV[at + 10], ARGV[at + 11], ARGV[at + 14]
  local of, id, second_body, arrived = judge(at)
  if of then
    if second_body then count('altered', store, 1) end
    return duplicate(of, store, received, not second_body and body)
  end
  if is_full(store, tonumber(ARGV[at + 12])) then return { 'full', id } end

  local unreadable = ARGV[at + 13]
  -- Before anything is written, because it reads and may fail: an event that is stored but not ready would turn the next
  -- delivery into a duplicate.
  if unreadable == '' then make_ready(id, '', store) end
  redis.call('SET', P .. 'b:' .. id, body)
  local fields = { 'v', 1, 'store', store, 'topic', ARGV[at + 2], 'theirs', ARGV[at + 3], 'delivery', ARGV[at + 4],
    'resource', ARGV[at + 5], 'received', ARGV[at + 6], 'occurred', ARGV[at + 7], 'source', ARGV[at + 8],
    'data_path', ARGV[at + 9], 'digest', digest, 'state', 'open', 'open', 1 }
  if unreadable == '' then fields[#fields + 1], fields[#fields + 2] = 'r:', TO_BE_ROUTED end
  if ARGV[at + 18] ~= '' then fields[#fields + 1], fields[#fields + 2] = 'secret', ARGV[at + 18] end
  local accepted = next_time()
  link(at, accepted, fields)
  redis.call('HSET', P .. 'e:' .. id, unpack(fields))
  batch('ZADD', P .. 'ix', accepted, id)
  batch('ZADD', P .. 'ix:' .. store, accepted, id)
  if unreadable == '' and has_ordered() then add_to('ZADD', 'unrouted:' .. store, accepted, id) end
  new[id] = true
  count('accepted', store, 1)
  count('open', store, 1)
  if second_body then count('conflicts', store, 1) end
  note_name(store, ARGV[at + 3], received)
  if unreadable ~= '' then
    -- Verified, but unreadable: stored as a failure of the handler "intake", for a person to look at.
    fail_run(id, 'intake', { attempts = 1, losses = 0, queue = DEFAULT_QUEUE }, store, unreadable)
  else
    wake(DEFAULT_QUEUE)
  end
  -- Last, because it may fail: then the event is stored and counted, and its next delivery is a duplicate.
  if mark ~= '' then set_mark(store, mark, received, arrived, window, id) end
  return { 'accepted', id }
end

-- All of a batch, or none: whatever may fail is read before anything is written. There is one decision about the quota,
-- and it is that of a single delivery: a batch that fits is taken as a whole, so that one larger than the rest of the quota
-- is not refused for ever.
local function accept_batch()
  local store, is_new = ARGV[FIRST + 1], false
  require_sets('ix', 'ix:' .. store, 'failed')
  for at = FIRST, #ARGV, PARTS do last[ARGV[at + 19]] = content_at(at) end
  for at = FIRST, #ARGV, PARTS do
    local of = judge(at)
    is_new = is_new or not of
  end
  local answers, full = {}, is_new and is_full(store, tonumber(ARGV[FIRST + 12]))
  if is_new and not full then wake(DEFAULT_QUEUE) end
  open_before[store] = -math.huge
  for at = FIRST, #ARGV, PARTS do
    answers[#answers + 1] = full and { 'full', ARGV[at] } or accept(at)
  end
  return answers
end

-- An error affects only the delivery that caused it.
local function accept_each()
  local answers = {}
  for at = FIRST, #ARGV, PARTS do
    local ok, answer = pcall(accept, at)
    answers[#answers + 1] = ok and answer or { 'failed', type(answer) == 'table' and answer.err or tostring(answer) }
  end
  return answers
end

return function()
  require_rights()
  require_lane('')
  window, max_names, open_before, names, accepted_at, new = tonumber(ARGV[1]), tonumber(ARGV[2]), {}, {}, nil, {}
  newest, linked, contents, times, last = read_newest(), {}, {}, {}, {}
  if ARGV[3] == 'write' then redis.pcall('HINCRBY', P .. 'n', 'checks', 0) end -- replicas have it to acknowledge
  local answers = ARGV[3] == '1' and accept_batch() or accept_each()
  -- These are statistics: a damaged key must not cost an event.
  for store, own in pairs(names) do pcall(write_names, store, own) end
  pcall(in_slices, 'HSET', P .. 'resources', linked)
  return answers
end
