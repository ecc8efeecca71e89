#!lua flags=allow-oom
-- pause: let no more work of a handler or a store begin. What is under way goes on.
-- ARGV  1 "handler:NAME" or "store:NAME"
-- gives 1 if it was not paused before
return function()
  local store = string.match(ARGV[1], '^store:(.*)$')
  if store then redis.call('SREM', P .. 'resuming', store) end
  return redis.call('SADD', P .. 'paused', ARGV[1])
end
