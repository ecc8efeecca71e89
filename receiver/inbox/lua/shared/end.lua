-- Ends of runs: losses, events that close, groups of failures.
-- A worker that reports on a lapsed lease was late, not lost, so the loss is taken back. That is limited, because a run
-- that makes its worker late each time must end.
local LATE_ALLOWED = 20
local function record_lapse(id, handler, token)
  local e, lapse = P .. 'e:' .. id, 'l:' .. handler
  local late = string.match(redis.call('HGET', e, lapse) or '', ' (%d+)$') or '0'
  redis.call('HSET', e, lapse, token .. ' ' .. late)
end

local function forgive_if_late(id, handler, token)
  local e, lapse = P .. 'e:' .. id, 'l:' .. handler
  local noted = redis.pcall('HGET', e, lapse)
  local whose, late = string.match(type(noted) == 'string' and noted or '', '^(%S+) (%d+)$')
  if whose ~= token or tonumber(late) >= LATE_ALLOWED then return end
  local run = read_run(id, handler)
  if run and run.losses > 0 and (run.state == 'ready' or run.state == 'leased' or run.state == 'held'
    or run.state == 'queued') then
    redis.call('HSET', e, lapse, '- ' .. late + 1)
    run.losses = run.losses - 1
    write_run(id, handler, run)
  end
end

-- One run fewer is open. The last one closes the event.
local function end_run(id, store, failed)
  local e = P .. 'e:' .. id
  if failed then redis.call('HINCRBY', e, 'bad', 1) end
  if redis.call('HINCRBY', e, 'open', -1) > 0 then return end
  local state = tonumber(redis.call('HGET', e, 'bad') or 0) > 0 and 'failed' or 'settled'
  redis.call('HSET', e, 'state', state)
  if state == 'settled' then redis.call('ZADD', P .. 'done', NOW, id) end
  count('open', store, -1)
  count(state, store, 1)
end

-- One run more is open. A closed event is open again, and one unit moves between counters.
local function open_one_more(id, store)
  local e = P .. 'e:' .. id
  if redis.call('HINCRBY', e, 'open', 1) > 1 then return end
  local state = redis.call('HGET', e, 'state')
  if state ~= 'open' then
    redis.call('HSET', e, 'state', 'open')
    redis.call('ZREM', P .. 'done', id)
    count(state, store, -1)
    count('open', store, 1)
    note_open(id)
  end
end

-- One failure fewer, because a person gave it up. The last one of a closed event settles it.
local function settle_failure(id, store)
  local e = P .. 'e:' .. id
  if redis.call('HINCRBY', e, 'bad', -1) ~= 0 or redis.call('HGET', e, 'state') ~= 'failed' then return end
  redis.call('HSET', e, 'state', 'settled')
  redis.call('ZADD', P .. 'done', NOW, id)
  count('failed', store, -1)
  count('settled', store, 1)
end

-- The texts of the result of a run, by name; an empty one for each that it does not have. JSON null is not nil in Lua.
local function texts_in(detail)
  local ok, fields = pcall(cjson.decode, detail or '')
  if not ok or type(fields) ~= 'table' then fields = {} end
  return setmetatable({}, { __index = function(_, name) return type(fields[name]) == 'string' and fields[name] or '' end })
end

-- The group of a handler for all causes beyond the maximum number of its groups.
local MAX_GROUPS = 200
local function others_group(handler) return string.sub(redis.sha1hex('other causes|' .. handler), 1, 8) end

-- A group shows the error of one of its runs.
local function show_example(group, item, handler, texts)
  local others = group == others_group(handler) and 'other causes, beyond ' .. MAX_GROUPS .. ' groups; the last: ' or ''
  redis.call('HSET', P .. 'g:' .. group, 'handler', handler, 'example', item, 'error', others .. texts.error, 'at', texts.at)
end

