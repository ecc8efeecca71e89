#!lua flags=no-writes
-- read_whole: all that Redis has of some events, in one step.
-- ARGV  1 the size of bodies (bytes) after which no more events are read  2... ids
-- returns for each {its score in `ix` or false, record, headers and body or false, once marks}, or 0 if a part is damaged; fewer
--       than were asked for if their bodies are large
return function()
  local found, size, most = {}, 0, tonumber(ARGV[1])
  for at = 2, #ARGV do
    local id = ARGV[at]
    local ok, event = pcall(function()
      return { redis.call('ZSCORE', P .. 'ix', id), redis.call('HGETALL', P .. 'e:' .. id), redis.call('GET', P .. 'b:' .. id),
        redis.call('HGETALL', P .. 'o:' .. id) }
    end)
    if not ok and not is_damage(type(event) == 'table' and event.err or tostring(event)) then error(event, 0) end
    found[#found + 1] = ok and event or 0
    size = size + (ok and event[3] and #event[3] or 0)
    if size > most then break end
  end
  return found
end
