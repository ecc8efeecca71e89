#!lua flags=allow-oom
-- bulk_state: give a bulk action that is at work another state. No step of one that has ended is taken any more.
-- ARGV  1 id  2 the new state  3 the state that it must have, or "" for any  4 why, for people
-- returns 1 if it had that state
return function()
  local key = P .. 'bulk:' .. ARGV[1]
  local state = redis.call('HGET', key, 'state')
  if (state ~= 'trying' and state ~= 'running') or (ARGV[3] ~= '' and state ~= ARGV[3]) then return 0 end
  redis.call('HSET', key, 'state', ARGV[2], 'why', ARGV[4])
  -- After the first runs of each handler, all groups are walked. One that has ended is open until its end is audited.
  if ARGV[2] == 'running' then redis.call('HSET', key, 'position', '') else redis.call('HSET', key, 'ended', NOW) end
  return 1
end
