-- The state of one call, batched writes and quarantine. The library is loaded once and called many times, one call after
-- the other: `begin` resets this state for each call.
local P, ARGV, NOW, clock -- the prefix of all keys (see keys.py), the arguments, and the server's time

-- Writes that a script makes many times are batched, and made once when it ends or fails, or where it calls
-- `write_batched()` because it reads them back: counters, fair times, members of sorted sets, and the active runs of order keys.
local counted, fair, batched
local active_runs, changed_keys -- by handler: what is known of its order keys, and which of them were changed; see order.lua

-- What was read or done already in this call.
local woken, limits, paused, startable, lanes
local fence -- the last one given out; see order.lua
local anything_paused, anything_busy, anything_ordered
local leased_keys -- by handler: the order keys whose runs this call leases together as it routes; see order.lua
local unrouted, routed_of, sound_lanes -- see order.lua

local function begin(keys, arguments)
  P, ARGV, clock = keys[1], arguments, redis.call('TIME')
  NOW = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
  counted, fair, batched, active_runs, changed_keys, fence = {}, {}, {}, {}, {}, nil
  woken, limits, paused, startable, lanes = {}, {}, {}, {}, {}
  anything_paused, anything_busy, anything_ordered = nil, nil, nil
  unrouted, routed_of, sound_lanes, leased_keys = {}, {}, {}, {}
end

local function count(name, store, by)
  local own = name .. '|' .. store
  counted[own] = (counted[own] or 0) + by
end

-- Counts an event name that a store sends, and the time it was last sent. The number of names is limited; further names
-- are counted under the empty name.
local function count_name(store, name, many, last, max_names)
  local key = P .. 't:' .. store
  if redis.call('HINCRBY', key, 'n:' .. name, many) == many and redis.call('HLEN', key) > 2 * max_names then
    redis.call('HDEL', key, 'n:' .. name)
    name = ''
    redis.call('HINCRBY', key, 'n:', many)
  end
  -- A delivery that has waited, in a spool, as refused or as unreadable, may have arrived before the last one.
  if last < NOW - 100 then last = math.max(last, tonumber(redis.call('HGET', key, 'l:' .. name) or 0)) end
  redis.call('HSET', key, 'l:' .. name, string.format('%.0f', last))
end

