#!lua flags=allow-oom
-- once: mark that an effect begins, has ended, or did not happen; for `ctx.once`.
-- ARGV  1 "begin", "end" or "clear"  2 place (o:...)  3 field  4 the run that does it  5 keep for (ms)
--       begin: 6 for how long another run's mark means that it is at work (ms)  7 "run" or "fail": what to do in doubt
--              8 a word of this call alone, or empty: a mark that has it is of a try whose answer was lost
--       end:   6 result (JSON)
--       clear: 6 the mark that `begin` returned, or its end: a space and the word
-- begin returns {"go", mark}, {"done", result}, {"doubt"} (an attempt died between the call and its mark) or
--       {"busy"} (another run is at work on it)

-- Whether a run that was replayed with --again is to make the call for the first time since then. It is noted, so that its
-- retries do not repeat it. The marks of its event were removed by `reopen`.
local function repeats_now(item)
  local id, handler = split(item)
  local e, name, effect = P .. 'e:' .. id, 'o:' .. handler, redis.sha1hex(ARGV[2])
  local begun = ARGV[2] ~= 'o:' .. id and redis.pcall('HGET', e, name)
  if type(begun) ~= 'string' or string.find(begun, effect, 1, true) then return false end
  redis.call('HSET', e, name, begun .. effect .. ' ')
  return true
end

return function()
  local place, field, item = P .. ARGV[2], ARGV[3], ARGV[4]

  if ARGV[1] == 'clear' then
    -- Only its own mark: a run that was stopped past its lease must not undo what the next attempt began or ended.
    local mark = redis.call('HGET', place, field)
    if mark and string.sub(mark, -#ARGV[6]) == ARGV[6] then redis.call('HDEL', place, field) end
    return { 'ok' }
  end
  if ARGV[1] == 'end' then
    redis.call('HSET', place, field, 'done ' .. ARGV[6])
    redis.call('PEXPIRE', place, ARGV[5])
    return { 'ok' }
  end

  local mark = redis.call('HGET', place, field)
  local when, whose, word = string.match(mark or '', '^begun (%d+) (%S*) ?(%S*)$')
  -- math.abs: a mark of the far future was written before the clock was set back.
  if whose ~= item and when and math.abs(NOW - tonumber(when)) < tonumber(ARGV[6]) then return { 'busy' } end
  local is_own = ARGV[8] ~= '' and word == ARGV[8]
  if not repeats_now(item) and mark and not is_own then
    if string.sub(mark, 1, 5) == 'done ' then return { 'done', string.sub(mark, 6) } end
    if ARGV[7] == 'fail' then return { 'doubt' } end
  end
  local begun = 'begun ' .. NOW .. ' ' .. item .. ' ' .. ARGV[8]
  redis.call('HSET', place, field, begun)
  redis.call('PEXPIRE', place, ARGV[5])
  return { 'go', begun }
end
