#!lua flags=allow-oom
-- mark_moved: replace settled events that the history has by marks, by which their duplicates are known.
-- ARGV  1 how long duplicates of an event are known after it settled (ms)
--       then for each event what was read of it: id, its score in `done`, the digest of its once marks ("" if it has none)
-- returns how many were replaced. An event that was reopened, has other once marks by now, or is kept, is left as it is.

-- The digest of an event's once marks; the same as in receiver/inbox/history_moves.py. A run that lost its lease may
-- still write one after the event has settled.
local function digest_of_marks(id)
  local found = redis.call('HGETALL', P .. 'o:' .. id)
  if #found == 0 then return '' end
  local lines = {}
  for at = 1, #found, 2 do lines[#lines + 1] = redis.sha1hex(found[at]) .. redis.sha1hex(found[at + 1]) end
  table.sort(lines)
  return redis.sha1hex(table.concat(lines))
end

local function replace(id, settled, marks, known_for)
  local e, settled_at = P .. 'e:' .. id, redis.call('ZSCORE', P .. 'done', id)
  if not settled_at or tonumber(settled_at) ~= tonumber(settled) then return false end
  if redis.call('EXISTS', P .. 'kept:' .. id) == 1 then return false end
  local store, state, digest, received, repeated, theirs, resource, occurred, alias, topic = unpack(redis.call('HMGET', e,
    'store', 'state', 'digest', 'received', 'repeated', 'theirs', 'resource', 'occurred', 'alias', 'topic'))
  local same = redis.call('HGET', e, 'same') -- of one that was erased
  if not store or state ~= 'settled' or digest_of_marks(id) ~= marks then return false end
  local expires = string.format('%.0f', tonumber(settled) + known_for)
  unlink_resource(id, store, topic, resource)
  redis.call('UNLINK', e, P .. 'b:' .. id, P .. 'o:' .. id)
  local fields = { 'moved', same or sameness(theirs, resource, occurred), 'digest', digest or '', 'received', received or 0 }
  if repeated then fields[7], fields[8] = 'repeated', repeated end
  redis.call('HSET', e, unpack(fields))
  redis.call('PEXPIREAT', e, expires) -- one in the past removes it
  if alias then redis.call('PEXPIREAT', P .. 'e:' .. alias, expires) end
  batch('ZREM', P .. 'done', id)
  batch('ZREM', P .. 'ix', id)
  batch('ZREM', P .. 'ix:' .. store, id)
  return true
end

return function()
  require_sets('done', 'ix')
  local known_for, replaced = tonumber(ARGV[1]), 0
  for at = 2, #ARGV, 3 do
    if change_or_quarantine(ARGV[at], replace, ARGV[at], ARGV[at + 1], ARGV[at + 2], known_for) == true then
      replaced = replaced + 1
    end
  end
  return replaced
end
