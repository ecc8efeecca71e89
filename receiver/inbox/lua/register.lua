#!lua flags=allow-oom
-- register: show a worker to RQ's tools, as RQ does, and remove workers from RQ's lists that were killed.
-- ARGV  1 the worker's key  2 how long it is shown (s)  3 how many queues, then these, as RQ calls them; then its fields
-- One of the fields, `storehooks`, tells our workers from RQ workers of other programs, which may listen on our queues by mistake.
-- Everything is written each time: after an outage the key has expired, and a reload may have changed the queues.
local SLICE = 20 -- workers of a queue that are examined each time

local function of_queue(queue) return 'rq:workers:' .. queue end

-- The record of a killed worker expires, and RQ's lists keep its key. Only lists of our queues are read, so a worker of
-- another program is left alone. A record of ours that lasts longer was written before the clock was set back.
local function remove_killed(queue, longest)
  for _, worker in ipairs(redis.call('SRANDMEMBER', of_queue(queue), SLICE)) do
    local seconds = redis.call('TTL', worker)
    if seconds == -2 then
      redis.call('SREM', of_queue(queue), worker)
      redis.call('SREM', 'rq:workers', worker)
    elseif seconds > longest and redis.call('HEXISTS', worker, 'storehooks') == 1 then
      redis.call('EXPIRE', worker, longest)
    end
  end
end

return function()
  local worker, last = ARGV[1], 3 + tonumber(ARGV[3])
  for queue in string.gmatch(redis.call('HGET', worker, 'queues') or '', '[^,]+') do
    redis.call('SREM', of_queue(queue), worker)
  end
  redis.call('HSET', worker, unpack(ARGV, last + 1))
  redis.call('EXPIRE', worker, ARGV[2])
  redis.call('SADD', 'rq:workers', worker)
  for at = 4, last do
    redis.call('SADD', of_queue(ARGV[at]), worker)
    redis.pcall('SADD', 'rq:queues', 'rq:queue:' .. ARGV[at])
  end

  local ours = { [rq_queue(DEFAULT_QUEUE)] = true }
  for _, queue in ipairs(redis.call('HVALS', P .. 'lanes')) do ours[rq_queue(queue)] = true end
  for queue in pairs(ours) do remove_killed(queue, tonumber(ARGV[2])) end
end
