-- The events of one resource: each record has in `earlier` when the one before it was accepted, and `resources` has that time
-- of the newest one, by a digest of the resource; see accept.lua. They are only for people to look at: a damaged key must not
-- cost an event.
-- The same as in model.py.
local function resource_digest(store, topic, resource)
  return string.sub(redis.sha1hex(store .. '|' .. string.match(topic, '^[^.]*') .. '|' .. resource), 1, 12)
end

-- A member of a resource's line of numbers is "since id": when the run came into it (ms), and its event; see gap.lua.
local function event_in_line(member)
  return string.match(member, ' (.+)$')
end

-- The event leaves Redis, while `ix` still has it. Those that follow it keep the time, by which the history finds it.
local function unlink_resource(id, store, topic, resource)
  if not store or not topic or not resource or resource == '' then return end
  local key, digest = P .. 'resources', resource_digest(store, topic, resource)
  local newest = redis.pcall('HGET', key, digest)
  if type(newest) == 'string' and newest == redis.call('ZSCORE', P .. 'ix', id) then redis.call('HDEL', key, digest) end
end

-- No event that was accepted before `open_since` is open. One that is opened again may be older.
local function note_open(id)
  local since, accepted = redis.pcall('GET', P .. 'open_since'), redis.pcall('ZSCORE', P .. 'ix', id)
  if type(since) == 'string' and type(accepted) == 'string' and (tonumber(since) or 0) > tonumber(accepted) then
    redis.call('SET', P .. 'open_since', accepted)
  end
end
