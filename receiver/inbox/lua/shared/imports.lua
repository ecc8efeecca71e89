-- Imports: what an export brings to a server that has a part of it.
-- A once mark. An effect that is done in either server is done. Returns whether it was written.
local function add_once_mark(key, field, mark)
  local found = redis.call('HGET', key, field)
  if found and (string.sub(found, 1, 5) == 'done ' or string.sub(mark, 1, 5) ~= 'done ') then return 0 end
  redis.call('HSET', key, field, mark)
  return 1
end

-- What an export has brought it does not bring again: its lines up to this one, and its secrets.
local function note_brought(export, line)
  redis.call('HSET', P .. 'imported', export .. '|lines', line)
end
