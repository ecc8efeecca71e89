#!lua flags=allow-oom
-- claim: lease ready items to the caller.
-- ARGV  1 token  2 lease (ms)  3 how many in all
--       then for each lane: lane, how many of it, its limit or "", concurrency (0 = any), spacing (ms, 0 = any), burst
-- gives {declarations' version, ms until a limit opens again (0 = none), item...}
--       where an item is {item, attempts, losses, replays, store, topic, delivery, resource, received, occurred, source,
--       data_path, body}
-- An item that lost its worker before is a suspect: it is claimed alone, so that no other is charged for it. It is
-- passed over while others are claimed; callers begin with another lane each time, so its turn comes.
local token, lease, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local taken, again, size = {}, 0, 0
local LARGEST = 8 * 1024 * 1024 -- bytes of bodies in one claim: the server answers others meanwhile
local anything_paused = redis.call('EXISTS', P .. 'paused') == 1

-- What is read of an item: its run first, then what the caller is told. Nil where the record is of another type.
local function about_item(id, handler)
  local about = redis.pcall('HMGET', P .. 'e:' .. id, 'r:' .. handler, 'p:' .. handler, 'store', 'topic', 'delivery',
    'resource', 'received', 'occurred', 'source', 'data_path')
  return not about.err and about or nil
end

local function lease_run(item, id, handler, run, about, leases)
  local body = redis.pcall('GET', P .. 'b:' .. id)
  if type(body) ~= 'string' then body = false end
  run.state, run.token = 'leased', token
  write_run(id, handler, run)
  leases[#leases + 1], leases[#leases + 2] = NOW + lease, item
  size = size + (body and #body or 0)
  taken[#taken + 1] = { item, run.attempts, run.losses, about[2], about[3], about[4], about[5], about[6], about[7],
    about[8], about[9], about[10], body }
end

-- Work of a paused store leaves the lane, so that nobody searches past it; `resume` brings it back in order.
local function hold_if_paused(item, id, handler, run, store, score)
  if not store or redis.call('SISMEMBER', P .. 'paused', 'store:' .. store) == 0 then return false end
  run.state = 'held'
  write_run(id, handler, run)
  redis.call('ZADD', P .. 'held:' .. store, score, item)
  return true
end

local function open_again_in(ms)
  if again == 0 or ms < again then again = math.max(1, math.ceil(ms)) end
end

-- How many of a limit's runs may begin now, of `want`.
local function allowed(lane, want, limit, concurrency, spacing, burst)
  local shut = redis.call('HGET', P .. 'shut', limit ~= '' and limit or 'h:' .. lane)
  if shut then
    if tonumber(shut) > NOW then
      open_again_in(tonumber(shut) - NOW)
      return 0
    end
    redis.call('HDEL', P .. 'shut', limit ~= '' and limit or 'h:' .. lane)
  end
  if limit == '' then return want end
  if concurrency > 0 then want = math.min(want, concurrency - slots_taken(limit, concurrency)) end
  if spacing > 0 and want > 0 then
    local due = tonumber(redis.call('HGET', P .. 'paces', limit) or 0)
    local free = math.floor((NOW - due) / spacing) + 1
    if free < 1 then
      open_again_in(due - NOW)
      return 0
    end
    want = math.min(want, free, burst)
  end
  return want
end

local function took(lane, limit, spacing, burst, first, got)
  if limit == '' or got == 0 then return end
  redis.call('HSET', P .. 'limits', lane, limit)
  for at = first, first + got - 1 do redis.call('SADD', P .. 'slots:' .. limit, taken[at][1]) end
  if spacing > 0 then
    local due = tonumber(redis.call('HGET', P .. 'paces', limit) or 0)
    due = math.max(due, NOW - (burst - 1) * spacing) + got * spacing
    redis.call('HSET', P .. 'paces', limit, due)
    open_again_in(due - NOW)
  end
end

-- Takes up to `want` items of a lane.
local function take_from(lane, want, limit, concurrency, spacing, burst)
  local ready, before, last = P .. 'ready:' .. lane, #taken, nil
  if redis.call('EXISTS', ready) == 0 then return end
  if anything_paused and redis.call('SISMEMBER', P .. 'paused', 'handler:' .. lane) == 1 then return end
  want = allowed(lane, want, limit, concurrency, spacing, burst)
  local found = want > 0 and redis.call('ZRANGE', ready, 0, want - 1, 'WITHSCORES') or {}
  local gone, leases = {}, {}
  for at = 1, #found, 2 do
    local item = found[at]
    local id = split(item)
    local about = about_item(id, lane)
    local run = about and parse_run(about[1])
    local suspect = run and run.losses > 0
    if not (suspect and #taken > 0) then
      gone[#gone + 1] = item
      last = found[at + 1]
      if not run or run.state ~= 'ready' then
        set_aside(item, 'found ready while its record says ' .. (run and run.state or 'nothing'))
      elseif not (anything_paused and hold_if_paused(item, id, lane, run, about[3], last)) then
        lease_run(item, id, lane, run, about, leases)
      end
    end
    if size > LARGEST or (suspect and #taken == 1 and taken[1][1] == item) then
      room = 0
      break
    end
  end
  in_slices('ZREM', ready, gone)
  in_slices('ZADD', P .. 'leased', leases)
  if last then redis.call('HSET', P .. 'fair:' .. lane, '', last) end
  local got = #taken - before
  took(lane, limit, spacing, burst, before + 1, got)
  room = room - got
  if last and redis.call('EXISTS', ready) == 1 then wake(redis.call('HGET', P .. 'lanes', lane) or 'default') end
end

for at = 4, #ARGV, 6 do
  local want = math.min(tonumber(ARGV[at + 1]), room)
  if want > 0 then
    take_from(ARGV[at], want, ARGV[at + 2], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]))
  end
end
return { redis.call('GET', P .. 'declv') or '0', again, unpack(taken) }
