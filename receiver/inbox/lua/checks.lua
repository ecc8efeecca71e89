#!lua
-- checks: assign stores whose subscriptions are due for a check to the caller, each to one caller.
-- ARGV  1 time between two checks of a store (ms)  2 how long the caller has (ms)  3 how many  4... the caller's stores
-- returns the stores. New stores get a time for their first check: one at once, the others spread over the time between two
-- checks. Callers may have read different configs, so each gets only stores of its own list. A store that is not in the
-- list keeps its time, and is removed when it was not checked for a day.
return function()
  require_format()
  local every, time, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local known, stores, due = {}, {}, {}
  local have = redis.call('ZRANGE', P .. 'check', 0, -1, 'WITHSCORES')
  for at = 4, #ARGV do stores[ARGV[at]] = true end
  for at = 1, #have, 2 do
    local store, turn = have[at], tonumber(have[at + 1])
    if not stores[store] then
      if turn < NOW - 86400000 then redis.call('ZREM', P .. 'check', store) end
    elseif turn > NOW + math.max(every, time) then
      redis.call('ZADD', P .. 'check', NOW + every, store) -- the clock was set back, or checks are more frequent now
    elseif turn <= NOW and #due < most then
      table.insert(due, store)
    end
    known[store] = true
  end
  local new = 0
  for at = 4, #ARGV do
    if not known[ARGV[at]] then
      local wait = math.floor(new * every / (#ARGV - 3))
      redis.call('ZADD', P .. 'check', NOW + wait, ARGV[at])
      if wait == 0 and #due < most then table.insert(due, ARGV[at]) end
      new = new + 1
    end
  end
  for _, store in ipairs(due) do redis.call('ZADD', P .. 'check', NOW + time, store) end
  return due
end
