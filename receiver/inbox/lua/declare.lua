#!lua flags=allow-oom
-- declare: record which handlers a worker has. Without handlers, only that the worker is alive.
-- ARGV  1 how long a declaration counts (ms)  2 after which silence a worker has a successor (ms)  3 "worker|place"
--       4 the version of the declarations that the caller knows  5 how many handlers it has, then for each: handler,
--       "handler@version#mark", queue, JSON; then the same for each declaration that it knows of all workers
-- returns the version of the declarations, which grows when one is new, changed, expires early or is declared again after
-- it had expired
-- If the server's version is older than the caller's, the server has lost data: it was emptied, or replaced by an older
-- copy. Then what the caller knows is declared again, so that no event is routed past the handlers of other workers.

local function handler_of(name) return string.match(name, '^[^@]*') end

-- When each was last declared, as {field, ms, ...}. A time in the future becomes the present: the clock was set back. A
-- field that is no time is removed.
local function read_times()
  local found, seen = redis.call('HGETALL', P .. 'declared_at'), {}
  for at = 1, #found, 2 do
    local name, when = found[at], tonumber(found[at + 1])
    if not when then
      redis.call('HDEL', P .. 'declared_at', name)
    else
      if when > NOW then redis.call('HSET', P .. 'declared_at', name, NOW) end
      seen[#seen + 1], seen[#seen + 2] = name, math.min(when, NOW)
    end
  end
  return seen
end

-- What is recorded of a worker: when it last declared, since when it does, and what.
local function read_record(text)
  local last, since, lines = string.match(text or '', '^(%d+) (%d+)\n(.*)$')
  return math.min(tonumber(last) or 0, NOW), math.min(tonumber(since) or NOW, NOW), lines or ''
end

local function record_worker(worker, last, since, names)
  local text = string.format('%d %d\n%s', last, since, table.concat(names, '\n'))
  redis.call('HSET', P .. 'declared_by', worker, text)
end

-- What workers have declared, as {field = true, handler = true}. One that is silent may only be restarting, or be cut off,
-- so what it wanted counts for as long as a declaration does; but not once its successor has begun: another worker at the
-- same place (host and config), which declares only since then. While all were stopped, no time passed for them.
local function read_workers(stopped)
  local found, records, latest, wanted = redis.call('HGETALL', P .. 'declared_by'), {}, {}, {}
  for at = 1, #found, 2 do
    local last, since, lines = read_record(found[at + 1])
    local one = { worker = found[at], place = string.match(found[at], '|(.*)') or '', since = since, lines = lines }
    one.last = math.min(last + stopped, NOW)
    one.is_silent = one.last < NOW - tonumber(ARGV[2])
    records[#records + 1] = one
    if not one.is_silent then latest[one.place] = math.max(latest[one.place] or 0, since) end
  end
  for _, one in ipairs(records) do
    local has_successor = one.place ~= '' and (latest[one.place] or 0) >= one.last
    if one.is_silent and (has_successor or one.last < NOW - tonumber(ARGV[1])) then
      redis.call('HDEL', P .. 'declared_by', one.worker)
    else
      local names = {}
      for name in string.gmatch(one.lines, '[^\n]+') do
        names[#names + 1] = name
        wanted[name], wanted[handler_of(name)] = true, true
      end
      record_worker(one.worker, one.last, one.since, names)
    end
  end
  return wanted
end

-- When each version of a handler was first declared, of the last ones. For people to look at: a damaged key costs nothing.
local VERSIONS_KEPT = 50
local function note_version(handler, name)
  local key = P .. 'versions:' .. handler
  redis.pcall('ZADD', key, 'NX', NOW, string.match(name, '@(.*)#') or '')
  redis.pcall('ZREMRANGEBYRANK', key, 0, -VERSIONS_KEPT - 1)
end

-- Since when declarations have been made at this server without loss; see route.lua.
local function record_since()
  local since = tonumber(redis.pcall('GET', P .. 'declared_since'))
  if not since or since > NOW then redis.call('SET', P .. 'declared_since', NOW) end
end

return function()
  require_format()
  local seen, latest, changed = read_times(), 0, false
  local version = tonumber(redis.pcall('GET', P .. 'declarations_version')) or 0
  record_since()
  for at = 2, #seen, 2 do latest = math.max(latest, seen[at]) end
  if latest < NOW - 60000 then
    -- All workers were stopped. The first one to return must not route as if the others' handlers had never existed, so
    -- their declarations are renewed. Those that had expired before the stop stay expired.
    for at = 1, #seen, 2 do
      if seen[at + 1] >= latest - tonumber(ARGV[1]) then
        redis.call('HSET', P .. 'declared_at', seen[at], NOW)
        seen[at + 1] = NOW
      end
    end
  end

  -- Old declarations are removed: after a day if another version has since asked for the same, else after ninety days,
  -- because a subscription may be removed only some time after the last declaration that asked for it.
  local DAY, newest = 86400000, {}
  local function asked_for(name) return (string.gsub(name, '@.*#', '#')) end
  for at = 1, #seen, 2 do
    local same = asked_for(seen[at])
    newest[same] = math.max(newest[same] or 0, seen[at + 1])
  end
  for at = 1, #seen, 2 do
    local when = seen[at + 1]
    if when < NOW - 90 * DAY or (when < NOW - DAY and when < newest[asked_for(seen[at])]) then
      redis.call('HDEL', P .. 'declarations', seen[at])
      redis.call('HDEL', P .. 'declared_at', seen[at])
      redis.call('SREM', P .. 'ordered', seen[at])
    end
  end

  redis.call('HSET', P .. 'declared_at', '@', NOW)
  local has_lost = version < (tonumber(ARGV[4]) or 0)
  local stopped = latest < NOW - tonumber(ARGV[2]) / 2 and NOW - latest or 0
  local own, of_others, last_own = {}, {}, 5 + 4 * tonumber(ARGV[5])
  for at = 6, has_lost and #ARGV or last_own, 4 do
    local handler, name, queue, text = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local last = tonumber(redis.call('HGET', P .. 'declared_at', name) or 0)
    if redis.call('HGET', P .. 'declarations', name) ~= text or last < NOW - tonumber(ARGV[1]) then
      redis.call('HSET', P .. 'declarations', name, text)
      note_version(handler, name)
      changed = true
    end
    redis.call('HSET', P .. 'declared_at', name, NOW)
    redis.call('HSET', P .. 'lanes', handler, queue)
    if string.find(text, '"order_by":"', 1, true) then redis.call('SADD', P .. 'ordered', name) end
    local names = at < last_own and own or of_others
    names[#names + 1] = name
  end
  local _, since = read_record(redis.call('HGET', P .. 'declared_by', ARGV[3]))
  record_worker(ARGV[3], NOW, since, own)
  if has_lost then record_worker('@', NOW, NOW, of_others) end

  -- A declaration that no worker makes any more expires early if one has the handler: it was given other topics or stores.
  local wanted = read_workers(stopped)
  for at = 1, #seen, 2 do
    local name, expired = seen[at], NOW - tonumber(ARGV[1]) - 1000 -- readers know the time in seconds
    if wanted[handler_of(name)] and not wanted[name] and seen[at + 1] > expired then
      redis.call('HSET', P .. 'declared_at', name, expired)
      changed = true
    end
  end
  -- A time, so that an emptied server has no version again that it had before.
  if changed then
    version = math.max(version + 1, NOW)
    redis.call('SET', P .. 'declarations_version', version)
  end
  return tostring(version)
end