-- One command with many arguments. Lua cannot pass more than some thousands at once.
local function in_slices(command, key, arguments)
  for at = 1, #arguments, 2000 do
    redis.call(command, key, unpack(arguments, at, math.min(at + 1999, #arguments)))
  end
end

-- Arguments whose number is at a place, before them. Returns them, and the place after them.
local function counted_parts(at)
  local found, last = {}, at + tonumber(ARGV[at])
  for each = at + 1, last do found[#found + 1] = ARGV[each] end
  return found, last + 1
end

-- The arguments of a batched command, to which more can be added.
local function batch_of(command, key)
  local name = command .. key
  local found = batched[name]
  if not found then
    found = { command = command, key = key, arguments = {} }
    batched[name] = found
  end
  return found.arguments
end

-- `batch('ZADD', key, score, member)` or `batch('ZREM', key, member)`. A script never does both to one member.
local function batch(command, key, first, second)
  local arguments = batch_of(command, key)
  arguments[#arguments + 1] = first
  if second then arguments[#arguments + 1] = second end
end

local function is_damage(why)
  return string.find(why, 'WRONGTYPE', 1, true) or string.find(why, 'not an integer', 1, true)
end

-- A counter below zero was lost, and an event from before has left it. That event is counted as accepted here, so no
-- counter stays negative, and all are right once the events from before have ended.
local function count_lost(name, many)
  redis.call('HINCRBY', P .. 'n', name, many)
  redis.call('HINCRBY', P .. 'n', string.gsub(name, '^[^|]*', 'accepted', 1), many)
end

-- The active runs of a key as text. While a call adds and removes some, they are a table: { "a b c", "d", first = 3 } is "b c d".
-- The text of many runs is long, and would be copied for each of them.
local function text_of_active(ids)
  return type(ids) == 'table' and string.sub(table.concat(ids, ' '), ids.first) or ids
end

local function write_active(handler, changed)
  local active, gone = {}, {}
  for key in pairs(changed) do
    local ids = text_of_active(active_runs[handler][key])
    if ids then active[#active + 1], active[#active + 2] = key, ids else gone[#gone + 1] = key end
  end
  in_slices('HSET', P .. 'order:' .. handler, active)
  in_slices('HDEL', P .. 'order:' .. handler, gone)
end

-- Returns the first error. The other writes are made in any case. A damaged counter is no error: it costs no work.
local function write_batched()
  local problem
  local function try(...)
    local ok, answer = pcall(...)
    if not ok then problem = problem or answer end
  end
  for name, by in pairs(counted) do
    local found = by ~= 0 and redis.pcall('HINCRBY', P .. 'n', name, by)
    if type(found) == 'table' and not is_damage(found.err) then problem = problem or found end
    if type(found) == 'number' and found < 0 then pcall(count_lost, name, -found) end
  end
  for lane, times in pairs(fair) do try(in_slices, 'HSET', P .. 'fair:' .. lane, times.changed) end
  for _, one in pairs(batched) do try(in_slices, one.command, one.key, one.arguments) end
  for handler, changed in pairs(changed_keys) do try(write_active, handler, changed) end
  if fence then try(redis.call, 'SET', P .. 'fence', string.format('%.0f', fence)) end
  counted, fair, batched, changed_keys, unrouted = {}, {}, {}, {}, {}
  return problem
end

-- Runs a script. Batched writes are made even if it fails: a failure must not leave half a step.
local function call(script, keys, arguments)
  begin(keys, arguments)
  local ok, answer = pcall(script)
  local problem = write_batched()
  if ok and not problem then return answer end
  problem = not ok and answer or problem
  return type(problem) == 'table' and problem or redis.error_reply(tostring(problem))
end

-- Raises an error if another version of storehooks has written the data in another format. Workers and housekeepers begin
-- each heartbeat and round with a script that asks.
-- READ_FORMATS is written before this text: " 1 2 " are the formats that this version reads; see redis/data_format.py.
local function require_format()
  local found = redis.pcall('GET', P .. 'format')
  if not found or (type(found) == 'string' and string.find(READ_FORMATS, ' ' .. found .. ' ', 1, true)) then return end
  error('FORMAT the data in the Redis server has format ' .. (type(found) == 'string' and found or '?') ..
    ', and this version of storehooks reads format' .. string.sub(READ_FORMATS, 1, -2) .. '; upgrade storehooks on this host', 0)
end

-- The size of a key, by a command of its type; nil and the server's error if the key has another type.
local function size_of(name, command)
  local found = redis.pcall(command, P .. name)
  if type(found) ~= 'table' then return found end
  if not is_damage(found.err) then error(found, 0) end
  return nil, found.err
end

-- Fields of an event's record; nil if its key is damaged. Any other error, such as a missing right, says nothing about the
-- record and is raised.
local function read_fields(id, ...)
  local found = redis.pcall('HMGET', P .. 'e:' .. id, ...)
  if not found.err then return found end
  if not is_damage(found.err) then error(found, 0) end
end

local function require_type(name, command)
  local size, problem = size_of(name, command)
  if problem then error('the key ' .. P .. name .. ' is damaged: ' .. problem, 0) end
  return size
end

-- These raise an error if a set or a lane is damaged, before anything is written: later, records would be written whose
-- items are in no set. The next tick renames the damaged key.
local function require_sets(...)
  for _, name in ipairs({ ... }) do require_type(name, 'ZCARD') end
end

-- Returns how many items are ready in the lane.
local function require_lane(lane)
  require_type('fair:' .. lane, 'HLEN')
  return require_type('ready:' .. lane, 'ZCARD')
end

local function quarantine(item, why)
  redis.call('HSET', P .. 'quarantined', item, why)
end

-- Renames a key that has another type than ours: what it had is lost already, and steps would fail at it. The script
-- `stranded` puts the items of a set back, by their records.
local function set_aside(name)
  local kept = string.format('%sdamaged:%s:%.0f', P, name, NOW)
  redis.call('RENAME', P .. name, kept)
  quarantine(P .. name, 'it had another type than ours, and is kept as ' .. kept)
end

-- Handles an error with one item of many. An error caused by the item's record affects that item alone: it is
-- quarantined, and the others continue. An error that concerns the caller (NOPERM, OOM, READONLY) concerns all of them and
-- is raised.
local function quarantine_or_raise(item, problem)
  local why = type(problem) == 'table' and problem.err or tostring(problem)
  local code = string.match(why, '^%-?(%u+) ') -- the server's error code; an error of Lua has none
  if code and not is_damage(why) then error(problem, 0) end
  quarantine(item, why)
end

-- The result of `change(...)` for one item of many, or "damaged" if its record is.
local function change_or_quarantine(item, change, ...)
  local ok, result = pcall(change, ...)
  if ok then return result end
  quarantine_or_raise(item, result)
  return 'damaged'
end
