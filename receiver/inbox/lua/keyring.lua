#!lua
-- keyring: change the keyring and increment its version, in one step.
-- ARGV  1 "put" (a sealed secret), "remove" (a secret), "announce" (a store's secret is being changed) or "withdraw"
--       (an announcement)
--       2 a version that the new one must be above (0 = none)
--       then for each: store, fingerprint, the sealed secret (or ""). For "announce" the place of the fingerprint holds
--       a mark that is new each time, OWNER, OWNER.NUMBER or OWNER.NUMBER.IDS, and the third is "again" to leave another
--       owner's mark in place. For "withdraw" it holds the owner whose mark is removed, or "" for any owner's
-- returns the new version
local function owner(mark) return string.match(mark, '^[^.]*') end

return function()
  local version = math.max(tonumber(redis.call('GET', P .. 'keyring_version') or 0), tonumber(ARGV[2])) + 1
  redis.call('SET', P .. 'keyring_version', version)
  for at = 3, #ARGV, 3 do
    local store, mark, blob = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    if ARGV[1] == 'put' then
      redis.call('HSET', P .. 'secrets:' .. store, mark, blob)
    elseif ARGV[1] == 'remove' then
      redis.call('HDEL', P .. 'secrets:' .. store, mark)
    else
      local current = redis.call('HGET', P .. 'changing', store)
      local mine = not current or owner(current) == owner(mark)
      if ARGV[1] == 'announce' and (mine or blob ~= 'again') then
        redis.call('HSET', P .. 'changing', store, mark)
      elseif ARGV[1] == 'withdraw' and (mine or mark == '') then
        redis.call('HDEL', P .. 'changing', store)
      end
    end
    if ARGV[1] == 'put' or ARGV[1] == 'remove' then redis.call('HSET', P .. 'secret_versions', store, version) end
  end
  return version
end
