#!lua
-- import_counters: add what other data has counted beyond the events that were imported from it, each unit once. `imported` has what
-- was added already.
-- ARGV  1 the id of that data  2 JSON: `stores`, a list of {store, accepted there};
--       `counters`, name -> number; `names`, store -> event name -> {how often, when last (ms)}
local function add(name, many)
  if many <= 0 then return end
  redis.call('HINCRBY', P .. 'n', name, many)
  redis.call('HINCRBY', P .. 'imported', ARGV[1] .. '|' .. name, many)
end

local function added(name) return tonumber(redis.call('HGET', P .. 'imported', ARGV[1] .. '|' .. name) or 0) end

-- Events that the other data has counted and no longer stored: they were settled, or were failures that retention removed.
local function add_past(store, accepted)
  local more = accepted - added('accepted|' .. store)
  add('accepted|' .. store, more)
  add('settled|' .. store, more)
end

-- Event names that a store has sent: the larger of both numbers, so that a repetition changes nothing.
local function add_name(key, name, many, last)
  many = math.max(many, tonumber(redis.call('HGET', key, 'n:' .. name) or 0))
  last = math.max(last, tonumber(redis.call('HGET', key, 'l:' .. name) or 0))
  redis.call('HSET', key, 'n:' .. name, string.format('%.0f', many), 'l:' .. name, string.format('%.0f', last))
end

return function()
  require_format()
  local given = cjson.decode(ARGV[2])
  for _, one in ipairs(given.stores) do add_past(one[1], one[2]) end
  for name, value in pairs(given.counters) do add(name, value - added(name)) end
  for store, names in pairs(given.names) do
    for name, seen in pairs(names) do add_name(P .. 't:' .. store, name, seen[1], seen[2]) end
  end
end
