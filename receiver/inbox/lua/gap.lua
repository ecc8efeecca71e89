#!lua flags=allow-oom
-- gap: put a run into the line of its resource, by its number, and tell what it may wait for; for `wait_for_gap`.
-- ARGV  1 event  2 handler  3 resource: store|kind|id  4 its number  5 the largest number that was settled, or -1
--       6 keep the line for (ms)
-- returns how many runs with smaller numbers are in the line and have not ended, and for how long this one has been in it (ms)
local OPEN = { ready = true, leased = true, later = true, held = true, queued = true }

-- A member is "since id": when the run came into the line (ms), and its event.
local function event_of(member)
  return string.match(member, ' (.*)$')
end

local function since_of(id, key, number)
  for _, member in ipairs(redis.call('ZRANGE', key, number, number, 'BYSCORE')) do
    if event_of(member) == id then return tonumber(string.match(member, '^%d+')) end
  end
  redis.call('ZADD', key, number, string.format('%.0f %s', NOW, id))
  return NOW
end

-- Removes from the front of the line what has ended without being settled, such as a failure.
local function remove_ended(id, handler, key)
  while true do
    local first = redis.call('ZRANGE', key, 0, 0)[1]
    local run = event_of(first) ~= id and read_run(event_of(first), handler)
    if event_of(first) == id or run and OPEN[run.state] then return end
    redis.call('ZREM', key, first)
  end
end

return function()
  local id, handler, number = ARGV[1], ARGV[2], ARGV[4]
  local key = P .. 'gap:' .. handler .. '|' .. ARGV[3]
  if type(redis.pcall('ZCARD', key)) == 'table' then redis.call('UNLINK', key) end -- it has another type than ours
  redis.call('ZREMRANGEBYSCORE', key, '-inf', ARGV[5])
  local since = since_of(id, key, number)
  redis.call('PEXPIRE', key, ARGV[6])
  remove_ended(id, handler, key)
  return { redis.call('ZCOUNT', key, '-inf', '(' .. number), NOW - since }
end
