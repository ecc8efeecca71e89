#!lua flags=allow-oom
-- claim_alert: the message that is due first, for one caller. If that dies, another one gets it after the lease.
-- ARGV  1 lease (ms)
-- returns item, message (JSON); nothing if none is due
return function()
  local due = P .. 'alert_due'
  for _, item in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', NOW, 'LIMIT', 0, 100)) do
    local message = redis.call('HGET', P .. 'alert_messages', item)
    if message then
      redis.call('ZADD', due, NOW + tonumber(ARGV[1]), item)
      return { item, message }
    end
    redis.call('ZREM', due, item)
  end
  return {}
end
