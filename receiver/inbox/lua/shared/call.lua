-- What all scripts share. It is loaded once and called many times, one call after the other: what belongs to a call is
-- kept here and begun anew with the next.
local P, ARGV, NOW, clock -- the prefix of all keys (see keys.py), what the caller gave, and the time

-- What a script changes many times over is gathered while it works, and written once when it ends or fails, or where
-- it says `write_gathered()` because it reads it back: counters, fair times, and members of sorted sets.
local counted, fair, gathered

-- What was read or done already in this call.
local woken, limits, paused, at_once, lanes
local anything_paused, anything_shut

local function begin(keys, arguments)
  P, ARGV, clock = keys[1], arguments, redis.call('TIME')
  NOW = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
  counted, fair, gathered = {}, {}, {}
  woken, limits, paused, at_once, lanes = {}, {}, {}, {}, {}
  anything_paused, anything_shut = nil, nil
end

local function count(name, store, by)
  local own = name .. '|' .. store
  counted[own] = (counted[own] or 0) + by
end

-- One command with many arguments; Lua cannot hand over more than some thousands at once.
local function in_slices(command, key, arguments)
  for at = 1, #arguments, 2000 do
    redis.call(command, key, unpack(arguments, at, math.min(at + 1999, #arguments)))
  end
end

-- `gather('ZADD', key, score, member)` or `gather('ZREM', key, member)`; a script never does both to one member.
local function gather(command, key, first, second)
  local name = command .. key
  local found = gathered[name]
  if not found then
    found = { command = command, key = key, arguments = {} }
    gathered[name] = found
  end
  local arguments = found.arguments
  arguments[#arguments + 1] = first
  if second then arguments[#arguments + 1] = second end
end

-- Gives the first error; whatever it is, the rest is written.
local function write_gathered()
  local problem
  local function try(...)
    local ok, answer = pcall(...)
    if not ok then problem = problem or answer end
  end
  for name, by in pairs(counted) do
    if by ~= 0 then try(redis.call, 'HINCRBY', P .. 'n', name, by) end
  end
  for lane, times in pairs(fair) do try(in_slices, 'HSET', P .. 'fair:' .. lane, times.changed) end
  for _, one in pairs(gathered) do try(in_slices, one.command, one.key, one.arguments) end
  counted, fair, gathered = {}, {}, {}
  return problem
end

-- What was gathered is written however a script ends: a failure must not leave half a step.
local function call(script, keys, arguments)
  begin(keys, arguments)
  local ok, answer = pcall(script)
  local problem = write_gathered()
  if ok and not problem then return answer end
  problem = not ok and answer or problem
  return type(problem) == 'table' and problem or redis.error_reply(tostring(problem))
end

local function quarantine(item, why)
  redis.call('HSET', P .. 'quarantined', item, why)
end

-- What went wrong with one item of many. What its record holds concerns it alone: it is quarantined and shown, and the
-- others go on. What the server has against the caller (NOPERM, OOM, READONLY) concerns all of them, and is raised.
local function quarantine_or_raise(item, problem)
  local why = type(problem) == 'table' and problem.err or tostring(problem)
  local code = string.match(why, '^%-?(%u+) ') -- the server's; an error of Lua has none
  local its_own = not code or code == 'WRONGTYPE' or string.find(why, 'not an integer', 1, true)
  if not its_own then error(problem, 0) end
  quarantine(item, why)
end
