#!lua flags=allow-oom
-- own_writes: remember a plugin's writes to a resource, and decide whether an event of that resource is an echo of one.
-- ARGV  1 "begin", "end" or "judge"  2 resource: plugin|store|kind|id; the id is empty until a new one has its id
--       begin: 3 the write's own name  4 the run that writes
--       end:   3 and 4 as for begin, which is left out for a new resource  5 since when it was sent (ms ago)
--              6 the action of its echo: created, updated  7 digest of the resource in the answer; "" if it is not shown
--              8 digests of the names of the fields that were sent and of what was sent, with a "." in between, and a "!"
--              before them if the answer shows more changes than that; "" if the answer is what the run was called with, "?"
--              if there was no answer
--       judge: 3 event  4 the action of its topic  5 digest of its data; "" if it cannot be read
--              6 "drop" or "run": what the handler wants of an echo
-- judge returns {"run"}, {"echo", the run that wrote}, {"wait", ms} (a write to the resource has no answer yet) or
--       {"loop", ms, 1 if that is new}: the run is to begin after this time
local KEEP_MS, MAX_RESOURCES, MAX_WRITES = 300000, 10000, 32
-- An event that arrives during a write waits for the answer, at most until this time after the write began.
local MAX_WAIT_US, WAIT_MS = 10000000, 200
local MINUTE, MAX_DEPTH, MAX_LOOPS = 60000, 8, 1000
-- A receiver's clock may be behind the server's by this much.
local CLOCK_MS = 2000

local FIELDS = { 'begun', 'ended', 'closed', 'action', 'digest', 'sent', 'echo', 'follower', 'by' }

local function write_down(key, one)
  local values = {}
  for at, field in ipairs(FIELDS) do values[at] = one[field] end
  redis.call('HSET', key, one.name, table.concat(values, ' '))
end

-- The writes to a resource, the oldest first. "-" is a value that is not known yet.
local function read_all(key)
  local found, all = redis.call('HGETALL', key), {}
  for at = 1, #found, 2 do
    if found[at] ~= 'hops' then
      local one, place = { name = found[at] }, 0
      for value in string.gmatch(found[at + 1], '%S+') do
        place = place + 1
        one[FIELDS[place] or ''] = value
      end
      one.begun_us = tonumber(one.begun) or 0
      if place == #FIELDS then all[#all + 1] = one end
    end
  end
  table.sort(all, function(a, b) return a.begun_us < b.begun_us end)
  return all
end

local function now_us() return tonumber(clock[1]) * 1000000 + tonumber(clock[2]) end

local function text_of(number) return string.format('%.0f', number) end

local function remember(key, resource, one)
  write_down(key, one)
  redis.call('PEXPIRE', key, KEEP_MS)
  local all = read_all(key)
  for at = 1, #all - MAX_WRITES do redis.call('HDEL', key, all[at].name) end
  redis.call('ZADD', P .. 'writes', NOW, resource)
  redis.call('PEXPIRE', P .. 'writes', KEEP_MS)
  redis.call('ZREMRANGEBYSCORE', P .. 'writes', '-inf', NOW - KEEP_MS)
  while redis.call('ZCARD', P .. 'writes') > MAX_RESOURCES do
    redis.call('DEL', P .. 'written:' .. redis.call('ZPOPMIN', P .. 'writes')[1])
  end
end

local function begin_write(key, resource)
  local begun = text_of(now_us())
  remember(key, resource, { name = ARGV[3], begun = begun, ended = '-', closed = '-', action = '-', digest = '-',
    sent = '-', echo = '-', follower = '-', by = ARGV[4] })
end

local function end_write(key, resource)
  local one
  for _, found in ipairs(read_all(key)) do
    if found.name == ARGV[3] then one = found end
  end
  one = one or { name = ARGV[3], begun = text_of(now_us() - tonumber(ARGV[5]) * 1000), closed = '-', echo = '-',
    follower = '-', by = ARGV[4] }
  one.ended, one.action = text_of(now_us()), ARGV[6]
  one.digest, one.sent = ARGV[7] == '' and '-' or ARGV[7], ARGV[8] == '' and '-' or ARGV[8]
  remember(key, resource, one)
end

-- Whether any of these writes has no answer yet.
local function in_progress(writes, arrived)
  for _, one in ipairs(writes) do
    if one.ended == '-' and one.begun_us <= arrived and now_us() - one.begun_us < MAX_WAIT_US then return true end
  end
end

-- When the event arrived, by the server's clock (us). One that waited in a spool arrived before it was accepted.
local function arrival(id)
  local accepted = tonumber(redis.call('ZSCORE', P .. 'ix', id) or now_us())
  local received = tonumber(redis.call('HGET', P .. 'e:' .. id, 'received'))
  return received and math.min(accepted, (received + CLOCK_MS) * 1000) or accepted
end

local function sent_by(one) return string.match(one.sent, '^!?(.*)$') end
local function names_of(sent) return string.match(sent, '^[^.]*') end

