#!lua flags=allow-oom
-- orphans: end the waiting runs of handlers that no worker has had for a long time.
-- ARGV  1 for how long (ms)  2 how many at most  3 detail (JSON)
-- returns for each that became a failure {event id, handler, store, topic, group}
-- Nothing is ended while no worker at all has declared anything lately: then all workers are stopped.
return function()
  local absent, slice, ended, failed = tonumber(ARGV[1]), tonumber(ARGV[2]), 0, {}
  local newest, latest = {}, 0
  local seen = redis.call('HGETALL', P .. 'declared_at')
  for at = 1, #seen, 2 do
    local handler = string.match(seen[at], '^([^@]*)@') or seen[at]
    local when = tonumber(seen[at + 1]) or 0
    newest[handler] = math.max(newest[handler] or 0, when)
    latest = math.max(latest, when)
  end
  if latest < NOW - 60000 then return failed end

  for _, lane in ipairs(redis.call('HKEYS', P .. 'lanes')) do
    if (newest[lane] or 0) < NOW - absent then
      -- Of any keys: those that a failure stops stay, and would be the first ones each time.
      local found = read_or_set_aside('HRANDFIELD', 'order:' .. lane, 100, 'WITHVALUES') or {}
      ended = ended + fail_queued(lane, found, slice - ended, ARGV[3], failed)
      local set = P .. 'ready:' .. lane
      local items = ended < slice and redis.pcall('ZRANGE', set, 0, slice - ended - 1) or {} -- none, if the key is damaged
      ended = ended + fail_waiting(set, 'ready', items, lane, ARGV[3], failed)
      if ended >= slice then break end
    end
  end
  return failed
end
