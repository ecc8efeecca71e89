-- Held items by lane, each lane's in its order, out of `held` and with their runs written as ready.
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
      table.insert(lanes[handler], id)
      back = back + 1
    end
  end
  return lanes, back
end

-- Whether work of a store waits in a lane at or after its virtual time: claims have not come to it.
local function waits(lane, store, now)
  if tonumber(redis.call('HGET', P .. 'fair:' .. lane, store) or 0) > now then return true end
  for _, item in ipairs(redis.call('ZRANGEBYSCORE', P .. 'ready:' .. lane, now, now)) do
    local id = split(item)
    if redis.pcall('HGET', P .. 'e:' .. id, 'store') == store then return true end -- one that is damaged is nobody's
  end
  return false
end

-- Held work of a store that is paused no longer goes back to its lanes, in its order. It takes its turn among the other
-- stores. But where some of the store's work was never claimed and so stayed in the lane (`first` call only: what is
-- there later may be what came back), it goes before that, and so before the others: its turn had come before.
local function bring_back(store, most, first)
  local lanes, back = take_held(store, most)
  for lane, ids in pairs(lanes) do
    local now = fair_times(lane).now
    local before = first and waits(lane, store, now)
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
