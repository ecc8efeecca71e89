#!lua flags=allow-oom
-- tick: make due and lapsed work ready, and wake workers for it. Any process may run it at any time, also twice.
-- ARGV  1 maximum number of items  2 lease (ms)  3 losses a run may have
--       4 detail (JSON) of a run that lost its worker too often  5 "0" to leave lapsed leases alone this time
-- returns {due, lapsed, failed}: two numbers, and {event id, handler, store, topic, group} of each run that failed
local EXAMINED = 100 -- waiting runs that one tick examines
local slice, lease, allowed, due, lapsed, failed

local function count_due(...)
  come_due(...)
  due = due + 1
end

local function lapse(id, handler, run, store)
  pcall(free_slot, id, handler, run.queue, run.token)
  record_lapse(id, handler, run.token)
  run.losses, run.token = run.losses + 1, ''
  lapsed = lapsed + 1
  if run.losses > allowed then
    fail_run(id, handler, run, store, ARGV[4])
    failed[#failed + 1] = failure_of(id, handler, store)
  else
    local mark = read_mark(id, handler)
    if mark and not is_merging(mark) then
      queue_again(id, handler, run, mark, store)
    else
      run.state = 'ready'
      write_run(id, handler, run)
      return_to_front(id, handler, run.urgent)
    end
    redis.call('SADD', P .. 'suspects', handler)
  end
end

local function set_aside_damaged(name, command)
  if not size_of(name, command) then set_aside(name) end
end

-- Each with a command of its type. Not `paused` and the declarations: without these, more would run than people want.
local CHECKED = { 'quarantined', 'HLEN', 'leased', 'ZCARD', 'later', 'ZCARD', 'failed', 'ZCARD', 'groups', 'ZCARD',
  'done', 'ZCARD', 'ix', 'ZCARD', 'n', 'HLEN', 'lanes', 'HLEN', 'limits', 'HLEN', 'paces', 'HLEN', 'busy', 'HLEN',
  'suspects', 'SCARD', 'resuming', 'SCARD', 'ordered', 'SCARD', 'heads', 'SCARD',
  'bulk', 'ZCARD', 'bulk_open', 'SCARD', 'alerts', 'HLEN', 'alert_messages', 'HLEN', 'alert_due', 'ZCARD',
  'alert_marks', 'STRLEN' }

-- Returns the lanes, each with its queue.
local function check_keys()
  for at = 1, #CHECKED, 2 do set_aside_damaged(CHECKED[at], CHECKED[at + 1]) end
  local lanes = redis.call('HGETALL', P .. 'lanes')
  lanes[#lanes + 1], lanes[#lanes + 2] = '', DEFAULT_QUEUE
  for at = 1, #lanes, 2 do
    set_aside_damaged('ready:' .. lanes[at], 'ZCARD')
    set_aside_damaged('fair:' .. lanes[at], 'HLEN')
  end
  for _, whose in ipairs(redis.pcall('SUNION', P .. 'paused', P .. 'resuming')) do
    set_aside_damaged('held:' .. string.gsub(whose, '^store:', ''), 'ZCARD')
  end
  return lanes
end

local function due_in(set)
  return redis.call('ZRANGEBYSCORE', P .. set, '-inf', NOW, 'LIMIT', 0, slice)
end

-- A run that is further away than its delay: the clock was set back. All waiting runs are examined in turn.
local function cut_later()
  local found = redis.pcall('GET', P .. 'later_examined')
  local from = type(found) == 'string' and tonumber(found) or 0 -- a damaged key is written again
  local items = redis.call('ZRANGE', P .. 'later', from, from + EXAMINED - 1, 'WITHSCORES')
  for at = 1, #items, 2 do
    local run = read_run(split(items[at]))
    local delay = run and tonumber(run.token)
    if delay and tonumber(items[at + 1]) > NOW + delay then redis.call('ZADD', P .. 'later', NOW + delay, items[at]) end
  end
  if #items == 2 * EXAMINED then
    redis.call('SET', P .. 'later_examined', from + EXAMINED)
  elseif found then
    redis.call('DEL', P .. 'later_examined')
  end
end

return function()
  slice, lease, allowed = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  due, lapsed, failed = 0, 0, {}
  local lanes = check_keys()

  move_each(P .. 'later', 'later', due_in('later'), count_due)
  if ARGV[5] ~= '0' then move_each(P .. 'leased', 'leased', due_in('leased'), lapse) end

  -- A lease that ends later than one lease from now: the clock was set back.
  for _, item in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leased', NOW + lease + 1, '+inf', 'LIMIT', 0, slice)) do
    redis.call('ZADD', P .. 'leased', NOW + lease, item)
  end

  write_batched()
  cut_later()

  for _, store in ipairs(redis.call('SMEMBERS', P .. 'resuming')) do return_held(store, slice, false) end
  for _, store in ipairs(redis.call('SMEMBERS', P .. 'heads')) do
    release_heads(store)
    if redis.call('EXISTS', P .. 'heads:' .. store) == 0 then redis.call('SREM', P .. 'heads', store) end
  end

  write_batched()
  for at = 1, #lanes, 2 do
    if redis.call('EXISTS', P .. 'ready:' .. lanes[at]) == 1 then wake(lanes[at + 1]) end
  end
  return { due, lapsed, failed }
end
