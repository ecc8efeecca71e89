#!lua
-- import_keys: write what plugins and receivers remember beside events, as far as this server does not have it.
-- ARGV  1 the id of the export  2 up to which of its lines they are
--       then for each: key without the prefix, field or "" for a string, value, how long it is kept (ms, 0 = for ever)
-- returns how many were written
local function write(key, field, value, kept)
  if field == '' then
    local wrote = kept > 0 and redis.call('SET', key, value, 'NX', 'PX', kept) or redis.call('SET', key, value, 'NX')
    return wrote and 1 or 0
  end
  local is_new = redis.call('EXISTS', key) == 0
  local is_once = string.sub(key, #P + 1, #P + 2) == 'o:'
  local wrote = is_once and add_once_mark(key, field, value) or redis.call('HSETNX', key, field, value)
  if kept > 0 and is_new then
    redis.call('PEXPIRE', key, kept)
  elseif kept > 0 then
    redis.call('PEXPIRE', key, kept, 'GT')
  end
  return wrote
end

return function()
  require_format()
  local written = 0
  for at = 3, #ARGV, 4 do written = written + write(P .. ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])) end
  note_brought(ARGV[1], ARGV[2])
  return written
end
