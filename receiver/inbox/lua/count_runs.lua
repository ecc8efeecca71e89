#!lua flags=allow-oom
-- count_runs: add to the run statistics of handlers; counts that are sent again are added once. A damaged key costs only
-- its own counts.
-- ARGV  1 worker  2 number of these counts  3 seconds for which the number is kept
--       then for each count: a hash by its name after "runs:", seconds until it expires, the field, what to add
return function()
  local counted = P .. 'runs_counted:' .. ARGV[1]
  local last = redis.pcall('GET', counted)
  if type(last) == 'string' and last == ARGV[2] then return end
  redis.call('SET', counted, ARGV[2], 'EX', ARGV[3])
  for at = 4, #ARGV, 4 do
    local name = P .. 'runs:' .. ARGV[at]
    redis.pcall('HINCRBY', name, ARGV[at + 2], ARGV[at + 3])
    redis.call('EXPIRE', name, ARGV[at + 1])
  end
end
