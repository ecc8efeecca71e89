#!lua flags=allow-oom
-- judge_alerts: compare the alerts that fire now with those that fired before. Each target gets one message for each rule
-- about the alerts that fire and that it was not sent yet, and one about those of them that have recovered. So a target that
-- is added while an alert fires gets both. Changes nothing after another judgement: then what this one has read is old.
-- ARGV  1 how the ids of new messages begin  2 maximum number of alerts in a message  3 seconds until messages expire
--       4 `alert_marks` as they were before the rules were judged  5 the new ones
--       6 how many targets, then these; then for each alert that fires now "rule|subject" and its text
-- returns how many are new, and how many have recovered
return function()
  local alerts, messages, due, marks = P .. 'alerts', P .. 'alert_messages', P .. 'alert_due', P .. 'alert_marks'
  local before, now, new_messages, items, fired, recovered = {}, {}, {}, {}, 0, 0
  local first = 7 + tonumber(ARGV[6])
  require_type('alert_messages', 'HLEN')
  require_type('alert_due', 'ZCARD')
  local found = redis.call('HGETALL', alerts)
  for at = 1, #found, 2 do before[found[at]] = found[at + 1] end
  if (redis.call('GET', marks) or '') ~= ARGV[4] then return { 0, 0 } end
  redis.call('SET', marks, ARGV[5])

  local function all_targets()
    local sent_to = {}
    for at = 7, first - 1 do sent_to[ARGV[at]] = true end
    return sent_to
  end

  -- An alert without `sent_to` is of an older version, which sent it to every target.
  local function read(text)
    local ok, alert = pcall(cjson.decode, text)
    if not ok or type(alert) ~= 'table' or not alert.since then return nil end
    if type(alert.sent_to) ~= 'table' then alert.sent_to = all_targets() end
    return alert
  end

  local function add(target, name, what, alert)
    local rule, subject = string.match(name, '^([^|]*)|(.*)$')
    local item = ARGV[1] .. rule .. '_' .. what .. '|' .. target
    local message = new_messages[item]
    if not message then
      message = { rule = rule, what = what, at = NOW, tries = 0, error = '', number = 0, alerts = {} }
      new_messages[item], items[#items + 1] = message, item
    end
    message.number = message.number + 1
    if message.number <= tonumber(ARGV[2]) then
      message.alerts[message.number] = { subject = subject, text = alert.text, since = alert.since }
    end
  end

  for at = first, #ARGV, 2 do
    local name = ARGV[at]
    local alert = { since = NOW, sent_to = {} }
    if before[name] then alert = read(before[name]) or { since = NOW, sent_to = all_targets() } else fired = fired + 1 end
    now[name], alert.text = true, ARGV[at + 1]
    for place = 7, first - 1 do
      local target = ARGV[place]
      if not alert.sent_to[target] then
        alert.sent_to[target] = true
        add(target, name, 'fired', alert)
      end
    end
    redis.call('HSET', alerts, name, cjson.encode(alert))
  end
  for at = 1, #found, 2 do
    local name = found[at]
    if not now[name] then
      redis.call('HDEL', alerts, name)
      local alert = read(found[at + 1])
      if alert and string.find(name, '|', 1, true) then
        recovered = recovered + 1
        for place = 7, first - 1 do
          if alert.sent_to[ARGV[place]] then add(ARGV[place], name, 'recovered', alert) end
        end
      end
    end
  end
  for _, item in ipairs(items) do
    redis.call('HSET', messages, item, cjson.encode(new_messages[item]))
    redis.call('ZADD', due, NOW, item)
  end
  if #items > 0 then redis.call('EXPIRE', messages, ARGV[3]) end
  return { fired, recovered }
end
