#!lua flags=allow-oom
-- publish_spool: record what waits in the spool of a host, and that its receiver is alive or has stopped. The time is the
-- server's, the same for all hosts. Also at maxmemory: a host that does not report counts as silent.
-- ARGV  1 host  2 number of deliveries, or "null" if its file cannot be read  3 arrival of the oldest (s)
--       4 "receiving", or "stopped" for its last report  5 the version of storehooks
return function()
  if ARGV[4] == 'stopped' and ARGV[2] == '0' then return redis.call('HDEL', P .. 'spools', ARGV[1]) end
  local text = string.format('{"state": "%s", "count": %s, "oldest": %s, "at": %.3f, "version": "%s"}',
    ARGV[4], ARGV[2], ARGV[3], NOW / 1000, ARGV[5])
  return redis.call('HSET', P .. 'spools', ARGV[1], text)
end
