#!lua flags=allow-oom
-- retire: a handler is removed for good. Its declarations and its pause are removed, and its waiting runs end as failures,
-- in slices of one place after the other. Leased runs end as usual; one that becomes ready again is ended by `orphans`.
-- ARGV  1 handler  2 place: "queued", "ready", "later" or "held:STORE"  3 cursor ("0" at first)  4 how many to examine
--       5 detail (JSON)
-- returns {the next cursor ("0" at the end of the place), how many became failures}
return function()
  local handler, place = ARGV[1], ARGV[2]
  for _, name in ipairs(redis.call('HKEYS', P .. 'declarations')) do
    if string.match(name, '^([^@]*)@') == handler then
      redis.call('HDEL', P .. 'declarations', name)
      redis.call('HDEL', P .. 'declared_at', name)
      redis.call('SREM', P .. 'ordered', name)
      redis.call('INCR', P .. 'declarations_version')
    end
  end
  redis.call('SREM', P .. 'paused', 'handler:' .. handler)

  if place == 'queued' then
    local page = read_or_set_aside('HSCAN', 'order:' .. handler, ARGV[3], 'COUNT', 100) or { '0', {} }
    return { page[1], fail_queued(handler, page[2], tonumber(ARGV[4]), ARGV[5], {}) }
  end
  local set = P .. (place == 'ready' and 'ready:' .. handler or place)
  local page = redis.call('ZSCAN', set, ARGV[3], 'COUNT', ARGV[4])
  local items = {}
  for at = 1, #page[2], 2 do items[#items + 1] = page[2][at] end
  return { page[1], fail_waiting(set, string.match(place, '^%a+'), items, handler, ARGV[5], {}) }
end
