#!lua flags=allow-oom
-- trim_store: keep at most so many events of one store. Only settled ones go, oldest first, and none whose duplicate
-- mark is still needed.
-- ARGV  1 store  2 how many to keep  3 how many to look at  4 the duplicate window (ms)  5 how many to pass over
-- gives {how many were looked at, how many were removed or, damaged, quarantined}
return function()
  local store, removed = ARGV[1], 0
  local index = P .. 'ix:' .. store
  local excess = redis.call('ZCARD', index) - tonumber(ARGV[2])
  local look = math.min(excess, tonumber(ARGV[3]))
  if look <= 0 then return { 0, 0 } end
  local before = NOW - tonumber(ARGV[4])
  local found = redis.call('ZRANGEBYSCORE', index, '-inf', before, 'LIMIT', tonumber(ARGV[5]), look)
  for _, id in ipairs(found) do
    local state = redis.pcall('HGET', P .. 'e:' .. id, 'state')
    if state == 'settled' or type(state) == 'table' then
      forget_or_quarantine(id, index, id)
      removed = removed + 1
    end
  end
  return { #found, removed }
end
