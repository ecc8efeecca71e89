#!lua
-- ring: change the keyring, in one step with its version.
-- ARGV  1 "put" (a sealed secret), "drop" (one), "learn" (a store's secret is under way) or "learnt" (no more)
--       2 a version that the new one must be above (0 = none)
--       then for each: store, fingerprint, the sealed secret (or ""). For "learn" a mark that is new each time is in the
--       place of the fingerprint, OWNER or OWNER.NUMBER, and then "again" if another owner's is to stand; for "learnt"
--       the owner whose mark goes, or "" for whichever stands
-- gives the new version
local function owner(mark) return string.match(mark, '^[^.]*') end

return function()
  local version = math.max(tonumber(redis.call('GET', P .. 'ringv') or 0), tonumber(ARGV[2])) + 1
  redis.call('SET', P .. 'ringv', version)
  for at = 3, #ARGV, 3 do
    local store, mark, blob = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    if ARGV[1] == 'put' then
      redis.call('HSET', P .. 'ring:' .. store, mark, blob)
    elseif ARGV[1] == 'drop' then
      redis.call('HDEL', P .. 'ring:' .. store, mark)
    else
      local stands = redis.call('HGET', P .. 'learning', store)
      local mine = not stands or owner(stands) == owner(mark)
      if ARGV[1] == 'learn' and (mine or blob ~= 'again') then
        redis.call('HSET', P .. 'learning', store, mark)
      elseif ARGV[1] == 'learnt' and (mine or mark == '') then
        redis.call('HDEL', P .. 'learning', store)
      end
    end
    if ARGV[1] == 'put' or ARGV[1] == 'drop' then redis.call('HSET', P .. 'rings', store, version) end
  end
  return version
end
