-- Order: runs of one handler with one key run one at a time, in the order of acceptance.
-- An ordered run has a mark in its event's record, k:{handler}: "c KEY", "s KEY" if the key stops at a failure, or "m KEY" if
-- runs are merged (see merge.lua). The hash
-- order:{handler} has, for each key, the ids of its active runs: one that is ready, later, held or leased, or those that one
-- claim leased together, which one child process performs one after the other. All other open runs of the key are queued.
-- A queued run becomes active when no run of its key is active and no event of its store that was accepted before it waits
-- to be routed: that one may get the same key. A key whose first run waits for that has "" in the hash, and is in
-- heads:{store}. What is lost of this (a damaged or removed key) is put right by `stranded` and by claims.
local LONGEST_KEY = 128 -- bytes; of a longer one the digest is the key
local MAX_STALE = 1000 -- events that were routed and not removed from unrouted:{store}, of which one call removes this many
local UNROUTED_PAGE = 64 -- read at once: as many as a claim routes

local last_mark = {} -- and what it was made of: the next run has most often the same

-- The mark of a run. `order` is "c", "s" or "m", a space, and "resource", "store", "=VALUE", or "!" where its path leads nowhere.
-- An event without a value has its own id as key.
local function order_mark(order, id, store, topic, resource)
  if last_mark.order == order and last_mark.store == store and last_mark.topic == topic and last_mark.resource == resource then
    return last_mark.text
  end
  local policy, by = string.match(order, '^([csm]) (.*)$')
  local key = string.match(by, '^=(.+)$')
  if by == 'store' then key = by end
  if by == 'resource' and (resource or '') ~= '' then key = string.match(topic or '', '^[^.]*') .. ':' .. resource end
  if not key then
    count('unkeyed', store, 1)
    return policy .. ' ' .. store .. ':!' .. id
  end
  if #key > LONGEST_KEY then key = 'sha1:' .. redis.sha1hex(key) end
  local text = policy .. ' ' .. store .. ':' .. key
  last_mark = { text = text, order = order, store = store, topic = topic, resource = resource }
  return text
end

-- A number that is larger with each lease of a key, even at a server that was emptied or replaced by an older copy.
local function next_fence()
  if not fence then
    local last = redis.pcall('GET', P .. 'fence')
    last = type(last) == 'string' and tonumber(last) or 0
    fence = math.max(last, tonumber(clock[1]) * 1000000 + tonumber(clock[2]))
  end
  fence = fence + 1
  return fence
end

-- The order of a leased run, as it is returned to the worker. The fence is formatted in two parts: "%.0f" takes much longer.
local function lease_text(mark)
  local number = next_fence()
  return string.format('%d%06d %s', number / 1000000, number % 1000000, mark)
end

local function key_in(mark) return string.sub(mark, 3) end
local function stops_at_failure(mark) return string.sub(mark, 1, 1) == 's' end

-- The mark of a run; nil if it is not ordered.
local function read_mark(id, handler)
  local mark = redis.pcall('HGET', P .. 'e:' .. id, 'k:' .. handler)
  return type(mark) == 'string' and string.find(mark, '^[csm] ') and mark or nil
end

-- The answer of a command. A key of another type is renamed, and the answer is nil.
local function read_or_set_aside(command, name, ...)
  local found = redis.pcall(command, P .. name, ...)
  if type(found) ~= 'table' or not found.err then return found end
  if not is_damage(found.err) then error(found, 0) end
  set_aside(name)
  return nil
end

-- Adds to a set, to a new one if it had another type: what is added must not suffer from that.
local function add_to(command, name, ...)
  if not read_or_set_aside(command, name, ...) then redis.call(command, P .. name, ...) end
end

local function queue_of(handler, mark) return 'queued:' .. handler .. ':' .. key_in(mark) end

-- What this call knows of the active runs of a key: a text, a table (see text_of_active), or false.
local function known_active(handler, key)
  local known = active_runs[handler] or {}
  active_runs[handler] = known
  if known[key] == nil then known[key] = read_or_set_aside('HGET', 'order:' .. handler, key) or false end
  return known[key]
end

-- The active runs of a key, as text. "" if its first run waits for an event to be routed; nil if the key has no open run.
local function active_of(handler, key) return text_of_active(known_active(handler, key)) or nil end

