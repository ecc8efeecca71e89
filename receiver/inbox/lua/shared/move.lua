-- Why an item of a set cannot be moved: its record is gone, or says otherwise. Nil where nothing is against it.
local function debris(state, run, store)
  if not run then return 'nothing' end
  if run.state ~= state then return run.state end
  return not store and 'no store' or nil
end

-- `move(id, handler, run, store)` for items of a set whose runs are in one state, and out of the set with them; debris
-- and poison are taken out and shown. Gives how many were moved.
local function move_each(set, state, items, move)
  local moved = 0
  for _, item in ipairs(items) do
    local id, handler = split(item)
    local run = read_run(id, handler)
    local store = run and redis.call('HGET', P .. 'e:' .. id, 'store')
    local says = debris(state, run, store)
    if says then
      quarantine(item, 'found in ' .. state .. ' while its record says ' .. says)
    else
      local ok, problem = pcall(move, id, handler, run, store)
      if ok then moved = moved + 1 else quarantine_or_raise(item, problem) end
    end
    gather('ZREM', set, item)
  end
  return moved
end

-- Of these items of a set, where runs are in one state, those of a handler that nobody has any more end as failures;
-- gives how many.
local function end_waiting(set, state, items, handler, detail)
  local its_own = {}
  for _, item in ipairs(items) do
    local _, whose = split(item)
    if whose == handler then its_own[#its_own + 1] = item end
  end
  return move_each(set, state, its_own, function(id, _, run, store) fail_run(id, handler, run, store, detail) end)
end

-- Remove every trace of a closed event but its part in the counters.
local function forget(id)
  local fields = redis.call('HGETALL', P .. 'e:' .. id)
  local store
  for at = 1, #fields, 2 do
    if fields[at] == 'store' then store = fields[at + 1] end
  end
  for at = 1, #fields, 2 do
    if string.sub(fields[at], 1, 2) == 'g:' then
      local handler = string.sub(fields[at], 3)
      leave_group(id, handler, store)
      redis.call('ZREM', P .. 'failed', item_of(id, handler))
    end
  end
  redis.call('ZREM', P .. 'done', id)
  redis.call('ZREM', P .. 'ix', id)
  if store then redis.call('ZREM', P .. 'ix:' .. store, id) end
  redis.call('UNLINK', P .. 'e:' .. id, P .. 'b:' .. id, P .. 'o:' .. id)
end

-- The same for what may be damaged: then it is shown, and is no longer where it was found, a member of `set`.
local function forget_or_quarantine(id, set, member)
  local ok, problem = pcall(forget, id)
  if ok then return end
  quarantine_or_raise(member, problem)
  redis.call('ZREM', set, member)
end
