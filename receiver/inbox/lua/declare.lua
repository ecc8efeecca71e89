#!lua flags=allow-oom
-- declare: record which handlers a worker has. Without handlers, only that the worker is alive.
-- ARGV  1 how long a declaration counts (ms)  then for each handler: handler, "handler@version#mark", queue, JSON
-- returns the version of the declarations, which grows when one is new, changed or declared again after it had expired
return function()
  local seen, latest, changed = redis.call('HGETALL', P .. 'declared_at'), 0, false
  for at = 1, #seen, 2 do
    if tonumber(seen[at + 1]) > NOW then -- the clock was set back
      redis.call('HSET', P .. 'declared_at', seen[at], NOW)
      seen[at + 1] = NOW
    end
  end
  for at = 2, #seen, 2 do latest = math.max(latest, tonumber(seen[at])) end
  if latest < NOW - 60000 then
    -- All workers were stopped. The first one to return must not route as if the others' handlers had never existed, so
    -- their declarations are renewed. Those that had expired before the stop stay expired.
    for at = 1, #seen, 2 do
      if tonumber(seen[at + 1]) >= latest - tonumber(ARGV[1]) then
        redis.call('HSET', P .. 'declared_at', seen[at], NOW)
        seen[at + 1] = NOW
      end
    end
  end

  -- Old declarations are removed: after a day if another version has since asked for the same, else after ninety days,
  -- because a subscription may be removed only some time after the last declaration that asked for it.
  local DAY, newest = 86400000, {}
  local function asked_for(name) return (string.gsub(name, '@.*#', '#')) end
  for at = 1, #seen, 2 do
    local same = asked_for(seen[at])
    newest[same] = math.max(newest[same] or 0, tonumber(seen[at + 1]))
  end
  for at = 1, #seen, 2 do
    local when = tonumber(seen[at + 1])
    if when < NOW - 90 * DAY or (when < NOW - DAY and when < newest[asked_for(seen[at])]) then
      redis.call('HDEL', P .. 'declarations', seen[at])
      redis.call('HDEL', P .. 'declared_at', seen[at])
    end
  end

  redis.call('HSET', P .. 'declared_at', '@', NOW)
  for at = 2, #ARGV, 4 do
    local handler, name, queue, text = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local last = tonumber(redis.call('HGET', P .. 'declared_at', name) or 0)
    if redis.call('HGET', P .. 'declarations', name) ~= text or last < NOW - tonumber(ARGV[1]) then
      redis.call('HSET', P .. 'declarations', name, text)
      changed = true
    end
    redis.call('HSET', P .. 'declared_at', name, NOW)
    redis.call('HSET', P .. 'lanes', handler, queue)
  end
  if changed then redis.call('INCR', P .. 'declarations_version') end
  return redis.call('GET', P .. 'declarations_version') or '0'
end
