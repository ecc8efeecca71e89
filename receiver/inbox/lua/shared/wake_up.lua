-- The wake-up, written as RQ writes a job. Times look like 2026-11-15T01:41:26.000000Z.
-- The conversion of days to a date is Howard Hinnant's civil_from_days.
local function iso_now()
  local s = tonumber(clock[1])
  local z = math.floor(s / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, doy - math.floor((153 * mp + 2) / 5) + 1,
    math.floor(s % 86400 / 3600), math.floor(s % 3600 / 60), s % 60, tonumber(clock[2]))
end

local DEFAULT_QUEUE = 'default' -- see keys.py

-- What RQ calls the queue of a handler. Other programs have queues in this database too, and `default` is theirs.
local function rq_queue(queue)
  return queue == DEFAULT_QUEUE and 'storehooks' or 'storehooks:' .. queue
end

-- Pushes a wake-up if the queue has none. One is enough: the worker that takes it claims until nothing is ready. The
-- job's record is written once, with that time: one job is put into the queue again and again.
local function wake(queue)
  if woken[queue] then return end
  woken[queue] = true
  local origin, job = rq_queue(queue), 'wake-' .. queue
  local list = 'rq:queue:' .. origin
  if redis.call('LLEN', list) > 0 then return end
  if redis.call('EXISTS', 'rq:job:' .. job) == 0 then
    local stamp = iso_now()
    redis.call('SADD', 'rq:queues', list)
    redis.call('HSET', 'rq:job:' .. job, 'status', 'queued', 'origin', origin, 'created_at', stamp, 'enqueued_at', stamp,
      'description', 'work is ready in ' .. origin, 'timeout', 60,
      'data', '["workers.runtime.worker.wake_ups.refuse_plain_rq_worker", null, [], {}]')
  end
  redis.call('RPUSH', list, job)
end
