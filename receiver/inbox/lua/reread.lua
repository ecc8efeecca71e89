#!lua flags=allow-oom
-- reread: store events that could not be read as the current scheme reads them. Those that are readable now are made ready
-- to be routed.
-- ARGV  1 the window for repeats (ms)  2 how many event names of a store are counted one by one
--       then for each event: id, topic, theirs, delivery, resource, occurred, data_path, why it is unreadable (JSON) or "",
--       and by which a redelivery would be found now: the id of its event, its first id, its repeat mark, each or "";
--       headers and body, if they are redacted now, or ""
-- returns for each event what became of it; `RereadResult` in administration.py lists the words
local PARTS = 12
local window, max_names

-- The event that a redelivery was accepted as, if there was one. Else nil and, if the current scheme finds another id than
-- the event's own, that id: a redelivery would be looked for there.
local function accepted_as(id, own_id, first_id, digest)
  if own_id == '' or own_id == id or first_id == id then return nil, nil end
  local own_exists = redis.call('EXISTS', P .. 'e:' .. own_id) == 1
  if first_id ~= '' and digest_of(first_id) == digest then return first_id, nil end
  if own_exists then return digest_of(own_id) == digest and own_id or nil, nil end
  if first_id ~= '' and redis.call('EXISTS', P .. 'e:' .. first_id) == 0 then return nil, first_id end
  return nil, own_id
end

local function find_repeat(id, store, mark, received, arrived)
  local found = mark ~= '' and repeat_of(store, mark, received, arrived, window)
  return found and found ~= id and found or nil
end

-- It was delivered again and accepted: to run it too would be to run it twice.
local function settle_duplicate(id, store, run, of)
  if run.state ~= 'failed' then return end
  run.state, run.token = 'dropped', NOW
  write_run(id, 'intake', run)
  redis.call('HSET', P .. 'e:' .. id, 'x:intake', cjson.encode({ result = 'delivered again, and accepted as ' .. of }))
  settle_failure(id, store)
end

local function make_routable(at, id, store, run)
  local e = P .. 'e:' .. id
  if run.state == 'failed' then redis.call('HINCRBY', e, 'bad', -1) end
  redis.call('HDEL', e, 'r:intake', 'x:intake')
  open_one_more(id, store)
  redis.call('HSET', e, 'topic', ARGV[at + 1], 'theirs', ARGV[at + 2], 'delivery', ARGV[at + 3], 'resource', ARGV[at + 4],
    'occurred', ARGV[at + 5], 'data_path', ARGV[at + 6], 'r:', 'ready 0 0 ' .. DEFAULT_QUEUE .. ' ')
  make_ready(id, '', store)
  wake(DEFAULT_QUEUE)
end

local function reread(at)
  local id, problem, mark = ARGV[at], ARGV[at + 7], ARGV[at + 10]
  local e, item = P .. 'e:' .. id, item_of(id, 'intake')
  local store, received, digest, theirs = unpack(redis.call('HMGET', e, 'store', 'received', 'digest', 'theirs'))
  local run = store and read_run(id, 'intake')
  if not run then return 'not-unreadable' end -- a run of intake has failed, or was dropped
  if redis.call('HEXISTS', e, 'erased') == 1 then return 'erased' end
  if redis.call('EXISTS', P .. 'b:' .. id) == 0 then return 'no-body' end
  if problem ~= '' then
    if run.state ~= 'failed' then return 'unreadable' end
    redis.call('HSET', e, 'x:intake', problem)
    join_group(id, 'intake', store, 'failed', problem)
    return 'unreadable'
  end
  received, digest = tonumber(received or '') or NOW, digest or '' -- a damaged record is read as far as possible
  local accepted, alias = accepted_as(id, ARGV[at + 8], ARGV[at + 9], digest)
  -- By the server's clock. Of an event that was spooled it is too late, and then it repeats none.
  local arrived = math.floor(tonumber(redis.call('ZSCORE', P .. 'ix', id) or NOW * 1000) / 1000)
  accepted = accepted or find_repeat(id, store, mark, received, arrived)
  leave_group(id, 'intake', store)
  redis.call('ZREM', P .. 'failed', item)
  if accepted then
    settle_duplicate(id, store, run, real_id(accepted))
    return 'duplicate'
  end
  make_routable(at, id, store, run)
  if ARGV[at + 11] ~= '' then redis.call('SET', P .. 'b:' .. id, ARGV[at + 11]) end
  -- A redelivery is found by what identifies a delivery now, and is a duplicate of this event.
  if alias then
    redis.call('HSET', P .. 'e:' .. alias, 'alias_of', id, 'digest', digest)
    redis.call('HSET', e, 'alias', alias)
  end
  if mark ~= '' then set_mark(store, mark, received, arrived, window, id) end
  -- A name that was read on arrival is counted already. A statistic: a damaged key must not cost the event.
  local name = ARGV[at + 2]
  if name ~= '' and name ~= theirs then pcall(count_name, store, name, 1, received, max_names) end
  return 'read'
end

return function()
  window, max_names = tonumber(ARGV[1]), tonumber(ARGV[2])
  local results = {}
  for at = 3, #ARGV, PARTS do
    results[#results + 1] = change_or_quarantine(item_of(ARGV[at], 'intake'), reread, at)
  end
  return results
end
