#!lua flags=allow-oom
-- renew: keep the leases of runs under way.
-- ARGV  1 lease (ms)  then for each run: item, token
-- gives the items that are no longer the caller's: their runs are to be killed. Where a lease had lapsed, whoever asks
-- was late and not lost, and the run is not charged with it
return function()
  local lost = {}
  for at = 2, #ARGV, 2 do
    local id, handler = split(ARGV[at])
    local run = read_run(id, handler)
    if run and run.state == 'leased' and run.token == ARGV[at + 1] then
      redis.call('ZADD', P .. 'leased', NOW + tonumber(ARGV[1]), ARGV[at])
    else
      was_only_late(id, handler, ARGV[at + 1])
      lost[#lost + 1] = ARGV[at]
    end
  end
  return lost
end
