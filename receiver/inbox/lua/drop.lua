#!lua flags=allow-oom
-- drop: a person gives up failures, with a reason. A run that is still retried also ends as dropped.
-- ARGV  1 detail (JSON)  2 to 5 the step of a bulk action, see shared/bulk.lua  then the items
-- returns for each run what became of it; `DropResult` in administration.py lists the words. Nothing if the step of a
-- bulk action was not taken
local function drop(item)
  local id, handler = split(item)
  local e = P .. 'e:' .. id
  local run = read_run(id, handler)
  local store = redis.call('HGET', e, 'store')
  if not run or not store or run.state == 'leased' or redis.call('HEXISTS', e, 'g:' .. handler) == 0 then return 'kept' end
  if not is_selected(item, id, handler) then return 'kept' end
  local retrying, mark = run.state ~= 'failed', read_mark(id, handler)
  leave_group(id, handler, store)
  redis.call('ZREM', set_of(run.state, handler, store, mark), item)
  run.state, run.token, run.urgent = 'dropped', NOW, false
  write_run(id, handler, run)
  redis.call('HSET', e, 'x:' .. handler, ARGV[1])
  if retrying then end_run(id, store, false) else settle_failure(id, store) end
  if mark then
    leave_order(id, handler, mark, store)
    write_batched() -- the run that begins now may be the next one to be dropped
  end
  return 'dropped'
end

return function()
  if not begin_step(2) then return {} end
  local results = {}
  for at = 6, #ARGV do results[#results + 1] = change_or_quarantine(ARGV[at], drop, ARGV[at]) end
  end_step(2, {}, results)
  return results
end
