-- Moving the items of a set, and removing events.
-- The state in the record if it does not match the set that the item is in. Nil if the item can be moved.
local function mismatch(state, run, store)
  if not run then return 'nothing' end
  if run.state ~= state then return run.state end
  return not store and 'no store' or nil
end

-- Calls `move(id, handler, run, store)` for the items of a set whose runs are in one state, and removes them from the set.
-- Items without a matching record, and damaged ones, are removed and quarantined. Returns how many were moved.
local function move_each(set, state, items, move)
  local moved = 0
  for _, item in ipairs(items) do
    local id, handler = split(item)
    local run = read_run(id, handler)
    local store = run and redis.call('HGET', P .. 'e:' .. id, 'store')
    local actual = mismatch(state, run, store)
    if actual then
      quarantine(item, 'found in ' .. state .. ' while its record says ' .. actual)
    else
      local ok, problem = pcall(move, id, handler, run, store)
      if ok then moved = moved + 1 else quarantine_or_raise(item, problem) end
    end
    batch('ZREM', set, item)
  end
  return moved
end

-- Ends as failures those of the items of a set that belong to a handler which no worker has any more. Returns how many.
-- What is logged of each is appended to `failed`.
local function fail_waiting(set, state, items, handler, detail, failed)
  local its_own = {}
  for _, item in ipairs(items) do
    local _, whose = split(item)
    if whose == handler then its_own[#its_own + 1] = item end
  end
  return move_each(set, state, its_own, function(id, _, run, store)
    fail_run(id, handler, run, store, detail)
    failed[#failed + 1] = failure_of(id, handler, store)
  end)
end

-- The same for the queued runs of some keys, {key, its active runs, ...}; at most `most` runs. Returns how many.
local function fail_queued(handler, found, most, detail, failed)
  local ended = 0
  for at = 1, #found, 2 do
    local queue = 'queued:' .. handler .. ':' .. found[at]
    local items = ended < most and read_or_set_aside('ZRANGE', queue, 0, most - ended - 1) or {}
    in_slices('ZREM', P .. queue, items)
    ended = ended + fail_waiting(P .. queue, 'queued', items, handler, detail, failed)
  end
  return ended
end

-- Removes a closed event from every key. Its part in the counters stays; a failure counts as settled, as if it was dropped:
-- `failed` is of those that can be replayed.
local function forget(id)
  local fields = redis.call('HGETALL', P .. 'e:' .. id)
  local store, topic, resource, marks, state
  for at = 1, #fields, 2 do
    if fields[at] == 'store' then store = fields[at + 1] end
    if fields[at] == 'state' then state = fields[at + 1] end
    if fields[at] == 'topic' then topic = fields[at + 1] end
    if fields[at] == 'resource' then resource = fields[at + 1] end
    if fields[at] == 'alias' then redis.call('UNLINK', P .. 'e:' .. fields[at + 1]) end
    if string.sub(fields[at], 1, 2) == 'k:' then
      marks = marks or {}
      marks[string.sub(fields[at], 3)] = fields[at + 1]
    end
  end
  for at = 1, #fields, 2 do
    if string.sub(fields[at], 1, 2) == 'g:' then
      local handler = string.sub(fields[at], 3)
      leave_group(id, handler, store)
      redis.call('ZREM', P .. 'failed', item_of(id, handler))
      if marks and marks[handler] then leave_order(id, handler, marks[handler], store) end
    end
  end
  if state == 'failed' then
    count('failed', store, -1)
    count('settled', store, 1)
  end
  unlink_resource(id, store, topic, resource)
  redis.call('ZREM', P .. 'done', id)
  redis.call('ZREM', P .. 'ix', id)
  if store then redis.call('ZREM', P .. 'ix:' .. store, id) end
  redis.call('UNLINK', P .. 'e:' .. id, P .. 'b:' .. id, P .. 'o:' .. id)
end

-- The same for an event that may be damaged: then it is quarantined, and the member is removed from `set`.
local function forget_or_quarantine(id, set, member)
  local ok, problem = pcall(forget, id)
  if ok then return end
  quarantine_or_raise(member, problem)
  redis.call('ZREM', set, member)
end
