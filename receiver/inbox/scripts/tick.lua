#!lua flags=allow-oom
-- tick: move due and lapsed work to ready, and wake whoever should do it. May be run by anyone, at any time, twice.
-- ARGV  1 how many items at most  2 lease (ms)  3 losses a run may have
--       4 detail (JSON) of a run that lost its worker too often  5 "0" to let no lease lapse this time
-- gives {due, lapsed, failed}
local slice, lease, allowed = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local due, lapsed, failed = 0, 0, 0

-- An item whose record is gone or says otherwise is debris: taken out and shown, never an error.
local function open_item(item, set, state)
  local id, handler = split(item)
  local run = read_run(id, handler)
  redis.call('ZREM', P .. set, item)
  if run and run.state == state then return id, handler, run, redis.call('HGET', P .. 'e:' .. id, 'store') end
  set_aside(item, 'found in ' .. set .. ' while its record says ' .. (run and run.state or 'nothing'))
end

for _, item in ipairs(redis.call('ZRANGEBYSCORE', P .. 'later', '-inf', NOW, 'LIMIT', 0, slice)) do
  local id, handler, run, store = open_item(item, 'later', 'later')
  if id then
    run.state = 'ready'
    write_run(id, handler, run)
    make_ready(id, handler, store)
    due = due + 1
  end
end

local ended = ARGV[5] == '0' and {} or redis.call('ZRANGEBYSCORE', P .. 'leased', '-inf', NOW, 'LIMIT', 0, slice)
for _, item in ipairs(ended) do
  local id, handler, run, store = open_item(item, 'leased', 'leased')
  if id then
    free_slot(id, handler, run)
    note_the_lapse(id, handler, run.token)
    run.losses, run.token = run.losses + 1, ''
    lapsed = lapsed + 1
    if run.losses > allowed then
      fail_run(id, handler, run, store, ARGV[4])
      failed = failed + 1
    else
      run.state = 'ready'
      write_run(id, handler, run)
      make_first(id, handler)
    end
  end
end

-- A lease that ends further away than a lease is long: the clock was set back.
for _, item in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leased', NOW + lease + 1, '+inf', 'LIMIT', 0, slice)) do
  redis.call('ZADD', P .. 'leased', NOW + lease, item)
end

for _, store in ipairs(redis.call('SMEMBERS', P .. 'resuming')) do bring_back(store, slice, false) end

write_gathered()
if redis.call('EXISTS', P .. 'ready:') == 1 then wake('default') end
local lanes = redis.call('HGETALL', P .. 'lanes')
for at = 1, #lanes, 2 do
  if redis.call('EXISTS', P .. 'ready:' .. lanes[at]) == 1 then wake(lanes[at + 1]) end
end
return { due, lapsed, failed }
