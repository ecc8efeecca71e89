#!lua flags=no-writes
-- find_texts: which of a store's events have some texts, all in one value: in their body with its headers, a field or a once mark.
-- ARGV  1 store  2 the time of acceptance to begin after ("-inf" at first)  3 maximum number of events, a slice
--       4... the texts, not empty
-- returns {the time to go on after, "" at the end, then the ids}
return function()
  local most = tonumber(ARGV[3])
  local from = ARGV[2] == '-inf' and ARGV[2] or '(' .. ARGV[2]
  local page = redis.call('ZRANGE', P .. 'ix:' .. ARGV[1], from, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  local found = { #page == 2 * most and page[#page] or '' }

  local function has_all(value)
    for at = 4, #ARGV do
      if not string.find(value, ARGV[at], 1, true) then return false end
    end
    return true
  end
  local function has(values)
    if type(values) == 'string' then return has_all(values) end
    for _, value in ipairs(type(values) == 'table' and values or {}) do
      if has_all(value) then return true end
    end
  end
  for at = 1, #page, 2 do
    local id = page[at]
    if has(redis.pcall('GET', P .. 'b:' .. id)) or has(redis.pcall('HGETALL', P .. 'e:' .. id))
      or has(redis.pcall('HGETALL', P .. 'o:' .. id)) then
      found[#found + 1] = id
    end
  end
  return found
end