-- Batched. Without ids the key has no open run. It is read before, so that a damaged hash is renamed.
local function set_active(handler, key, ids)
  known_active(handler, key)
  active_runs[handler][key] = ids or false
  changed_keys[handler] = changed_keys[handler] or {}
  changed_keys[handler][key] = true
end

-- Adds a run to those that this call leases together.
local function add_active(handler, key, active, id)
  if type(active) ~= 'table' then active = { active, first = 1 } end
  active[#active + 1] = id
  set_active(handler, key, active)
end

-- Removes the first of several active runs: most often they end in their order. Returns whether it was this one.
local function remove_first(handler, key, active, id)
  if type(active) ~= 'table' then active = { active, first = 1 } end
  local last = active.first + #id
  if string.sub(active[1], active.first, last) ~= id .. ' ' then return false end
  active.first = last + 1
  set_active(handler, key, active)
  return true
end

-- The list of ids without one of them; nil if it is not there.
local function without(ids, id)
  if ids == id then return '' end
  local left, found = {}, false
  for one in string.gmatch(ids, '%S+') do
    if one == id then found = true else left[#left + 1] = one end
  end
  return found and table.concat(left, ' ') or nil
end

local function accepted_at(id) return tonumber(redis.pcall('ZSCORE', P .. 'ix', id) or 0) or 0 end

-- Whether any handler is ordered. While none is, events are not recorded in unrouted:{store}.
local function has_ordered()
  if anything_ordered == nil then anything_ordered = redis.call('EXISTS', P .. 'ordered') == 1 end
  return anything_ordered
end

local TO_BE_ROUTED = { ready = true, leased = true, held = true }
local function waits_for_routing(id)
  local event = read_run(id, '')
  return event and TO_BE_ROUTED[event.state] and redis.pcall('HEXISTS', P .. 'quarantined', id) == 0
end

-- The first event of a store that this call has not removed from unrouted:{store}, and what is known of that set: its first
-- ids, and when each was accepted (`latest`: the last of them). They are removed in a batch, so their ranks stay until then.
-- With a time, nil if no event was accepted before it: no more are read than are needed to know.
local function first_unrouted(store, accepted)
  local known = unrouted[store]
  if not known then
    known = { first = 1, times = {}, latest = 0, removed = {}, has_more = true }
    known.gone = batch_of('ZREM', P .. 'unrouted:' .. store)
    unrouted[store] = known
  end
  while known.removed[known[known.first]] or
    (not known[known.first] and known.has_more and known.latest < (accepted or math.huge)) do
    if known[known.first] then
      known.first = known.first + 1
    else
      local found = read_or_set_aside('ZRANGE', 'unrouted:' .. store, #known, #known + UNROUTED_PAGE - 1, 'WITHSCORES') or {}
      for at = 1, #found, 2 do
        known.latest = tonumber(found[at + 1])
        known[#known + 1], known.times[found[at]] = found[at], known.latest
      end
      known.has_more = #found == 2 * UNROUTED_PAGE
    end
  end
  return known[known.first], known
end

local function remove_unrouted(id, known)
  known.removed[id] = true
  known.gone[#known.gone + 1] = id
end

-- Whether an event of the store that was accepted before this time waits to be routed.
local function has_unrouted_before(store, accepted)
  for _ = 1, MAX_STALE do
    local id, known = first_unrouted(store, accepted)
    if not id or known.times[id] >= accepted then return false end
    if known.waits ~= id and not waits_for_routing(id) then
      remove_unrouted(id, known)
    else
      known.waits = id
      return true
    end
  end
  return true
end

-- Called when an event was routed, or waits until later because no handler wants it.
local function note_routed(id, store)
  if not has_ordered() then return end
  local _, known = first_unrouted(store)
  remove_unrouted(id, known)
  routed_of[store] = true
end

-- The first run of a key waits for an event to be routed, or for a damaged lane to be renamed.
local function wait_for_routing(handler, key, store, accepted)
  set_active(handler, key, '')
  add_to('ZADD', 'heads:' .. store, 'LT', accepted, handler .. ' ' .. key)
  add_to('SADD', 'heads', store)
end

-- Makes a queued run active: ready, or later if its delay is not over. `front`: it returns to where it was in its lane.
local function activate(id, handler, run, store, front)
  local delay = tonumber(run.token) or 0
  local due = delay > 0 and due_at(delay, redis.call('HGET', P .. 'e:' .. id, 'received')) or 0
  if due > NOW then
    run.state = 'later'
    redis.call('ZADD', P .. 'later', due, item_of(id, handler))
  else
    run.state, run.token = 'ready', ''
    if front then return_to_front(id, handler, run.urgent) else make_ready(id, handler, store, run.urgent) end
    wake(run.queue)
  end
  write_run(id, handler, run)
end

local function has_sound_lane(lane)
  if sound_lanes[lane] == nil then sound_lanes[lane] = pcall(require_lane, lane) end
  return sound_lanes[lane]
end

-- No run of a key is active: its first queued run becomes active, if it may.
local function advance(handler, mark, store, front)
  local key, queue = key_in(mark), queue_of(handler, mark)
  while true do
    local head = read_or_set_aside('ZRANGE', queue, 0, 0, 'WITHSCORES') or {}
    if not head[1] then return set_active(handler, key, nil) end
    if has_unrouted_before(store, tonumber(head[2])) or not has_sound_lane(handler) then
      return wait_for_routing(handler, key, store, head[2])
    end
    redis.call('ZREM', P .. queue, head[1])
    local id = split(head[1])
    local run = read_run(id, handler)
    if run and run.state == 'queued' then
      set_active(handler, key, id)
      return activate(id, handler, run, store, front)
    end
    quarantine(head[1], 'found in queued while its record says ' .. (run and run.state or 'nothing'))
  end
end

local function add_to_queue(id, handler, mark, accepted)
  add_to('ZADD', queue_of(handler, mark), accepted, item_of(id, handler))
end

-- A run that is created becomes active, or is queued. Returns whether it is active; the caller writes it. One that the caller
-- leases becomes active with those before it that this call has leased, if its handler has a table in `leased_keys`.
local function join_order(id, handler, mark, store, is_leased)
  local key, accepted = key_in(mark), unrouted[store] and unrouted[store].times[id] or accepted_at(id)
  local active, together = known_active(handler, key), leased_keys[handler] or {}
  local follows = active and is_leased and together[key]
  if (follows or not active) and not has_unrouted_before(store, accepted) then
    if follows then add_active(handler, key, active, id) else set_active(handler, key, id) end
    together[key] = is_leased
    return true
  end
  together[key] = nil
  add_to_queue(id, handler, mark, accepted)
  if not active or active == '' then wait_for_routing(handler, key, store, string.format('%.0f', accepted)) end
  return false
end

-- A run has ended, or is queued again. If it was the last active one, the next becomes active.
local function leave_order(id, handler, mark, store, front)
  local key = key_in(mark)
  local active = known_active(handler, key)
  if active and remove_first(handler, key, active, id) then return end
  local left = active and without(text_of_active(active), id)
  if left and left ~= '' then return set_active(handler, key, left) end
  if left or not active then advance(handler, mark, store, front) end
end

-- A leased run is given back: it is queued in its place. If no run of its key is active then, the first of them becomes
-- active again, at the front of its lane.
local function queue_again(id, handler, run, mark, store)
  run.state, run.token = 'queued', ''
  write_run(id, handler, run)
  add_to_queue(id, handler, mark, accepted_at(id))
  leave_order(id, handler, mark, store, true)
end

-- Whether a ready run may be leased: it is the only active one of its key. If its key has lost that, it is again. If another
-- run is active, this one is queued: a retry may be ready before its worker has given back, or lost, those that were leased with
-- it. The last of these makes it ready again.
local function may_lease(id, handler, run, mark, store)
  local key = key_in(mark)
  local active = active_of(handler, key)
  if active == id then return true end
  if not active or active == '' then
    set_active(handler, key, id)
    return true
  end
  queue_again(id, handler, run, mark, store)
  return false
end

-- Lets the first runs of keys begin that have waited for events of a store to be routed.
local function release_heads(store)
  local heads = 'heads:' .. store
  local found = read_or_set_aside('ZRANGE', heads, 0, 999, 'WITHSCORES') or {}
  for at = 1, #found, 2 do
    if has_unrouted_before(store, tonumber(found[at + 1])) then return end
    redis.call('ZREM', P .. heads, found[at])
    local handler, key = string.match(found[at], '^(%S+) (.*)$')
    if (active_of(handler, key) or '') == '' then advance(handler, 'c ' .. key, store) end
  end
end

-- At the end of a call that has routed events.
local function release_heads_of_routed()
  for store in pairs(routed_of) do release_heads(store) end
end
