-- Bulk actions: a step of one changes runs and the action's record together, so each step is taken once, also if two
-- processes try it.
local REPLAYED = { ready = true, ['although-paused'] = true, ['handler-paused'] = true, ['store-paused'] = true }
local bulk -- the action whose step this call is; nil if it is none

-- Returns whether the call may go on. It may not if the action was stopped, or if its next step begins elsewhere.
-- ARGV from `at` on: 1 the action's id, or ""  2 where the step begins  3 where it ends  4 when the next may be taken (ms)
local function begin_step(at)
  bulk = nil
  if ARGV[at] == '' then return true end
  local key = P .. 'bulk:' .. ARGV[at]
  local state, position, began = unpack(redis.call('HMGET', key, 'state', 'position', 'began'))
  if (state ~= 'trying' and state ~= 'running') or position ~= ARGV[at + 1] then return false end
  bulk = { key = key, began = tonumber(began), is_trying = state == 'trying' }
  return true
end

-- Whether a run is still the failure that was selected: it has not failed again since the action began. A time ahead of
-- the server's is from before its clock was set back.
local function is_selected(item, id, handler)
  if not bulk then return true end
  local group = string.match(redis.call('HGET', P .. 'e:' .. id, 'g:' .. handler) or '', '^%S+')
  local failed = group and redis.call('ZSCORE', P .. 'gr:' .. group, item)
  return failed and (tonumber(failed) <= bulk.began or tonumber(failed) > NOW)
end

-- A run that is not replayed while the first ones are tried is read again later, and is counted then.
local function end_step(at, items, results)
  if not bulk then return end
  redis.call('HSET', bulk.key, 'position', ARGV[at + 2], 'due', ARGV[at + 3])
  local tried, words = {}, {}
  for place, word in ipairs(results) do
    if REPLAYED[word] or not bulk.is_trying then words[word] = (words[word] or 0) + 1 end
    if REPLAYED[word] then tried[#tried + 1] = items[place] end
  end
  for word, many in pairs(words) do redis.call('HINCRBY', bulk.key, 'n:' .. word, many) end
  if bulk.is_trying and #tried > 0 then
    local before = redis.call('HGET', bulk.key, 'tried')
    redis.call('HSET', bulk.key, 'tried', (before and before .. ' ' or '') .. table.concat(tried, ' '))
  end
end
