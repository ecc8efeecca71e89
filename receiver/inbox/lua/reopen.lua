#!lua flags=allow-oom
-- reopen: make ended runs ready again, or create runs for a handler that did not exist then.
-- ARGV  1 the key of a replay's position, or ""  2 the position, "" to delete it
--       3 "1" to remove the handler's once marks for these events, so that effects are repeated
--       then for each run: item, queue, "1" to create a missing run
-- returns for each run "reopened", "open" (it is ready, running or held), "no-body" (removed by age), "absent" (no such run)
--       or "gone" (no such event)
local function leave_later(id, handler, store)
  redis.call('ZREM', P .. 'later', item_of(id, handler))
  leave_group(id, handler, store)
end

-- One run more is open. A closed event is open again, and one unit moves between counters.
local function open_one_more(id, e, store)
  if redis.call('HINCRBY', e, 'open', 1) > 1 then return end
  local state = redis.call('HGET', e, 'state')
  if state ~= 'open' then
    redis.call('HSET', e, 'state', 'open')
    redis.call('ZREM', P .. 'done', id)
    count(state, store, -1)
    count('open', store, 1)
  end
end

local function reopen(item, queue, make)
  local id, handler = split(item)
  local e = P .. 'e:' .. id
  local store = redis.call('HGET', e, 'store')
  if not store then return 'gone' end
  local run = read_run(id, handler)
  if not run and not make then return 'absent' end
  if run and (run.state == 'ready' or run.state == 'leased' or run.state == 'held') then return 'open' end
  if redis.call('EXISTS', P .. 'b:' .. id) == 0 then return 'no-body' end
  if run and run.state == 'later' then
    leave_later(id, handler, store)
  else
    if run and run.state == 'failed' then
      redis.call('ZREM', P .. 'failed', item)
      leave_group(id, handler, store)
      redis.call('HINCRBY', e, 'bad', -1)
    end
    open_one_more(id, e, store)
  end
  redis.call('HDEL', e, 'reason')
  if ARGV[3] == '1' then
    for _, mark in ipairs(redis.call('HKEYS', P .. 'o:' .. id)) do
      if string.sub(mark, 1, #handler + 1) == handler .. '|' then redis.call('HDEL', P .. 'o:' .. id, mark) end
    end
  end
  if run then redis.call('HINCRBY', e, 'p:' .. handler, 1) end
  redis.call('HSET', P .. 'lanes', handler, queue)
  write_run(id, handler, { state = 'ready', attempts = 0, losses = 0, queue = queue, token = '' })
  make_ready(id, handler, store)
  wake(queue)
  return 'reopened'
end

return function()
  local results = {}
  for at = 4, #ARGV, 3 do
    results[#results + 1] = reopen(ARGV[at], ARGV[at + 1], ARGV[at + 2] == '1')
  end
  if ARGV[1] ~= '' then
    if ARGV[2] == '' then redis.call('DEL', ARGV[1]) else redis.call('SET', ARGV[1], ARGV[2], 'EX', 604800) end
  end
  return results
end
