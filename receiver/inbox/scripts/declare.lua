#!lua flags=allow-oom
-- declare: say which handlers a worker has.
-- ARGV  1 how long a declaration counts (ms)  then for each handler: "handler@version", declaration (JSON)
-- gives the version of the declarations; it grows when one is new, changed or back after its time
local changed = false
for at = 2, #ARGV, 2 do
  local name, text = ARGV[at], ARGV[at + 1]
  local seen = tonumber(redis.call('HGET', P .. 'seen', name) or 0)
  if redis.call('HGET', P .. 'decl', name) ~= text or seen < NOW - tonumber(ARGV[1]) then
    redis.call('HSET', P .. 'decl', name, text)
    changed = true
  end
  redis.call('HSET', P .. 'seen', name, NOW)
end
if changed then redis.call('INCR', P .. 'declv') end
return redis.call('GET', P .. 'declv') or '0'
