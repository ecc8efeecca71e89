#!lua flags=allow-oom
-- claim_alert: the oldest message that is due, for one caller. If that dies, another one gets it after the lease. A message
-- waits until older ones of its rule to its target are accepted or given up: "fired" never arrives after "recovered".
-- ARGV  1 lease (ms)
-- returns item, message (JSON); nothing if none is due
return function()
  local due, items, at, older = P .. 'alert_due', {}, {}, {}
  local found = redis.call('ZRANGE', due, 0, -1, 'WITHSCORES')
  for place = 1, #found, 2 do
    items[#items + 1], at[found[place]] = found[place], tonumber(found[place + 1])
  end
  table.sort(items) -- an id begins with the number of its judgement
  for _, item in ipairs(items) do
    local rule, target = string.match(item, '^alert_%d+_%x+_(.+)_%a+(|.*)$')
    local line = (rule or item) .. (target or '')
    if not older[line] then
      local message = redis.call('HGET', P .. 'alert_messages', item)
      if message and at[item] <= NOW then
        redis.call('ZADD', due, NOW + tonumber(ARGV[1]), item)
        return { item, message }
      end
      if message then older[line] = true else redis.call('ZREM', due, item) end
    end
  end
  return {}
end
