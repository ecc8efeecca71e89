#!lua flags=allow-oom
-- reopen: make ended runs ready again, or create runs for a handler that did not exist then.
-- ARGV  1 the key of a replay's position, or ""  2 the position
--       3 "1" to repeat effects: once marks of these events are removed, and those of resources and stores are passed over by
--         these runs only, see once.lua
--       4 "1" to make the runs of paused handlers urgent: each begins although its handler is paused, until it was attempted
--       5 to 8 the step of a bulk action, see shared/bulk.lua
--       9 the value that the key of the position must have, "" for none: else another process replays the same
--       then for each run: item, queue, "1" to create a missing run or "failed" for one that must still be a failure or its
--       retry, and the order of a run that has none yet, or ""
-- returns for each run what became of it; `ReopenResult` in administration.py lists the words. Nothing if the step of a
-- bulk action was not taken, or if another process replays the same
local urgent, reopened -- whether they are urgent; the order keys of those that are ordered

local WAITING = { ready = true, held = true, later = true }

-- Whether it waits already: it is leased, held, queued or ready. One that is ready, but waits because its handler is paused, is
-- replayed if that changes it: an urgent replay lets it begin, and a retry that was due gets all its attempts again. So does a
-- retry that is queued.
local function is_open(run, handler)
  if run.state == 'ready' then
    return run.urgent or not (urgent or run.attempts > 0) or not is_paused('handler:' .. handler)
  end
  return run.state == 'leased' or run.state == 'held' or (run.state == 'queued' and run.attempts == 0)
end

-- The mark of a run that is reopened. One that was created before its handler was ordered gets a mark now.
local function mark_of(id, handler, store, order)
  local mark = read_mark(id, handler)
  if mark or order == '' then return mark end
  local topic, resource = unpack(redis.call('HMGET', P .. 'e:' .. id, 'topic', 'resource'))
  mark = order_mark(order, id, store, topic, resource)
  redis.call('HSET', P .. 'e:' .. id, 'k:' .. handler, mark)
  return mark
end

-- An ordered run takes its place by its time of acceptance among all that wait, even if its key waits for it as a failure
-- or a retry. Which of them begins is decided when all of this call are queued.
local function queue_reopened(id, handler, mark, store)
  local key, accepted = key_in(mark), accepted_at(id)
  local left = without(active_of(handler, key) or '', id)
  if left then set_active(handler, key, left) end
  add_to_queue(id, handler, mark, accepted)
  local known = reopened[item_of(key, handler)]
  reopened[item_of(key, handler)] = { handler, mark, store, math.min(accepted, known and known[4] or accepted) }
end

-- Queues the active run of a key, if it was accepted after this time and has not begun. Not one that a person has let begin
-- although its handler is paused, or that is repeated with what is merged into it after a loss; and a retry, or one that is not
-- due, only for one that is urgent.
local function queue_if_newer(id, handler, mark, store, accepted)
  local own = id ~= '' and accepted_at(id) or 0 -- of several, which one claim has leased, there is no such time
  local run = own > accepted and read_run(id, handler)
  if not run or run.urgent or (run.losses > 0 and is_merging(mark)) then return end
  local is_next = (run.state == 'ready' or run.state == 'held') and run.attempts == 0
  if not is_next and not (urgent and WAITING[run.state]) then return end
  if redis.pcall('ZREM', set_of(run.state, handler, store), item_of(id, handler)) ~= 1 then return end -- it is damaged
  run.state = 'queued'
  write_run(id, handler, run)
  add_to_queue(id, handler, mark, own)
  set_active(handler, key_in(mark), '')
end

local function begin_reopened()
  for _, one in pairs(reopened) do
    local handler, mark, store, accepted = unpack(one)
    queue_if_newer(active_of(handler, key_in(mark)) or '', handler, mark, store, accepted)
    if (active_of(handler, key_in(mark)) or '') == '' then advance(handler, mark, store) end
  end
end

local function reopen(item, queue, which, order)
  local id, handler = split(item)
  local e = P .. 'e:' .. id
  local store = redis.call('HGET', e, 'store')
  if not store then return 'gone' end
  if handler == 'intake' then return 'unreadable' end
  if not is_selected(item, id, handler) then return 'changed' end
  local run = read_run(id, handler)
  if not run and which ~= '1' then return 'absent' end
  if run and is_open(run, handler) then return 'open' end
  if redis.call('HEXISTS', e, 'erased') == 1 then return 'erased' end
  if redis.call('EXISTS', P .. 'b:' .. id) == 0 then return 'no-body' end
  local waits = run and (run.state == 'later' or run.state == 'ready' or run.state == 'queued')
  if which == 'failed' and not waits and run.state ~= 'failed' then return 'changed' end -- replayed or dropped by another
  if waits or (run and run.state == 'failed') then
    redis.call('ZREM', set_of(run.state, handler, store, read_mark(id, handler)), item)
    leave_group(id, handler, store)
  end
  if run and run.state == 'failed' then redis.call('HINCRBY', e, 'bad', -1) end
  if not waits then open_one_more(id, store) end
  redis.call('HDEL', e, 'reason')
  if ARGV[3] == '1' then
    for _, mark in ipairs(redis.call('HKEYS', P .. 'o:' .. id)) do
      if string.sub(mark, 1, #handler + 1) == handler .. '|' then redis.call('HDEL', P .. 'o:' .. id, mark) end
    end
    redis.call('HSET', e, 'o:' .. handler, '')
  elseif run and not waits and run.state ~= 'failed' then
    redis.call('HDEL', e, 'o:' .. handler) -- it has ended, and repeats nothing more
  end
  if run then redis.call('HINCRBY', e, 'p:' .. handler, 1) end
  redis.call('HSET', P .. 'lanes', handler, queue)
  local paused = is_paused('handler:' .. handler)
  local first = urgent and paused
  local mark = mark_of(id, handler, store, order)
  write_run(id, handler, { state = mark and 'queued' or 'ready', attempts = 0, losses = 0, queue = queue, token = '',
    urgent = first })
  if mark then queue_reopened(id, handler, mark, store) else make_ready(id, handler, store, first) end
  wake(queue)
  if is_paused('store:' .. store) then return 'store-paused' end
  return not paused and 'ready' or first and 'although-paused' or 'handler-paused'
end

return function()
  if ARGV[1] ~= '' and (redis.call('GET', ARGV[1]) or '') ~= ARGV[9] then return {} end
  if not begin_step(5) then return {} end
  local results, items = {}, {}
  urgent, reopened = ARGV[4] == '1', {}
  for at = 10, #ARGV, 4 do
    items[#items + 1] = ARGV[at]
    results[#results + 1] = change_or_quarantine(ARGV[at], reopen, unpack(ARGV, at, at + 3))
  end
  begin_reopened()
  end_step(5, items, results)
  if ARGV[1] ~= '' then redis.call('SET', ARGV[1], ARGV[2], 'EX', 604800) end
  return results
end
