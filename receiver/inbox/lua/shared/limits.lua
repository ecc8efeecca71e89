-- Limits, pauses and Busy: whether a run may begin.
-- A limit's slots are held by leased runs. The runs of one claim, which one child process performs one after the other,
-- hold one slot. A slot is free if none of its runs is still leased under its token, for whatever reason.
local function slots_taken(limit, most)
  local slots = P .. 'slots:' .. limit
  local held = redis.pcall('HLEN', slots)
  if type(held) == 'table' then -- damaged: it is quarantined, and removing it loses nothing
    quarantine(slots, held.err)
    redis.call('UNLINK', slots)
    return 0
  end
  if held < most then return held end
  local found = redis.call('HGETALL', slots)
  for at = 1, #found, 2 do
    local token, handler = string.match(found[at], '^([^|]*)|(.*)$')
    local in_use = false
    for id in string.gmatch(found[at + 1], '%S+') do
      local run = token and read_run(id, handler)
      in_use = in_use or (run and run.state == 'leased' and run.token == token)
    end
    if not in_use then held = held - redis.call('HDEL', slots, found[at]) end
  end
  return held
end

local function limit_of(handler)
  if limits[handler] == nil then limits[handler] = redis.call('HGET', P .. 'limits', handler) end
  return limits[handler]
end

-- Called when a run has ended. The last run of a slot frees it.
local function free_slot(id, handler, queue, token)
  local limit = limit_of(handler)
  if not limit then return end
  local slots, name, left = P .. 'slots:' .. limit, token .. '|' .. handler, {}
  for one in string.gmatch(redis.call('HGET', slots, name) or '', '%S+') do
    if one ~= id then left[#left + 1] = one end
  end
  if #left > 0 then
    redis.call('HSET', slots, name, table.concat(left, ' '))
  elseif redis.call('HDEL', slots, name) == 1 and redis.call('EXISTS', P .. 'ready:' .. handler) == 1 then
    wake(queue)
  end
end

-- Whether a handler or a store, "handler:NAME" or "store:NAME", is paused.
local function is_paused(whose)
  if anything_paused == nil then anything_paused = redis.call('EXISTS', P .. 'paused') == 1 end
  if anything_paused and paused[whose] == nil then
    paused[whose] = redis.call('SISMEMBER', P .. 'paused', whose) == 1
  end
  return anything_paused and paused[whose]
end

-- Until when a limit is busy, or a handler that has none ("h:NAME"); nil if it is not.
local function busy_until(name)
  local busy = redis.call('HGET', P .. 'busy', name)
  if not busy then return nil end
  local ends, delay = string.match(busy, '^(%d+) (%d+)$')
  ends = tonumber(ends) or 0
  if ends > NOW + (tonumber(delay) or 0) then -- longer than was asked: the clock was set back
    ends = NOW + delay
    redis.call('HSET', P .. 'busy', name, ends .. ' ' .. delay)
  end
  if ends > NOW then return ends end
  redis.call('HDEL', P .. 'busy', name)
  return nil
end

local function is_busy(handler)
  if anything_busy == nil then anything_busy = redis.call('EXISTS', P .. 'busy') == 1 end
  return anything_busy and busy_until(limit_of(handler) or 'h:' .. handler) ~= nil
end

-- Whether a new run of a handler may begin at once: it is not paused or busy, and no older run waits.
local function may_begin(handler)
  if startable[handler] == nil then
    local waits = redis.call('EXISTS', P .. 'ready:' .. handler) == 1
    startable[handler] = not (waits or is_paused('handler:' .. handler) or is_busy(handler))
  end
  return startable[handler]
end
