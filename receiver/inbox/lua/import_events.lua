#!lua
-- import_events: write events of another server as they were there. Runs that have ended stay so. The open ones wait here: what was
-- leased is ready again, what waits until later waits its whole delay again, and ordered ones wait for their turn.
-- An event that is here already stays as it is, but for what was done there and not here.
-- ARGV  1 the id of the data that they come from  2 the id of the export  3 up to which of its lines they are
--       then for each event: id, its score in `ix` (us), its score in `done` (ms), headers and body or "", how many parts of its
--       record follow and these, then how many parts of its once marks follow and these. In order of acceptance
-- returns for each 1, or 0 if Redis has an event or a mark with this id
-- No allow-oom: it needs memory.
local OPEN = { ready = true, leased = true, later = true, held = true, queued = true }

local function place_open(id, handler, run, store, mark)
  local item = item_of(id, handler)
  redis.call('HDEL', P .. 'e:' .. id, 'l:' .. handler, 'm:' .. handler)
  if handler ~= '' then redis.call('HSET', P .. 'lanes', handler, run.queue) end
  if mark then
    run.token = (run.state == 'later' or run.state == 'queued') and run.token or ''
    run.state = 'queued'
    write_run(id, handler, run)
    if join_order(id, handler, mark, store) then activate(id, handler, run, store) end
  elseif run.state == 'later' then
    redis.call('ZADD', P .. 'later', NOW + (tonumber(run.token) or 0), item)
  else
    run.state, run.token = 'ready', ''
    write_run(id, handler, run)
    make_ready(id, handler, store, run.urgent)
    wake(run.queue)
  end
end

-- A failure with on_failure="stop" is the active run of its key.
local function place_failed(id, handler, run, mark)
  redis.call('ZADD', P .. 'failed', tonumber(run.token) or NOW, item_of(id, handler))
  if not mark or not stops_at_failure(mark) then return end
  local active = active_of(handler, key_in(mark)) or ''
  set_active(handler, key_in(mark), active == '' and id or id .. ' ' .. active)
end

local function note_times(id, accepted)
  local found = redis.pcall('GET', P .. 'accepted_until')
  local last = type(found) == 'string' and tonumber(found) or 0
  if tonumber(accepted) > last then redis.call('SET', P .. 'accepted_until', accepted) end
  note_open(id)
end

-- The newest event of the resource, as far as it is known here.
local function link_newest(store, topic, resource, accepted)
  if resource == '' then return end
  local digest = resource_digest(store, topic, resource)
  local newest = redis.pcall('HGET', P .. 'resources', digest)
  if type(newest) == 'table' or tonumber(newest or 0) >= tonumber(accepted) then return end
  redis.call('HSET', P .. 'resources', digest, accepted)
end

local function record_of(fields)
  local record = {}
  for at = 1, #fields, 2 do record[fields[at]] = fields[at + 1] end
  return record
end

-- Raises an error before anything of the event is written if a lane that it needs is damaged.
local function runs_in(record)
  local runs = {}
  for name, value in pairs(record) do
    local handler = string.match(name, '^r:(.*)$')
    local run = handler and parse_run(value)
    if run then
      runs[handler] = run
      if OPEN[run.state] then require_lane(handler) end
    end
  end
  return runs
end

-- This server has accepted the event itself, or has it from another export. Its effects that are done there are done, and a handler
-- that has ended there, and has no run here yet, does not run. An event that was erased here stays so.
local function merge(id, fields, marks)
  id = real_id(id)
  local e, about = P .. 'e:' .. id, redis.pcall('HMGET', P .. 'e:' .. id, 'store', 'erased')
  if not about[1] or about[2] then return end
  for at = 1, #marks, 2 do add_once_mark(P .. 'o:' .. id, marks[at], marks[at + 1]) end
  local record = record_of(fields)
  for name, value in pairs(record) do
    local handler = string.match(name, '^r:(.+)$')
    local run = handler and parse_run(value)
    if run and (run.state == 'done' or run.state == 'dropped') and redis.call('HSETNX', e, name, value) == 1 then
      for _, kind in ipairs({ 'x:', 'a:', 'p:' }) do
        if record[kind .. handler] then redis.call('HSET', e, kind .. handler, record[kind .. handler]) end
      end
    end
  end
end

local function import(data, id, accepted, settled, body, fields, marks)
  local e = P .. 'e:' .. id
  if redis.call('EXISTS', e) == 1 then
    change_or_quarantine(id, merge, id, fields, marks)
    return 0
  end
  local record = record_of(fields)
  local runs, store, open, bad = runs_in(record), record.store, 0, 0
  in_slices('HSET', e, fields)
  if body ~= '' then redis.call('SET', P .. 'b:' .. id, body) end
  if #marks > 0 then in_slices('HSET', P .. 'o:' .. id, marks) end
  redis.call('ZADD', P .. 'ix', accepted, id)
  redis.call('ZADD', P .. 'ix:' .. store, accepted, id)
  local alias = record.alias and P .. 'e:' .. record.alias
  if alias and redis.call('EXISTS', alias) == 0 then redis.call('HSET', alias, 'alias_of', id, 'digest', record.digest or '') end
  link_newest(store, record.topic or '', record.resource or '', accepted)
  if runs[''] and OPEN[runs[''].state] then add_to('ZADD', 'unrouted:' .. store, accepted, id) end
  for handler, run in pairs(runs) do
    local group = string.match(record['g:' .. handler] or '', ' (%a+)$')
    local mark = read_mark(id, handler)
    if OPEN[run.state] then
      open = open + 1
      place_open(id, handler, run, store, mark)
    elseif run.state == 'failed' then
      bad, group = bad + 1, 'failed'
      place_failed(id, handler, run, mark)
    else
      group = nil
    end
    redis.call('HDEL', e, 'g:' .. handler)
    if group then
      local at = run.state == 'failed' and tonumber(run.token) or NOW
      join_group(id, handler, store, group, record['x:' .. handler] or '', at)
    end
  end
  local state = open > 0 and 'open' or bad > 0 and 'failed' or 'settled'
  redis.call('HSET', e, 'state', state, 'open', open, 'bad', bad)
  if state == 'settled' then redis.call('ZADD', P .. 'done', tonumber(settled) > 0 and settled or NOW, id) end
  note_times(id, accepted)
  count('accepted', store, 1)
  count(state, store, 1)
  redis.call('HINCRBY', P .. 'imported', data .. '|accepted|' .. store, 1)
  return 1
end

return function()
  require_format()
  require_sets('done', 'ix', 'failed', 'later')
  local results, at = {}, 4
  while at <= #ARGV do
    local id, accepted, settled, body, fields, marks = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], nil, nil
    fields, at = counted_parts(at + 4)
    marks, at = counted_parts(at)
    results[#results + 1] = import(ARGV[1], id, accepted, settled, body, fields, marks)
  end
  note_brought(ARGV[2], ARGV[3])
  return results
end
