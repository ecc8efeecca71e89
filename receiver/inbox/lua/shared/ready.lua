-- The fair order of ready items between stores.
local function fair_times(lane)
  if not fair[lane] then
    fair[lane] = { now = tonumber(redis.call('HGET', P .. 'fair:' .. lane, '')) or 0, last = {}, changed = {} }
  end
  return fair[lane]
end

-- An urgent run begins although its handler is paused, and before all others: its time in the lane is this much earlier.
local URGENT = 2 ^ 50

-- How many urgent runs a lane has. The time of any other is at least -1.
local function count_urgent(lane)
  return redis.call('ZCOUNT', P .. 'ready:' .. lane, '-inf', '(-1')
end

-- Fair order: each store's items are one unit of virtual time apart, and none starts in the past. The times are whole
-- numbers. Only items that return to their old place get a time between two of them.
local function make_ready(id, handler, store, urgent)
  local times = fair_times(handler)
  local last = times.last[store]
  if not last then
    local at = #times.changed + 1
    last = { at = at, time = tonumber(redis.call('HGET', P .. 'fair:' .. handler, store)) or 0 }
    times.last[store], times.changed[at], times.changed[at + 1] = last, store, 0
  end
  last.time = math.floor(math.max(times.now, last.time)) + 1
  times.changed[last.at + 1] = last.time
  batch('ZADD', P .. 'ready:' .. handler, last.time - (urgent and URGENT or 0), item_of(id, handler))
end

-- A run that waited until later becomes ready. Its item in `later` is the caller's.
local function come_due(id, handler, run, store)
  run.state, run.token = 'ready', ''
  write_run(id, handler, run)
  make_ready(id, handler, store, run.urgent)
end

-- An item that is given back without an attempt returns to the front, where it was.
local function return_to_front(id, handler, urgent)
  local time = fair_times(handler).now - (urgent and URGENT or 0)
  redis.call('ZADD', P .. 'ready:' .. handler, time, item_of(id, handler))
end

-- When a delay after an event's arrival is over; at most that long from now, since the receiver's clock may be ahead.
local function due_at(delay, received)
  return math.min(tonumber(received or 0) or 0, NOW) + delay
end
