#!lua flags=allow-oom
-- judge_alerts: compare the alerts that fire now with those that fired before. Of each rule, those that are new make one
-- message for each target, and so do those that have recovered. Changes nothing after another judgement: then what this
-- one has read is old.
-- ARGV  1 how the ids of new messages begin  2 maximum number of alerts in a message  3 seconds until messages expire
--       4 `alert_marks` as they were before the rules were judged  5 the new ones
--       6 how many targets, then these; then for each alert that fires now "rule|subject" and its text
-- returns how many are new, and how many have recovered
return function()
  local alerts, messages, due, marks = P .. 'alerts', P .. 'alert_messages', P .. 'alert_due', P .. 'alert_marks'
  local before, now, of_rule, kinds, total = {}, {}, {}, {}, { fired = 0, recovered = 0 }
  require_type('alert_messages', 'HLEN')
  require_type('alert_due', 'ZCARD')
  local found = redis.call('HGETALL', alerts)
  for at = 1, #found, 2 do before[found[at]] = found[at + 1] end
  if (redis.call('GET', marks) or '') ~= ARGV[4] then return { 0, 0 } end
  redis.call('SET', marks, ARGV[5])

  local function add(name, what, text, since)
    local rule, subject = string.match(name, '^([^|]*)|(.*)$')
    local kind = rule .. '_' .. what
    if not of_rule[kind] then
      of_rule[kind] = { rule = rule, what = what, at = NOW, tries = 0, error = '', number = 0, alerts = {} }
      kinds[#kinds + 1] = kind
    end
    local message = of_rule[kind]
    message.number, total[what] = message.number + 1, total[what] + 1
    if message.number <= tonumber(ARGV[2]) then
      message.alerts[message.number] = { subject = subject, text = text, since = since }
    end
  end

  local first = 7 + tonumber(ARGV[6])
  for at = first, #ARGV, 2 do
    local name, text = ARGV[at], ARGV[at + 1]
    now[name] = true
    if not before[name] then
      redis.call('HSET', alerts, name, cjson.encode({ since = NOW, text = text }))
      add(name, 'fired', text, NOW)
    end
  end
  for at = 1, #found, 2 do
    local name = found[at]
    if not now[name] then
      redis.call('HDEL', alerts, name)
      local ok, one = pcall(cjson.decode, found[at + 1])
      if ok and type(one) == 'table' and string.find(name, '|', 1, true) then add(name, 'recovered', one.text, one.since) end
    end
  end
  for _, kind in ipairs(kinds) do
    for at = 7, first - 1 do
      local item = ARGV[1] .. kind .. '|' .. ARGV[at]
      redis.call('HSET', messages, item, cjson.encode(of_rule[kind]))
      redis.call('ZADD', due, NOW, item)
    end
  end
  if #kinds > 0 then redis.call('EXPIRE', messages, ARGV[3]) end
  return { total.fired, total.recovered }
end
