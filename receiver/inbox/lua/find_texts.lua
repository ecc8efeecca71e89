#!lua flags=no-writes
-- find_texts: which of a store's events have a text in their headers, body, record or once marks, a slice at a time.
-- ARGV  1 store  2 the time of acceptance to begin after ("-inf" at first)  3 maximum number of events  4 the text, not empty
-- returns {the time to go on after, "" at the end, then the ids}
return function()
  local text, most = ARGV[4], tonumber(ARGV[3])
  local from = ARGV[2] == '-inf' and ARGV[2] or '(' .. ARGV[2]
  local page = redis.call('ZRANGE', P .. 'ix:' .. ARGV[1], from, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  local found = { #page == 2 * most and page[#page] or '' }

  local function has(values)
    if type(values) == 'string' then return string.find(values, text, 1, true) end
    for _, value in ipairs(type(values) == 'table' and values or {}) do
      if string.find(value, text, 1, true) then return true end
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
