#!lua flags=allow-oom
-- stranded: put open items that are in no set back, a slice of the events at a time. They lost their set when one of its
-- keys was damaged or removed. An item that is in any set, or is quarantined, is left alone.
-- ARGV  1 position of the walk through all events, the newest first; "" to begin  2 maximum number of events  3 lease (ms)
-- returns {the next position, "" at the end; how many items were put back}
local lease, found
local checked, leaderless -- keys that have queued runs; those of them that have no active one, as far as is known

-- Whether an item is in none of the sets. False if one of them is damaged, so that it is not known, and if it could not
-- be made ready.
local function is_stranded(item, handler, store, mark)
  for _, state in ipairs({ 'ready', 'leased', 'later', 'held', mark and 'queued' }) do -- most are found at once
    if redis.pcall('ZSCORE', set_of(state, handler, store, mark), item) ~= false then return false end
  end
  if redis.pcall('HEXISTS', P .. 'quarantined', item) ~= 0 then return false end
  return type(redis.pcall('HLEN', P .. 'fair:' .. handler)) ~= 'table'
end

-- A leased run may be running: its worker renews the lease, or it lapses. One that waits until later waits its whole delay
-- again, and one that was queued its turn. The others become ready; a claim holds them if their store is paused.
local function put_back(item, id, handler, run, store, mark)
  if run.state == 'queued' then
    add_to_queue(id, handler, mark, accepted_at(id))
  elseif run.state == 'leased' then
    redis.call('ZADD', P .. 'leased', NOW + lease, item)
  elseif run.state == 'later' then
    redis.call('ZADD', P .. 'later', NOW + (tonumber(run.token) or 0), item)
  else
    run.state = 'ready'
    write_run(id, handler, run)
    make_ready(id, handler, store, run.urgent)
    wake(run.queue)
  end
  found = found + 1
end

local OPEN = { ready = true, leased = true, later = true, held = true, queued = true }

-- Those of the runs that order:{handler} names as active which still are.
local function still_active(ids, handler)
  local left = {}
  for id in string.gmatch(ids or '', '%S+') do
    local run = read_run(id, handler)
    local state = run and redis.pcall('HEXISTS', P .. 'quarantined', item_of(id, handler)) == 0 and run.state
    if state and state ~= 'queued' and OPEN[state] or state == 'failed' and stops_at_failure(read_mark(id, handler) or '') then
      left[#left + 1] = id
    end
  end
  return left
end

-- The active runs of a key are named by order:{handler}, and no others; a key without any lets its next run begin.
local function check_order(id, handler, run, mark, store)
  local key = key_in(mark)
  local active = active_of(handler, key)
  if run.state ~= 'queued' then
    local is_known = active and without(active, id)
    if not is_known then set_active(handler, key, (active or '') == '' and id or id .. ' ' .. active) end
    return
  end
  if checked[item_of(key, handler)] then return end
  checked[item_of(key, handler)] = true
  local left = still_active(active, handler)
  if #left == 0 then leaderless[item_of(key, handler)] = { handler, mark, store } end
  if #left > 0 and table.concat(left, ' ') ~= active then set_active(handler, key, table.concat(left, ' ')) end
end

-- After all events of the slice: an older one may be the active run of a key that has lost which one it was.
local function advance_leaderless()
  for _, one in pairs(leaderless) do
    local handler, mark, store = unpack(one)
    if #still_active(active_of(handler, key_in(mark)), handler) == 0 then advance(handler, mark, store) end
  end
end

local function examine(id)
  local about = read_fields(id, 'state', 'store')
  if not about or about[1] ~= 'open' or not about[2] then return end
  local fields = redis.call('HGETALL', P .. 'e:' .. id)
  for at = 1, #fields, 2 do
    local handler = string.match(fields[at], '^r:(.*)$')
    local run = handler and parse_run(fields[at + 1])
    -- The pause ended without a resume, since its key was removed: the run would be held for ever.
    if run and run.state == 'held' and not is_paused('store:' .. about[2]) then
      redis.call('SADD', P .. 'resuming', about[2])
    end
    if run and OPEN[run.state] then
      local item, mark = item_of(id, handler), read_mark(id, handler)
      if is_stranded(item, handler, about[2], mark) then
        change_or_quarantine(item, put_back, item, id, handler, run, about[2], mark)
      end
      if mark then change_or_quarantine(item, check_order, id, handler, run, mark, about[2]) end
    end
  end
end

return function()
  local from = ARGV[1] == '' and '+inf' or '(' .. ARGV[1]
  lease, found, checked, leaderless = tonumber(ARGV[3]), 0, {}, {}
  local events = redis.pcall('ZREVRANGEBYSCORE', P .. 'ix', from, '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
  for at = 1, #events, 2 do examine(events[at]) end
  advance_leaderless()
  return { events[#events] or '', found }
end
