-- Bursts: the waiting runs of one resource are merged into one, with the newest event. The mark of such a run is "m KEY".
-- It is an ordered run that is delayed, so all runs of the resource but the first wait in the queue of their key. A claim
-- leases the newest of them, and notes the others in its field m:{handler}. They stay queued until it has ended. If the
-- handler was called and did not fail, they are dropped in the same step; otherwise they are still there to be run. A run that
-- lost its worker is repeated as it was, before any of them: its handler may have seen the newest event already.
local MAX_MERGED = 500

local function is_merging(mark) return string.sub(mark, 1, 1) == 'm' end

-- The queued runs that can be merged with the active one, in the order of acceptance. A run that has lost a worker is claimed
-- alone, and none behind it may begin before it.
local function mergeable(handler, mark, store)
  local found = read_or_set_aside('ZRANGE', queue_of(handler, mark), 0, MAX_MERGED - 1, 'WITHSCORES') or {}
  local waiting = {}
  for at = 1, #found, 2 do
    local id, accepted = split(found[at]), tonumber(found[at + 1])
    local about = read_fields(id, 'r:' .. handler, 'k:' .. handler, 'occurred')
    local run = about and parse_run(about[1])
    if not run or run.state ~= 'queued' or run.losses > 0 or about[2] ~= mark or has_unrouted_before(store, accepted) then
      break
    end
    waiting[#waiting + 1] = { id = id, accepted = accepted, occurred = about[3] or '' }
  end
  return waiting
end

-- Of two events in the order of acceptance: whether the second is newer. Their times have one format, so they compare as text.
local function is_newer(one, other)
  return one.occurred == '' or other.occurred == '' or other.occurred >= one.occurred
end

-- Finds the newest run of those that wait with a ready one, which is active, and makes that the active one. Returns its id,
-- and the ids of the others.
local function merge_waiting(id, handler, run, mark, store, occurred)
  local all, own = mergeable(handler, mark, store), { id = id, accepted = accepted_at(id), occurred = occurred or '' }
  all[#all + 1] = own
  table.sort(all, function(one, other) return one.accepted < other.accepted end) -- a retry may be newer than those that wait
  local newest, ids = all[1], {}
  for at = 2, #all do
    if is_newer(newest, all[at]) then newest = all[at] end
  end
  for _, one in ipairs(all) do
    if one ~= newest then ids[#ids + 1] = one.id end
  end
  if newest ~= own then
    run.state, run.token = 'queued', ''
    write_run(id, handler, run)
    add_to_queue(id, handler, mark, own.accepted)
    redis.call('ZREM', P .. queue_of(handler, mark), item_of(newest.id, handler))
    set_active(handler, key_in(mark), newest.id)
  end
  if #ids > 0 then redis.call('HSET', P .. 'e:' .. newest.id, 'm:' .. handler, table.concat(ids, ' ')) end
  return newest.id, ids
end

-- The ids of those that were merged into a run when it was leased.
local function noted_as_merged(id, handler)
  local ids = {}
  for one in string.gmatch(redis.call('HGET', P .. 'e:' .. id, 'm:' .. handler) or '', '%S+') do ids[#ids + 1] = one end
  return ids
end

local function drop_one(item, id, handler, mark, store, detail)
  local run = read_run(id, handler)
  if not run or run.state ~= 'queued' then return false end
  redis.call('ZREM', P .. queue_of(handler, mark), item)
  run.state, run.token, run.urgent = 'dropped', NOW, false
  redis.call('HSET', P .. 'e:' .. id, 'r:' .. handler, packed(run), 'x:' .. handler, detail)
  leave_group(id, handler, store)
  end_run(id, store, false)
  return true
end

-- A merging run has ended, not as a failure: drops what was merged into it. If it was dropped without a call (an echo, stale,
-- or its condition was false), they are not accounted for by it, and wait on. Calls `tell(item, id, detail)` for each.
local function drop_merged(id, handler, mark, store, detail, tell)
  local e = P .. 'e:' .. id
  local ids = noted_as_merged(id, handler)
  if #ids == 0 then return end
  local ok, fields = pcall(cjson.decode, detail)
  if ok and type(fields) == 'table' and type(fields.reason) == 'string' then return redis.call('HDEL', e, 'm:' .. handler) end
  local merged = cjson.encode({ result = 'merged into the run of event ' .. id, reason = 'merged' })
  for _, one in ipairs(ids) do
    local item = item_of(one, handler)
    if change_or_quarantine(item, drop_one, item, one, handler, mark, store, merged) == true then tell(item, one, merged) end
  end
end
