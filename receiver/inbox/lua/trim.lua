#!lua flags=allow-oom
-- trim: remove old bodies and events, a slice at a time. Never an open event, never a failure inside its retention, never
-- a duplicate mark inside its window.
-- ARGV  1 maximum number  2 keep bodies for (ms)  3 keep records for (ms; not less than the duplicate window)
--       4 keep failures for (ms, 0 = until replayed or dropped)  5 how many old failures to skip
--       6 how long that must have been so before the first is removed (ms), so that people can be told
-- returns {bodies, records, failures} removed or, if damaged, quarantined, and how many failures to skip next time: those of
-- open events stay; while one equals the maximum there may be more
return function()
  local slice = tonumber(ARGV[1])
  local bodies, records, failures, skip = 0, 0, 0, 0

  -- `done` has settled events by the time they closed. `removed_until` is the time up to which bodies were removed.
  local found = redis.pcall('GET', P .. 'bodies_removed_until')
  local removed_until = type(found) == 'string' and tonumber(found) or 0 -- a damaged key is written again
  local until_ = NOW - tonumber(ARGV[2])
  if removed_until > until_ + 1 then -- the clock was set back, or bodies are kept longer: go on from here
    redis.call('SET', P .. 'bodies_removed_until', until_)
  elseif until_ > removed_until then
    local found = redis.call('ZRANGEBYSCORE', P .. 'done', removed_until, until_, 'WITHSCORES', 'LIMIT', 0, slice)
    local last = until_
    if #found == 2 * slice then
      -- A full slice: finish its last millisecond, so that the next slice can start after it.
      last = tonumber(found[#found])
      for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'done', last, last)) do
        redis.call('UNLINK', P .. 'b:' .. id)
      end
    end
    for at = 1, #found, 2 do bodies = bodies + redis.call('UNLINK', P .. 'b:' .. found[at]) end
    redis.call('SET', P .. 'bodies_removed_until', last + 1)
    if #found == 2 * slice then bodies = slice end
  end

  for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'done', '-inf', NOW - tonumber(ARGV[3]), 'LIMIT', 0, slice)) do
    forget_or_quarantine(id, P .. 'done', id)
    records = records + 1
  end

  local ends = P .. 'failures_end'
  if tonumber(ARGV[4]) == 0 then
    redis.call('DEL', ends)
  elseif not tonumber(redis.pcall('GET', ends)) then
    redis.call('SET', ends, NOW)
  elseif NOW - tonumber(redis.call('GET', ends)) >= tonumber(ARGV[6]) then
    local old = NOW - tonumber(ARGV[4])
    local found = redis.call('ZRANGEBYSCORE', P .. 'failed', '-inf', old, 'LIMIT', tonumber(ARGV[5]), slice)
    for _, item in ipairs(found) do
      local id = split(item)
      local state = redis.pcall('HGET', P .. 'e:' .. id, 'state')
      if state == 'failed' or type(state) == 'table' then
        forget_or_quarantine(id, P .. 'failed', item)
        failures = failures + 1
      end
    end
    if #found == slice then skip = tonumber(ARGV[5]) + slice - failures end
  end
  return { bodies, records, failures, skip }
end
