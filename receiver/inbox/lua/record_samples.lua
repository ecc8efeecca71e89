#!lua flags=allow-oom
-- record_samples: write samples of the counters into their rings; see queries/time_series.py. A sample that is older than
-- what its slot has changes nothing: several housekeepers may write, and one that hung.
-- ARGV  for each sample: the ring, its size, where in the ring (bytes), the sample, which begins with its time (s, 4 bytes)
-- returns how many were written
local function write(key, size, offset, sample)
  if redis.pcall('STRLEN', key) ~= size then -- it is new or damaged. Its whole size at once: growing would reserve twice that
    redis.call('DEL', key)
    redis.call('SETRANGE', key, size - 1, '\0')
  end
  local known = struct.unpack('>I4', redis.call('GETRANGE', key, offset, offset + 3))
  if known > struct.unpack('>I4', sample) and known <= NOW / 1000 then return 0 end -- a time ahead: the clock was set back
  redis.call('SETRANGE', key, offset, sample)
  return 1
end

return function()
  local written = 0
  for at = 1, #ARGV, 4 do
    written = written + write(P .. ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3])
  end
  return written
end
