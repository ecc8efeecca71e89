#!lua flags=allow-oom
-- trim_store: remove the oldest settled events of one store above its maximum number, but none inside the duplicate window,
-- and none that is about to be replayed (kept:).
-- ARGV  1 store  2 how many to keep  3 how many to examine  4 the duplicate window (ms)  5 how many to skip
-- returns {how many were examined, how many were removed or, if damaged, quarantined}
return function()
  local store, removed = ARGV[1], 0
  local index = P .. 'ix:' .. store
  local excess = redis.call('ZCARD', index) - tonumber(ARGV[2])
  local look = math.min(excess, tonumber(ARGV[3]))
  if look <= 0 then return { 0, 0 } end
  local before = string.format('%.0f', (NOW - tonumber(ARGV[4])) * 1000) -- the index is in microseconds
  local found = redis.call('ZRANGEBYSCORE', index, '-inf', before, 'LIMIT', tonumber(ARGV[5]), look)
  for _, id in ipairs(found) do
    local state = redis.pcall('HGET', P .. 'e:' .. id, 'state')
    if type(state) == 'table' or state == 'settled' and redis.call('EXISTS', P .. 'kept:' .. id) == 0 then
      forget_or_quarantine(id, index, id)
      removed = removed + 1
    end
  end
  return { #found, removed }
end
