#!lua
-- confirm: a receiver says which version of the keyring it has read. By the server's clock, for all hosts alike.
-- ARGV  1 receiver  2 version
return function()
  redis.call('HSET', P .. 'receivers', ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', NOW))
  return 1
end
