#!lua flags=allow-oom
-- renew: extend the leases of running runs.
-- ARGV  1 lease (ms)  then for each run: item, token
-- returns the items that are no longer the caller's: it kills their runs. A caller whose lease had lapsed was late, not
--       lost, so the run's loss is taken back
return function()
  local lost = {}
  for at = 2, #ARGV, 2 do
    local id, handler = split(ARGV[at])
    local run = read_run(id, handler)
    if run and run.state == 'leased' and run.token == ARGV[at + 1] then
      redis.call('ZADD', P .. 'leased', NOW + tonumber(ARGV[1]), ARGV[at])
    else
      forgive_if_late(id, handler, ARGV[at + 1])
      lost[#lost + 1] = ARGV[at]
    end
  end
  return lost
end