-- Whether another write came between two, and gave the same fields other values, as its answer shows.
local function undone_between(first, write, before)
  for _, one in ipairs(before) do
    local is_between = one.begun_us >= (tonumber(first.ended) or math.huge) and (tonumber(one.ended) or math.huge) <= write.begun_us
    local is_other = sent_by(one) ~= sent_by(write) and names_of(sent_by(one)) == names_of(sent_by(write))
    if is_between and is_other and one.digest ~= '-' and one.digest ~= first.digest then return true end
  end
  return false
end

-- Whether a write may have changed nothing, because another one has sent the same, and others have changed the resource
-- meanwhile. A store that sends no event for a write without effect then sends only theirs. A write without an answer
-- may have sent the same.
local function may_be_idle(write, before)
  local sent = sent_by(write)
  if sent == '-' then return false end
  local shows_more = sent ~= write.sent
  for _, one in ipairs(before) do
    local is_other = one.name ~= write.name and one.begun_us <= tonumber(write.ended)
    local is_same = one.sent == '?' or sent_by(one) == sent
    if is_other and is_same and (shows_more or one.digest ~= write.digest) and not undone_between(one, write, before) then
      return true
    end
  end
  return false
end

-- The write that the event is the echo of. Each write has at most one echo: a person may restore the state that it left.
-- Nor is an event its echo that arrived after another one showed that the resource had changed since.
local function echoed_write(before, id, arrived)
  local found
  for _, one in ipairs(before) do
    if one.echo == id then return one end
    local is_open = one.echo == '-' and (one.closed == '-' or arrived <= tonumber(one.closed))
    local is_same = one.digest == ARGV[5] and one.action == ARGV[4]
    if is_open and is_same and not may_be_idle(one, before) then found = found or one end
  end
  return found
end

-- The event shows a change by others: no event that arrives later is the echo of a write that had ended before it.
local function close_writes(key, before, arrived)
  for _, one in ipairs(before) do
    if one.echo == '-' and one.closed == '-' and (tonumber(one.ended) or math.huge) <= arrived then
      one.closed = text_of(arrived)
      write_down(key, one)
    end
  end
end

-- Counts that an event followed a write and was no echo. Returns how many did in the last minute.
local function count_hop(key, is_new)
  local hops = {}
  for at in string.gmatch(redis.call('HGET', key, 'hops') or '', '%d+') do
    if tonumber(at) > NOW - MINUTE then hops[#hops + 1] = at end
  end
  if is_new then hops[#hops + 1] = text_of(NOW) end
  while #hops > MAX_DEPTH + 1 do table.remove(hops, 1) end
  redis.call('HSET', key, 'hops', table.concat(hops, ' '))
  return #hops
end

-- A run of a suspected loop begins a minute after its event arrived; so do the next ones, until the loop has ended.
local function delay(resource, depth, arrived)
  local before = tonumber(redis.call('ZSCORE', P .. 'loops', resource) or 0)
  local known = before > NOW - 2 * MINUTE
  local wait = math.ceil(arrived / 1000 + MINUTE - NOW)
  if wait <= 0 or not (known or depth > MAX_DEPTH) then return { 'run' } end
  redis.call('ZADD', P .. 'loops', NOW, resource)
  redis.call('PEXPIRE', P .. 'loops', 60 * MINUTE)
  redis.call('ZREMRANGEBYRANK', P .. 'loops', 0, -1 - MAX_LOOPS)
  return { 'loop', math.min(wait, MINUTE), known and 0 or 1 }
end

local function judge(key, resource)
  local id, arrived = ARGV[3], arrival(ARGV[3])
  local before = {} -- the writes that began before the event arrived
  for _, one in ipairs(read_all(key)) do
    if one.begun_us <= arrived then before[#before + 1] = one end
  end
  local echoed = echoed_write(before, id, arrived)
  if echoed and echoed.echo ~= id then
    echoed.echo = id
    write_down(key, echoed)
  end
  local followed, free
  for _, one in ipairs(before) do
    if one.follower == id then followed = one end
    if one.echo == '-' and one.follower == '-' then free = free or one end
  end
  if ARGV[6] == 'drop' then
    if echoed then return { 'echo', echoed.by } end
    local new = ARGV[4] == 'created' and read_all(P .. 'written:' .. string.match(resource, '^[^|]*|[^|]*|[^|]*|')) or {}
    if in_progress(before, arrived) or in_progress(new, arrived) then return { 'wait', WAIT_MS } end
  end
  local follows = followed or echoed or free
  if not echoed then close_writes(key, before, arrived) end
  if not follows then return { 'run' } end
  local is_new = follows.follower ~= id
  if is_new then
    follows.follower = id
    write_down(key, follows)
  end
  return delay(resource, count_hop(key, is_new), arrived)
end

return function()
  local resource = ARGV[2]
  local key = P .. 'written:' .. resource
  if ARGV[1] == 'judge' then return judge(key, resource) end
  if ARGV[1] == 'begin' then begin_write(key, resource) else end_write(key, resource) end
  return { 'ok' }
end
