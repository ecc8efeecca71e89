-- Items and runs as they are written: an item is `id` or `id|handler`, a run is a field of its event's record. A run that
-- waits until later has its delay (ms) in place of a token, and one that has ended when it did (ms).
local function item_of(id, handler)
  if handler == '' then return id end
  return id .. '|' .. handler
end

local function split(item)
  local at = string.find(item, '|', 1, true)
  if not at then return item, '' end
  return string.sub(item, 1, at - 1), string.sub(item, at + 1)
end

-- The set of the runs in a state. Only an ordered run, which has a mark, can be queued; see order.lua.
local function set_of(state, handler, store, mark)
  if state == 'ready' then return P .. 'ready:' .. handler end
  if state == 'queued' then return P .. 'queued:' .. handler .. ':' .. string.sub(mark or '', 3) end
  return P .. (state == 'held' and 'held:' .. store or state)
end

-- Parses a run's field. Returns nil if it is not a run.
local function parse_run(raw)
  if type(raw) ~= 'string' then return nil end
  local state, attempts, losses, queue, token, mark = string.match(raw, '^(%a+) (%d+) (%d+) (%S+) (%S*) ?(%a*)$')
  if not state or (mark ~= '' and mark ~= 'urgent') then return nil end
  return { state = state, attempts = tonumber(attempts), losses = tonumber(losses), queue = queue, token = token,
    urgent = mark == 'urgent' }
end

-- A run's record. Nil if there is none or it is damaged (pcall: a damaged key may have any type).
local function read_run(id, handler)
  return parse_run(redis.pcall('HGET', P .. 'e:' .. id, 'r:' .. handler))
end

local function packed(run)
  return run.state .. ' ' .. run.attempts .. ' ' .. run.losses .. ' ' .. run.queue .. ' ' .. run.token ..
    (run.urgent and ' urgent' or '')
end

local function write_run(id, handler, run)
  redis.call('HSET', P .. 'e:' .. id, 'r:' .. handler, packed(run))
end
