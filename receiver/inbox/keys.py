"""Every key in Redis, on one page. The scripts build the same names from `PREFIX`; see `scripts/lib.lua`.

    e:{id}         hash    an event. v store topic theirs delivery resource received occurred source data_path
                           digest(of the body) state(open settled failed) open(runs under way) bad(runs failed) reason
                           r:{handler}  a run: "state attempts losses queue token"; r: is the event not yet routed
                           x:{handler}  how its last attempt went, JSON
    b:{id}         string  headers as a JSON line, then the raw body; trimmed before the record
    d:{store}:{m}  string  event id, for a short while: deliveries that only their body identifies
    ready:{lane}   zset    work to do, in fair order between stores. A lane is a handler; the lane "" is routing
    fair:{lane}    hash    virtual time of the lane (field "") and of each store in it
    lanes          hash    lane -> RQ queue that is woken for it
    leased         zset    items by end of lease (ms)
    later          zset    items by due time (ms)
    failed         zset    failed runs by time (ms)
    done           zset    closed events by time (ms): what retention may touch
    ix, ix:{store} zset    events by time of arrival (ms)
    n              hash    every counter: `name` in all, `name|store` for a store
    t:{store}      hash    the names a store really sends: n:{theirs} how often, l:{theirs} when last (ms); a bounded
                           number of names, what is beyond it is counted under the empty name
    decl, seen     hash    handler@version -> declaration, and when it was last made (ms)
    declv          string  grows whenever the declarations change, so that routing by old ones is noticed
    aside          hash    item -> why it was set aside: debris and poison
    leader         string  the housekeeper that saves the others the work
    journal        channel one message for each outcome

    rq:queue:{q}, rq:job:wake-{q}, rq:queues    the wake-up, written as RQ writes it

An item is `id` (an event to route) or `id|handler` (a run). An open item is in exactly one of
ready, leased and later; every script moves it from one to another in one step.
"""

from __future__ import annotations

PREFIX = "sh:"

EVENT = PREFIX + "e:"
BODY = PREFIX + "b:"
READY = PREFIX + "ready:"
LANES = PREFIX + "lanes"
LEASED = PREFIX + "leased"
LATER = PREFIX + "later"
FAILED = PREFIX + "failed"
DONE = PREFIX + "done"
INDEX = PREFIX + "ix"
COUNTERS = PREFIX + "n"
NAMES = PREFIX + "t:"
DECLARATIONS = PREFIX + "decl"
SEEN = PREFIX + "seen"
DECLARATIONS_VERSION = PREFIX + "declv"
ASIDE = PREFIX + "aside"
LEADER = PREFIX + "leader"
JOURNAL = PREFIX + "journal"

DEFAULT_QUEUE = "default"
CHORES_QUEUE = "chores"
ROUTING_LANE = ""
WAKE = "wake-"


def rq_list(queue: str) -> str:
    return f"rq:queue:{queue}"


def index_of(store: str) -> str:
    return f"{INDEX}:{store}"


def run_item(event_id: str, handler: str) -> str:
    return f"{event_id}|{handler}" if handler else event_id


def split_item(item: str) -> tuple[str, str]:
    event_id, _, handler = item.partition("|")
    return event_id, handler
