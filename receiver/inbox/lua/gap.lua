#!lua flags=allow-oom
-- gap: put a run into the line of its resource, by its number, and tell what it may wait for; for `wait_for_gap`.
-- ARGV  1 event  2 handler  3 resource: store|kind|id  4 its number  5 the largest number that was settled, or -1
--       6 keep the line for (ms)
-- returns how many runs with smaller numbers are in the line and have not ended, and for how long this one has been in it (ms)
local OPEN = { ready = true, leased = true, later = true, held = true }
local EXACT = 2 ^ 53 -- from here on, different numbers may have one score

local function since_of(id, key, number)
  for _, member in ipairs(redis.call('ZRANGE', key, number, number, 'BYSCORE')) do
    if event_in_line(member) == id then return tonumber(string.match(member, '^%d+')) or NOW end
  end
  redis.call('ZADD', key, number, string.format('%.0f %s', NOW, id))
  return NOW
end

local function is_open(id, handler)
  local run = read_run(id, handler)
  return run and OPEN[run.state] and redis.pcall('HEXISTS', P .. 'quarantined', item_of(id, handler)) == 0
end

-- Removes from the front of the line what has ended without being settled, such as a failure; and the run itself under another
-- number, if the scheme was changed.
local function remove_ended(id, handler, key, number)
  while redis.call('ZCOUNT', key, '-inf', '(' .. number) > 0 do
    local first = redis.call('ZRANGE', key, 0, 0)[1]
    local event = event_in_line(first)
    if event and event ~= id and is_open(event, handler) then return end
    redis.call('ZREM', key, first)
  end
end

return function()
  local id, handler, number, settled = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
  local key = P .. 'gap:' .. handler .. '|' .. ARGV[3]
  if type(redis.pcall('ZCARD', key)) == 'table' then redis.call('UNLINK', key) end -- it has another type than ours
  redis.call('ZREMRANGEBYSCORE', key, '-inf', (tonumber(settled) < EXACT and '' or '(') .. settled)
  local since = since_of(id, key, number)
  redis.call('PEXPIRE', key, ARGV[6])
  remove_ended(id, handler, key, number)
  return { redis.call('ZCOUNT', key, '-inf', '(' .. number), NOW - since }
end
