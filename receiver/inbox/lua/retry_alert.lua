#!lua flags=allow-oom
-- retry_alert: send a message again later, or give it up, unless it was accepted by now.
-- ARGV  1 item  2 message (JSON)  3 delay (ms); empty gives it up
return function()
  local messages, due = P .. 'alert_messages', P .. 'alert_due'
  if redis.call('HEXISTS', messages, ARGV[1]) == 0 then return end
  redis.call('HSET', messages, ARGV[1], ARGV[2])
  if ARGV[3] == '' then
    redis.call('ZREM', due, ARGV[1])
  else
    redis.call('ZADD', due, NOW + tonumber(ARGV[3]), ARGV[1])
  end
end
