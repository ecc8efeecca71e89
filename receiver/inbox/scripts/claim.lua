#!lua flags=allow-oom
-- claim: lease ready items to the caller.
-- ARGV  1 token  2 lease (ms)  3 how many in all  then for each lane: lane, how many of it
-- gives {declarations' version, more (1 if asked lanes still hold work), item...} where an item is
--       {item, attempts, losses, replays, store, topic, delivery, resource, received, occurred, source, data_path, body}
-- An item that lost its worker before is a suspect: it is claimed alone, so that no other is charged for it. It is
-- passed over while others are claimed; callers begin with another lane each time, so its turn comes.
local token, lease, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local taken, more = {}, 0

local function lease_run(item, id, handler, run)
  run.state, run.token = 'leased', token
  write_run(id, handler, run)
  redis.call('ZADD', P .. 'leased', NOW + lease, item)
  local about = redis.call('HMGET', P .. 'e:' .. id, 'store', 'topic', 'delivery', 'resource', 'received', 'occurred',
    'source', 'data_path')
  taken[#taken + 1] = { item, run.attempts, run.losses, redis.call('HGET', P .. 'e:' .. id, 'p:' .. handler), about[1], about[2], about[3], about[4], about[5], about[6],
    about[7], about[8], redis.call('GET', P .. 'b:' .. id) }
end

-- Takes up to `want` items of a lane; gives how many it leased.
local function take_from(lane, want)
  local ready, before, last = P .. 'ready:' .. lane, #taken, nil
  local found = redis.call('ZRANGE', ready, 0, want - 1, 'WITHSCORES')
  for at = 1, #found, 2 do
    local item = found[at]
    local id = split(item)
    local run = read_run(id, lane)
    local suspect = run and run.losses > 0
    if not (suspect and #taken > 0) then
      redis.call('ZREM', ready, item)
      last = found[at + 1]
      if run and run.state == 'ready' then
        lease_run(item, id, lane, run)
      else
        set_aside(item, 'found ready while its record says ' .. (run and run.state or 'nothing'))
      end
    end
    if suspect and #taken == 1 and taken[1][1] == item then
      room = 0
      break
    end
  end
  if last then redis.call('HSET', P .. 'fair:' .. lane, '', last) end
  local got = #taken - before
  room = room - got
  if redis.call('EXISTS', ready) == 1 then
    more = 1
    if got > 0 then wake(redis.call('HGET', P .. 'lanes', lane) or 'default') end
  end
end

for at = 4, #ARGV, 2 do
  local want = math.min(tonumber(ARGV[at + 1]), room)
  if want > 0 then take_from(ARGV[at], want) end
end
return { redis.call('GET', P .. 'declv') or '0', more, unpack(taken) }
