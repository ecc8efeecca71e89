#!lua flags=allow-oom
-- erase: remove what events say about a person. What stays is a record that says so: its state and runs, by which the
-- counters balance, and its digest, by which a redelivery is a duplicate.
-- ARGV  1 the id of the erasure  2 "1" to end open events, too  3... ids
-- returns for each event what became of it; `ErasedAs` in erasures.py lists the words
local STAYS = { v = true, store = true, topic = true, theirs = true, received = true, source = true, digest = true, state = true,
  open = true, bad = true, reason = true, secret = true, repeated = true, alias = true }
local OF_RUN = { r = true, p = true, l = true, m = true, g = true }
local WAITS = { ready = true, later = true, held = true, queued = true }

-- The result of a run without what the handler said; the same as in workers/operations/erasure/erased_events.py.
local function blank(detail, failed)
  return cjson.encode({ version = texts_in(detail).version, reason = 'erased', error = failed and 'erased' or nil })
end

local function end_open(id, handler, run, store, fields)
  local mark = fields['k:' .. handler]
  redis.call('ZREM', set_of(run.state, handler, store, mark), item_of(id, handler))
  if handler == '' then
    note_routed(id, store)
    redis.call('HDEL', P .. 'e:' .. id, 'r:')
    redis.call('HSET', P .. 'e:' .. id, 'reason', 'erased')
  else
    run.state, run.token, run.urgent = 'dropped', NOW, false
    write_run(id, handler, run)
  end
  end_run(id, store, false)
  if mark then
    leave_order(id, handler, mark, store)
    write_batched() -- the run that begins now may be the next one to be erased
  end
end

local function erase_run(id, handler, run, store, fields)
  leave_group(id, handler, store)
  local failed = run.state == 'failed'
  if WAITS[run.state] then end_open(id, handler, run, store, fields) end
  if handler == '' then return end
  local mark, detail = fields['k:' .. handler], blank(fields['x:' .. handler], failed)
  redis.call('HSET', P .. 'e:' .. id, 'x:' .. handler, detail)
  if not failed then return end
  if mark and stops_at_failure(mark) then leave_order(id, handler, mark, store) end
  join_group(id, handler, store, 'failed', detail)
end

-- What Redis remembers of the resource for the handlers of the event; see keys.py.
local function forget_resource(handler, store, topic, resource)
  local of = '|' .. store .. '|' .. string.match(topic or '', '^[^.]*') .. '|' .. resource
  local plugin = string.match(handler, '^[^.]*') .. of
  redis.call('UNLINK', P .. 'newest:' .. handler .. of, P .. 'gap:' .. handler .. of, P .. 'written:' .. plugin)
  for _, set in ipairs({ 'writes', 'loops' }) do redis.pcall('ZREM', P .. set, plugin) end
end

local function erase(id)
  local e, found, fields, runs = P .. 'e:' .. id, redis.call('HGETALL', P .. 'e:' .. id), {}, {}
  for at = 1, #found, 2 do
    fields[found[at]] = found[at + 1]
    local handler = string.match(found[at], '^r:(.*)$')
    if handler then runs[handler] = parse_run(found[at + 1]) end
  end
  local store, resource = fields.store, fields.resource or ''
  if not store then return 'gone' end
  if fields.erased then return 'erased' end
  if fields.state == 'open' and ARGV[2] ~= '1' then return 'open' end
  for _, run in pairs(runs) do
    if run.state == 'leased' then return 'running' end
  end
  for handler, run in pairs(runs) do
    erase_run(id, handler, run, store, fields)
    if resource ~= '' and handler ~= '' then forget_resource(handler, store, fields.topic, resource) end
  end
  unlink_resource(id, store, fields.topic, resource)
  local gone = {}
  for name in pairs(fields) do
    local kind = string.match(name, '^(%a):')
    if not STAYS[name] and not OF_RUN[kind] and not (kind == 'x' and runs[string.sub(name, 3)]) then gone[#gone + 1] = name end
  end
  in_slices('HDEL', e, gone)
  redis.call('HSET', e, 'erased', NOW .. ' ' .. ARGV[1], 'same', sameness(fields.theirs, resource, fields.occurred))
  redis.call('UNLINK', P .. 'b:' .. id, P .. 'o:' .. id)
  -- Another time than was read by who moves it to the history now: what was read is not what is here any more.
  local settled = redis.call('ZSCORE', P .. 'done', id)
  if settled then redis.call('ZADD', P .. 'done', tonumber(settled) + 1, id) end
  return 'erased'
end

return function()
  require_sets('done', 'ix', 'failed')
  local results = {}
  for at = 3, #ARGV do results[#results + 1] = change_or_quarantine(ARGV[at], erase, ARGV[at]) end
  release_heads_of_routed()
  return results
end
