-- Items of paused stores.
-- Removes held items from `held` and writes their runs as ready. Returns them by lane, each lane in its order.
local function take_held(store, most)
  local held, lanes, back = P .. 'held:' .. store, {}, 0
  for _, item in ipairs(redis.call('ZRANGE', held, 0, most - 1)) do
    local id, handler = split(item)
    local run = read_run(id, handler)
    redis.call('ZREM', held, item)
    if not run or run.state ~= 'held' then
      quarantine(item, 'found in held while its record says ' .. (run and run.state or 'nothing'))
    else
      run.state = 'ready'
      write_run(id, handler, run)
      lanes[handler] = lanes[handler] or { queue = run.queue }
      if run.urgent then make_ready(id, handler, store, true) else table.insert(lanes[handler], id) end
      back = back + 1
    end
  end
  return lanes, back
end

-- Whether a lane has work of a store at or after the lane's virtual time, which claims have not reached.
local function has_work_in(lane, store, now)
  if tonumber(redis.call('HGET', P .. 'fair:' .. lane, store) or 0) > now then return true end
  for _, item in ipairs(redis.call('ZRANGEBYSCORE', P .. 'ready:' .. lane, now, now)) do
    local id = split(item)
    if redis.pcall('HGET', P .. 'e:' .. id, 'store') == store then return true end -- a damaged record belongs to no store
  end
  return false
end

-- Returns held work of a store that is no longer paused to its lanes, in its order. It takes its turn among the other
-- stores. But if some of the store's work was never claimed and stayed in the lane, held work goes before that, and so
-- before other stores: its turn had come before. Only the `first` call looks for such work, because later calls would
-- find what was returned.
local function return_held(store, most, first)
  local lanes, back = take_held(store, most)
  for lane, ids in pairs(lanes) do
    local now = fair_times(lane).now
    local before = first and has_work_in(lane, store, now)
    for at, id in ipairs(ids) do
      if before then
        redis.call('ZADD', P .. 'ready:' .. lane, now - 1 + at / (#ids + 1), item_of(id, lane))
      else
        make_ready(id, lane, store)
      end
    end
    wake(ids.queue)
  end
  if redis.call('EXISTS', P .. 'held:' .. store) == 0 then redis.call('SREM', P .. 'resuming', store) end
  return back
end
