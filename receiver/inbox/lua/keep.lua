#!lua flags=allow-oom
-- keep: let no mover take these events until they are released; see `kept:` in keys.py.
-- ARGV  1 for how long at most (ms)  2... ids
return function()
  for at = 2, #ARGV do redis.call('SET', P .. 'kept:' .. ARGV[at], '', 'PX', ARGV[1]) end
end
