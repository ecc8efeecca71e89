#!lua flags=allow-oom
-- confirm: record which version of the keyring a receiver has read. The time is the server's, the same for all hosts.
-- ARGV  1 receiver  2 version
return function()
  redis.call('HSET', P .. 'receivers', ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', NOW))
  return 1
end
