#!lua
-- accept: keep a group of events, each once, and wake a worker.
-- ARGV  1 window of repeat marks (ms)  2 names kept of a store; then for each event
--       1 id  2 store  3 topic  4 theirs  5 delivery  6 resource  7 received (ms)  8 occurred  9 source  10 data_path
--       11 headers and body  12 repeat mark or ""  13 quota of open events (0 = none)
--       14 why it is unreadable, as JSON, or ""  15 digest of the body  16 first id or ""
-- gives for each event {"accepted" | "duplicate" | "full", id}, or {"failed", why}: that one is not kept, the others are
-- No allow-oom: at maxmemory new events are refused while workers drain.
--
-- What all events of a group have in common (counters, indexes, the order of the lane, the wake-up) is written once, at
-- the end: most of the time a script takes goes into its calls. Nobody can look in between.
--
-- Where the body is part of a delivery's identity, the first body under a delivery id is kept under the first id,
-- and only another body under the same delivery id gets an id of its own. So a second body is noticed by the record
-- of the first, without a key beside it, and a lookup more is made only where there is one.
local WIDTH, FIRST = 16, 3
local TO_ROUTE = { 'r:', run_text({ state = 'ready', attempts = 0, losses = 0, queue = 'default', token = '' }) }
local window, names_kept = tonumber(ARGV[1]), tonumber(ARGV[2])
local counts, stores, index, indexes, names = {}, {}, {}, {}, {}
local ready, lane = {}, {}

local function tally(name, store)
  if not counts[name] then counts[name] = {} end
  counts[name][store] = (counts[name][store] or 0) + 1
end

local function tallied(name, store)
  return counts[name] and counts[name][store] or 0
end

-- A duplicate is counted, so it writes: waiting for replicas covers the first write as well.
local function duplicate(store, of)
  tally('duplicates', store)
  return { 'duplicate', of }
end

local function digest_of(event)
  local found = redis.pcall('HGET', P .. 'e:' .. event, 'digest')
  return type(found) == 'string' and found or nil
end

local function exists(id)
  return redis.call('EXISTS', P .. 'e:' .. id) == 1
end

local function is_full(store, quota)
  if quota == 0 then return false end
  return tonumber(redis.call('HGET', P .. 'n', 'open|' .. store) or 0) + tallied('open', store) >= quota
end

local function put_in_order(id, store, received)
  index[#index + 1], index[#index + 2] = received, id
  if not indexes[store] then indexes[store] = {} end
  local own = indexes[store]
  own[#own + 1], own[#own + 2] = received, id
end

local function put_in_lane(id, store)
  if not lane[store] then lane[store] = fair_time('', store) end
  lane[store] = lane[store] + 1
  ready[#ready + 1], ready[#ready + 2] = lane[store], id
end

local function note_name(store, theirs, received)
  if theirs == '' then return end
  if not names[store] then names[store] = {} end
  local noted = names[store][theirs]
  names[store][theirs] = { (noted and noted[1] or 0) + 1, received }
end

local function accept(at)
  local id, store, received, mark = ARGV[at], ARGV[at + 1], ARGV[at + 6], ARGV[at + 11]
  local problem, digest, first_id = ARGV[at + 13], ARGV[at + 14], ARGV[at + 15]
  local second_body = false
  if first_id ~= '' then
    if not exists(first_id) then
      id = first_id
    elseif digest_of(first_id) == digest then
      return duplicate(store, first_id)
    else
      second_body = true
    end
  end
  if (first_id == '' or second_body) and exists(id) then
    if digest_of(id) ~= digest then tally('conflicts', store) end
    return duplicate(store, id)
  end
  if mark ~= '' then
    local first = redis.call('GET', P .. 'd:' .. store .. ':' .. mark)
    if first and exists(first) then return duplicate(store, first) end
  end
  if is_full(store, tonumber(ARGV[at + 12])) then return { 'full', id } end

  redis.call('HSET', P .. 'e:' .. id, 'v', 1, 'store', store, 'topic', ARGV[at + 2], 'theirs', ARGV[at + 3],
    'delivery', ARGV[at + 4], 'resource', ARGV[at + 5], 'received', received, 'occurred', ARGV[at + 7],
    'source', ARGV[at + 8], 'data_path', ARGV[at + 9], 'digest', digest, 'state', 'open', 'open', 1,
    unpack(problem == '' and TO_ROUTE or {}))
  redis.call('SET', P .. 'b:' .. id, ARGV[at + 10])
  if mark ~= '' and window > 0 then redis.call('SET', P .. 'd:' .. store .. ':' .. mark, id, 'PX', window) end
  put_in_order(id, store, received)
  tally('accepted', store)
  tally('open', store)
  if second_body then tally('conflicts', store) end
  note_name(store, ARGV[at + 3], received)
  if problem ~= '' then
    -- Genuine, and not understood: kept as a failure of the intake, for a person to look at.
    fail_run(id, 'intake', { attempts = 1, losses = 0, queue = 'default' }, store, problem)
  else
    put_in_lane(id, store)
  end
  return { 'accepted', id }
end

-- The names a store really sends. Their number is bounded: what comes beyond it is counted under the empty name.
local function write_name(store, name, many, received)
  local key = P .. 't:' .. store
  if redis.call('HINCRBY', key, 'n:' .. name, many) == many and redis.call('HLEN', key) > 2 * names_kept then
    redis.call('HDEL', key, 'n:' .. name)
    name = ''
    redis.call('HINCRBY', key, 'n:', many)
  end
  redis.call('HSET', key, 'l:' .. name, received)
end

local replies = {}
for at = FIRST, #ARGV, WIDTH do
  local ok, reply = pcall(accept, at)
  replies[#replies + 1] = ok and reply or { 'failed', type(reply) == 'table' and reply.err or tostring(reply) }
end

for name, of in pairs(counts) do
  for store, many in pairs(of) do count(name, store, many) end
end
if #index > 0 then redis.call('ZADD', P .. 'ix', unpack(index)) end
for store, own in pairs(indexes) do redis.call('ZADD', P .. 'ix:' .. store, unpack(own)) end
for store, seen in pairs(names) do
  for name, noted in pairs(seen) do write_name(store, name, noted[1], noted[2]) end
end
if #ready > 0 then
  for store, last in pairs(lane) do redis.call('HSET', P .. 'fair:', store, last) end
  redis.call('ZADD', P .. 'ready:', unpack(ready))
  wake('default')
end
return replies
