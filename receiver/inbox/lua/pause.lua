#!lua flags=allow-oom
-- pause: begin no more runs of a handler or a store. Running ones continue.
-- ARGV  1 "handler:NAME" or "store:NAME"
-- returns 1 if it was not paused before
return function()
  local store = string.match(ARGV[1], '^store:(.*)$')
  if store then redis.call('SREM', P .. 'resuming', store) end
  return redis.call('SADD', P .. 'paused', ARGV[1])
end