-- Failures with one cause form a group, whether they are still retried or given up. A run is in at most one group. An
-- empty group is removed, unless the run is about to join it again. If it showed the error of this run, it shows that of
-- another one.
local function leave_group(id, handler, store, next_group)
  local e = P .. 'e:' .. id
  local mark = redis.call('HGET', e, 'g:' .. handler)
  if not mark then return end
  local group, kind = string.match(mark, '^(%S+) (%S+)$')
  local g, own = P .. 'g:' .. group, 's:' .. store
  redis.call('HDEL', e, 'g:' .. handler)
  pcall(function() -- a damaged list of failures must not stop the run
    redis.call('ZREM', P .. 'gr:' .. group, item_of(id, handler))
    redis.call('HINCRBY', g, kind, -1)
    if redis.call('HINCRBY', g, own, -1) <= 0 then redis.call('HDEL', g, own) end
    if group ~= next_group and redis.call('EXISTS', P .. 'gr:' .. group) == 0 then
      redis.call('UNLINK', g)
      redis.call('SREM', P .. 'gh:' .. handler, group)
      redis.call('ZREM', P .. 'groups', group)
    elseif redis.call('HGET', g, 'example') == item_of(id, handler) then
      local other = redis.call('ZRANGE', P .. 'gr:' .. group, 0, 0, 'REV')[1]
      local detail = other and redis.call('HGET', P .. 'e:' .. split(other), 'x:' .. handler)
      if other then show_example(group, other, handler, texts_in(detail)) end
    end
  end)
end

-- The group to join.
local function find_group(handler, group)
  local own = P .. 'gh:' .. handler
  local many = redis.pcall('SCARD', own)
  if type(many) == 'table' or redis.call('SISMEMBER', own, group) == 1 then return group end
  if many >= MAX_GROUPS then return others_group(handler) end
  redis.call('SADD', own, group)
  return group
end

-- `at`: when the run failed (ms), if that was before now; see import_events.lua.
local function join_group(id, handler, store, kind, detail, at)
  local texts = texts_in(detail)
  local group, version = texts.group, texts.version
  if group == '' then group = string.sub(redis.sha1hex(texts.reason .. '|' .. handler), 1, 8) end
  group = find_group(handler, group)
  leave_group(id, handler, store, group)
  local g, item = P .. 'g:' .. group, item_of(id, handler)
  redis.call('HSET', P .. 'e:' .. id, 'g:' .. handler, group .. ' ' .. kind)
  pcall(function()
    local when = at or NOW
    redis.call('ZADD', P .. 'gr:' .. group, when, item)
    redis.call('HSETNX', g, 'first', when)
    if not at or at >= tonumber(redis.call('HGET', g, 'last') or 0) then
      redis.call('ZADD', P .. 'groups', when, group)
      redis.call('HSET', g, 'last', when)
      show_example(group, item, handler, texts)
    end
    redis.call('HINCRBY', g, kind, 1)
    redis.call('HINCRBY', g, 's:' .. store, 1)
    redis.call('HINCRBY', g, 'v:' .. (version ~= '' and version or '?'), 1)
  end)
end

local function fail_run(id, handler, run, store, detail)
  run.state, run.token, run.urgent = 'failed', NOW, false
  write_run(id, handler, run)
  redis.call('HSET', P .. 'e:' .. id, 'x:' .. handler, detail)
  redis.call('ZADD', P .. 'failed', NOW, item_of(id, handler))
  end_run(id, store, true)
  join_group(id, handler, store, 'failed', detail)
  local mark = read_mark(id, handler)
  if mark and not stops_at_failure(mark) then leave_order(id, handler, mark, store) end
end

-- What is logged of a run that has just failed.
local function failure_of(id, handler, store)
  local about = redis.call('HMGET', P .. 'e:' .. id, 'topic', 'g:' .. handler)
  return { id, handler, store, about[1] or '', string.match(about[2] or '', '^%S+') or '' }
end
