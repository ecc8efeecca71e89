#!lua flags=allow-oom
-- once: mark that an effect begins, has ended, or did not happen; for `ctx.once`.
-- ARGV  1 "begin", "end" or "clear"  2 place (o:...)  3 field  4 the run that does it  5 keep for (ms)
--       begin: 6 for how long another run's mark means that it is at work (ms)  7 "run" or "fail": what to do in doubt
--       end:   6 result (JSON)
--       clear: 6 the mark that `begin` returned
-- begin returns {"go", mark}, {"done", result}, {"doubt"} (an attempt died between the call and its mark) or
--       {"busy"} (another run is at work on it)
return function()
  local place, field, item = P .. ARGV[2], ARGV[3], ARGV[4]

  if ARGV[1] == 'clear' then
    -- Only its own mark: a run that was stopped past its lease must not undo what the next attempt began or ended.
    if redis.call('HGET', place, field) == ARGV[6] then redis.call('HDEL', place, field) end
    return { 'ok' }
  end
  if ARGV[1] == 'end' then
    redis.call('HSET', place, field, 'done ' .. ARGV[6])
    redis.call('PEXPIRE', place, ARGV[5])
    return { 'ok' }
  end

  local mark = redis.call('HGET', place, field)
  if mark then
    if string.sub(mark, 1, 5) == 'done ' then return { 'done', string.sub(mark, 6) } end
    local when, whose = string.match(mark, '^begun (%d+) (.*)$')
    -- math.abs: a mark of the far future was written before the clock was set back.
    if whose ~= item and when and math.abs(NOW - tonumber(when)) < tonumber(ARGV[6]) then return { 'busy' } end
    if ARGV[7] == 'fail' then return { 'doubt' } end
  end
  local begun = 'begun ' .. NOW .. ' ' .. item
  redis.call('HSET', place, field, begun)
  redis.call('PEXPIRE', place, ARGV[5])
  return { 'go', begun }
end
