-- Repeats: whether two deliveries are one event.
-- The digest of an event's body; nil if there is no such event.
local function digest_of(event)
  local found = redis.pcall('HGET', P .. 'e:' .. event, 'digest')
  return type(found) == 'string' and found or nil
end

-- An event that was read again may be found under a second id; see reread.lua.
local function real_id(event)
  local found = redis.pcall('HGET', P .. 'e:' .. event, 'alias_of')
  return type(found) == 'string' and found or event
end

-- What the mark of a past event has in place of its topic, resource and time; "" if the store gave no time. See is_altered
-- in accept.lua.
local function sameness(theirs, resource, occurred)
  if not occurred or occurred == '' then return '' end
  return string.sub(redis.sha1hex((theirs or '') .. '\n' .. (resource or '') .. '\n' .. occurred), 1, 10)
end

-- Without a delivery id, an equal body is a repeat of an event if they arrived less than a window apart, in any order: a
-- spool is drained long after its deliveries arrived. An event has its mark in the span of one window in which it arrived,
-- so a repeat finds it in its own span or in a neighbouring one.
local function mark_key(store, mark, received, window, span)
  return string.format('%sd:%s:%s:%.0f', P, store, mark, math.floor(received / window) + span)
end

-- Arrival is compared by the receivers' clocks (`received`) and by the server's (`arrived`). Only if both agree is it a
-- repeat: clocks jump, hosts differ, and a server that hung accepts late. An event may run twice; none may be lost.
local function repeat_of(store, mark, received, arrived, window)
  for span = -1, 1 do
    local found = redis.call('GET', mark_key(store, mark, received, window, span)) or ''
    local by_receiver, by_server, id = string.match(found, '^(%d+) (%d+) (%S+)$')
    if id and math.abs(by_receiver - received) < window and math.abs(by_server - arrived) < window
      and redis.call('EXISTS', P .. 'e:' .. id) == 1 then
      return id
    end
  end
end

-- What is equal in repeats.
local function content_of(theirs, digest)
  return (theirs or '') .. ' ' .. digest
end

-- The content of the event that was accepted at this time, if that was after the event `id`; nil if not, or not known. One
-- that was read again is not among those of its resource, and may be later than the newest of these.
local function content_after(id, time)
  local found = redis.pcall('ZRANGE', P .. 'ix', time, time, 'BYSCORE', 'LIMIT', 0, 1)
  local about = found[1] and redis.pcall('HMGET', P .. 'e:' .. found[1], 'theirs', 'digest', 'occurred') or {}
  local is_later = about[2] and (tonumber(redis.pcall('ZSCORE', P .. 'ix', id) or 0) or 0) < tonumber(time)
  if is_later then return content_of(about[1], about[2]), about[3] or '' end
end

-- Marks stay this much longer than the window (ms), so that deliveries which waited in a spool find them. About one that
-- waited longer it is not known whether it is itself a repeat. It gets no mark: a repeat with a mark of its own would hide
-- a later update that comes after the window of the first.
local KNOWN_FOR = 3600000

local function set_mark(store, mark, received, arrived, window, id)
  if NOW - arrived > KNOWN_FOR then return end
  local value = string.format('%.0f %.0f %s', received, arrived, id)
  redis.call('SET', mark_key(store, mark, received, window, 0), value, 'PX', window + KNOWN_FOR)
end
