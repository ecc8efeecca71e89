"""Mutants of the scripts that keep the order: the model of the inbox must notice each of them."""

from __future__ import annotations

import pytest

from tests.receiver.inbox.test_inbox_model import SMALL_LIMITS, explore_inbox
from tests.support.changed_scripts import changed_texts

MUTANTS = {
    "a new run does not wait for older events that are not routed": (
        "if (follows or not active) and not has_unrouted_before(store, accepted) then",
        "if follows or not active then",
    ),
    "a queued run does not wait for older events that are not routed": (
        "if has_unrouted_before(store, tonumber(head[2])) or not has_sound_lane(handler) then",
        "if not has_sound_lane(handler) then",
    ),
    "the next run begins while others of its claim are leased": (
        "if active and remove_first(handler, key, active, id) then return end",
        "if active and remove_first(handler, key, active, id) then return advance(handler, mark, store) end",
    ),
    "a run that is given back goes to the end of its key": (
        "add_to_queue(id, handler, mark, accepted_at(id))\n  leave_order(",
        "add_to_queue(id, handler, mark, 9e15)\n  leave_order(",
    ),
    "the runs that are leased with the first are not active": (
        "if #ids > 1 then set_active(handler, key_in(first.mark), table.concat(ids, ' ')) end",
        "",
    ),
    "a failure blocks its key": (
        "if mark and not stops_at_failure(mark) then leave_order(id, handler, mark, store) end",
        "",
    ),
    "a run that is done blocks its key": (
        "if mark then leave_order(id, handler, mark, store) end\n  end\n  published",
        "end\n  published",
    ),
    "a dropped run blocks its key": (
        "else settle_failure(id, store) end\n  if mark then\n",
        "else settle_failure(id, store) end\n  if false then\n",
    ),
    "an accepted event is not recorded as unrouted": (
        "if unreadable == '' and has_ordered() then add_to('ZADD', 'unrouted:' .. store, accepted, id) end",
        "",
    ),
    "what was merged into a run is not dropped": (
        "if mark and is_merging(mark) then drop_merged(id, handler, mark, store, detail, tell_merged(about)) end",
        "",
    ),
    "runs are merged past an older event that is not routed": (
        "or about[2] ~= mark or has_unrouted_before(store, accepted) then",
        "or about[2] ~= mark then",
    ),
    "a run that is replaced by a newer one is lost": ("add_to_queue(id, handler, mark, own.accepted)\n", ""),
    "an ordered run is leased while it is routed, beside another": (
        "local follows = active and is_leased and together[key]",
        "local follows = active and active ~= '' and is_leased",
    ),
    "the runs that are leased together while they are routed are not active": (
        "if follows then add_active(handler, key, active, id) else set_active(handler, key, id) end",
        "set_active(handler, key, id)",
    ),
    "several runs of a key are leased while they are routed, although they must not": (
        "if ARGV[at + 6] ~= '1' then leased_keys[ARGV[at]] = {} end",
        "leased_keys[ARGV[at]] = {}",
    ),
    "runs that are to be merged are leased together while they are routed": (
        "is_leased and string.sub(mark, 1, 1) ~= 'm'",
        "is_leased",
    ),
    "a run that is leased while it is routed has no order": (
        "return mark and handler .. ' ' .. lease_text(mark) or handler",
        "return handler",
    ),
    "a run of a paused handler is leased while it is routed": (
        "local is_leased = token and due <= NOW and may_begin(handler)",
        "local is_leased = token and due <= NOW",
    ),
    "two leases have one fence": ("  fence = fence + 1\n", ""),
    "the active runs of a key are not written": ("  in_slices('HSET', P .. 'order:' .. handler, active)\n", ""),
    "a key without an open run stays active": ("  in_slices('HDEL', P .. 'order:' .. handler, gone)\n", ""),
    "a call does not know the active run that it has set": (
        "  active_runs[handler][key] = ids or false\n",
        "  active_runs[handler][key] = active_runs[handler][key] or ids or false\n",
    ),
    "every other event that waits to be routed is passed over": (
        "known.first = known.first + 1",
        "known.first = known.first + 2",
    ),
    "several runs of a key are leased although they must not": (
        "if limit == '' and most == math.huge and not one_at_a_time then",
        "if limit == '' and most == math.huge then\n    leased_keys[lane] = leased_keys[lane] or {}",
    ),
    "a replayed run begins beside another": (
        "mark, store, accepted)\n    if (active_of(handler, key_in(mark)) or '') == '' then",
        "mark, store, accepted)\n    if true then",
    ),
    "runs are leased with the first past an older event that is not routed": (
        "if size > MAX_BYTES or has_unrouted_before(first.store, tonumber(found[at + 1])) then break end",
        "if size > MAX_BYTES then break end",
    ),
    "a run is leased while it is routed, although one before it stays queued": (
        "if #found == 2 * #gone and #gone < asked then leased_keys",
        "if true then leased_keys",
    ),
    "a run is leased while it is routed, past one that this claim has queued": ("  together[key] = nil\n", ""),
    "a run is leased while it is routed, although there may be more in its queue than were read": (
        "if #found == 2 * #gone and #gone < asked then leased_keys",
        "if #found == 2 * #gone then leased_keys",
    ),
    "a run is leased with the first before its delay is over": (
        "if run.losses > 0 or not is_due or is_merging",
        "if run.losses > 0 or is_merging",
    ),
    "an event of a paused store that is not routed holds back none": (
        "{ ready = true, leased = true, held = true }\nlocal function waits",
        "{ ready = true, leased = true }\nlocal function waits",
    ),
    "of the events that wait to be routed only the first are read": (
        "known.has_more = #found == 2 * UNROUTED_PAGE",
        "known.has_more = false",
    ),
    "an event that has been routed holds back later ones for ever": (
        "if known.waits ~= id and not waits_for_routing(id) then",
        "if false then",
    ),
    "a call forgets which events it has routed": ("  known.removed[id] = true\n", ""),
    "a routed event is not removed from those that wait to be routed": (
        "  remove_unrouted(id, known)\n  routed_of[store] = true",
        "  routed_of[store] = true",
    ),
    "a key that waits for an event to be routed waits on when an older run becomes its first": (
        "if not active or active == '' then wait_for_routing(",
        "if not active then wait_for_routing(",
    ),
    "a key that has waited for an event to be routed begins beside a replayed run": (
        "    if (active_of(handler, key) or '') == '' then advance(handler, 'c '",
        "    if true then advance(handler, 'c '",
    ),
    "a retry that is due begins beside the runs that were leased with it": (
        "  if active == id then return true end\n  if not",
        "  if active then return true end\n  if not",
    ),
}


def test_each_mutant_is_another_text() -> None:
    for mutant in MUTANTS.values():
        changed_texts(mutant)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_model_notices(server_url: str, mutant: str) -> None:
    with pytest.raises((AssertionError, ExceptionGroup)) as caught:
        explore_inbox(server_url, *SMALL_LIMITS, MUTANTS[mutant], examples=300, steps=50)
    assert isinstance(caught.value, AssertionError) or caught.value.subgroup(AssertionError)
