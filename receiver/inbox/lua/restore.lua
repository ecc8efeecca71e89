#!lua
-- restore: write past events back as they were, settled, so that their runs can be reopened. The counters stay: they never
-- lost these events.
-- ARGV  for each event: id, its score in `ix` (us), headers and body or "", how many parts of its record follow and these,
--       then how many parts of its once marks follow and these
-- returns for each 1, or 0 if Redis has an event with this id
-- No allow-oom: it needs memory.
local function restore(id, accepted, body, fields, marks)
  local e = P .. 'e:' .. id
  if redis.call('HEXISTS', e, 'store') == 1 then return 0 end
  local repeated = redis.call('HGET', e, 'repeated') -- since it was moved
  in_slices('HSET', e, fields)
  if repeated then redis.call('HSET', e, 'repeated', repeated) end
  redis.call('HDEL', e, 'moved')
  redis.call('PERSIST', e)
  local store, digest, alias, topic, resource = unpack(redis.call('HMGET', e, 'store', 'digest', 'alias', 'topic', 'resource'))
  local other = alias and P .. 'e:' .. alias
  if other and redis.call('EXISTS', other) == 0 then redis.call('HSET', other, 'alias_of', id, 'digest', digest or '') end
  if other and real_id(alias) == id then redis.call('PERSIST', other) end
  if body ~= '' then redis.call('SET', P .. 'b:' .. id, body) end
  if #marks > 0 then in_slices('HSET', P .. 'o:' .. id, marks) end
  redis.call('ZADD', P .. 'ix', accepted, id)
  redis.call('ZADD', P .. 'ix:' .. store, accepted, id)
  if resource and resource ~= '' then
    redis.pcall('HSETNX', P .. 'resources', resource_digest(store, topic or '', resource), accepted)
  end
  redis.call('ZADD', P .. 'done', NOW, id) -- as if it had settled now: a mover that hung has read an older time
  return 1
end

return function()
  require_sets('done', 'ix')
  local results, at = {}, 1
  while at <= #ARGV do
    local id, accepted, body, fields, marks = ARGV[at], ARGV[at + 1], ARGV[at + 2], nil, nil
    fields, at = counted_parts(at + 3)
    marks, at = counted_parts(at)
    results[#results + 1] = restore(id, accepted, body, fields, marks)
  end
  return results
end
