#!lua
-- accept: keep an event, once, and wake a worker.
-- ARGV  1 id  2 store  3 topic  4 theirs  5 delivery  6 resource  7 received (ms)  8 occurred  9 source
--       10 data_path  11 headers and body  12 repeat mark or ""  13 its window (ms)  14 quota of open events (0 = none)
--       15 why it is unreadable, as JSON, or ""  16 digest of the body  17 first id or ""  18 names kept of a store
-- gives {"accepted" | "duplicate" | "full", id}
-- No allow-oom: at maxmemory new events are refused while workers drain.
--
-- Where the body is part of a delivery's identity, the first body under a delivery id is kept under the first id,
-- and only another body under the same delivery id gets an id of its own. So a second body is noticed by the record
-- of the first, without a key beside it, and a lookup more is made only where there is one.
local id, store, mark, digest, first_id = ARGV[1], ARGV[2], ARGV[12], ARGV[16], ARGV[17]

-- A duplicate writes too, so that waiting for replicas covers the first write as well.
local function duplicate(of)
  count('duplicates', store, 1)
  return { 'duplicate', of }
end

local function digest_of(event)
  local found = redis.pcall('HGET', P .. 'e:' .. event, 'digest')
  return type(found) == 'string' and found or nil
end

local second_body = false
if first_id ~= '' then
  if redis.call('EXISTS', P .. 'e:' .. first_id) == 0 then
    id = first_id
  elseif digest_of(first_id) == digest then
    return duplicate(first_id)
  else
    second_body = true
  end
end
local e = P .. 'e:' .. id
if redis.call('EXISTS', e) == 1 then
  if digest_of(id) ~= digest then count('conflicts', store, 1) end
  return duplicate(id)
end
if mark ~= '' then
  local first = redis.call('GET', P .. 'd:' .. store .. ':' .. mark)
  if first and redis.call('EXISTS', P .. 'e:' .. first) == 1 then return duplicate(first) end
end
local quota = tonumber(ARGV[14])
if quota > 0 and tonumber(redis.call('HGET', P .. 'n', 'open|' .. store) or 0) >= quota then
  return { 'full', id }
end

redis.call('HSET', e, 'v', 1, 'store', store, 'topic', ARGV[3], 'theirs', ARGV[4], 'delivery', ARGV[5],
  'resource', ARGV[6], 'received', ARGV[7], 'occurred', ARGV[8], 'source', ARGV[9], 'data_path', ARGV[10],
  'digest', digest, 'state', 'open', 'open', 1)
redis.call('SET', P .. 'b:' .. id, ARGV[11])
redis.call('ZADD', P .. 'ix', ARGV[7], id)
redis.call('ZADD', P .. 'ix:' .. store, ARGV[7], id)
if mark ~= '' and tonumber(ARGV[13]) > 0 then
  redis.call('SET', P .. 'd:' .. store .. ':' .. mark, id, 'PX', ARGV[13])
end
count('accepted', store, 1)
count('open', store, 1)
if second_body then count('conflicts', store, 1) end

-- The names a store really sends. Their number is bounded: what comes beyond it is counted under the empty name.
if ARGV[4] ~= '' then
  local names, name = P .. 't:' .. store, ARGV[4]
  if redis.call('HINCRBY', names, 'n:' .. name, 1) == 1 and redis.call('HLEN', names) > 2 * tonumber(ARGV[18]) then
    redis.call('HDEL', names, 'n:' .. name)
    name = ''
    redis.call('HINCRBY', names, 'n:', 1)
  end
  redis.call('HSET', names, 'l:' .. name, ARGV[7])
end

if ARGV[15] ~= '' then
  -- Genuine, and not understood: kept as a failure of the intake, for a person to look at.
  fail_run(id, 'intake', { attempts = 1, losses = 0, queue = 'default' }, store, ARGV[15])
else
  write_run(id, '', { state = 'ready', attempts = 0, losses = 0, queue = 'default', token = '' })
  make_ready(id, '', store)
  wake('default')
end
return { 'accepted', id }
