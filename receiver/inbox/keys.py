"""Every key in Redis, on one page. The scripts build the same names from `PREFIX`; see `lua/lib.lua`.

    e:{id}         hash    an event. v store topic theirs delivery resource received occurred source data_path
                           digest(of the body) state(open settled failed) open(runs under way) bad(runs failed) reason
                           r:{handler}  a run: "state attempts losses queue token"; r: is the event not yet routed
                           x:{handler}  how its last attempt went, JSON
                           g:{handler}  "group retrying|failed": the failures it belongs to; p:{handler}  replays
                           l:{handler}  "token late": its lease that lapsed last ("-" once that worker has spoken), and
                                        how often a worker was only late with it
    b:{id}         string  headers as a JSON line, then the raw body; trimmed before the record
    o:{id}         hash    once marks of an event: "handler|key" -> "begun ms run" or "done result"
    o:r:{store}:{kind}:{id}:{mark}, o:s:{store}:{mark}   the same for a resource and for a store, one key for each mark:
                           each has its own age
    st:{plugin}:{store}    hash    a plugin's state d:{store}:{m}  string  event id, for a short while: deliveries
    that only their body identifies ready:{lane}   zset    work to do, in fair order between stores. A lane is a
    handler; the lane "" is routing fair:{lane}    hash    virtual time of the lane (field "") and of each store in it
    lanes          hash    lane -> RQ queue that is woken for it suspects       set     lanes where work is ready that
    lost its worker before, as far as is known leased         zset    items by end of lease (ms) later          zset
    items by due time (ms): retries, runs with a delay, and what waits for another run's effect held:{store}   zset
    items of a paused store, in their order paused         set     "handler:NAME", "store:NAME"       resuming  set
    stores whose held work is coming back limits         hash    handler -> its limit slots:{limit}  hash
    "token|handler" -> event ids: what one claim took, which one child process does, holds one slot paces
    hash    limit -> when its next run may begin (ms) shut           hash    limit, or h:{handler} -> Busy until (ms)
    failed         zset    failed runs by time (ms) groups         zset    groups of failures by time of the last one
    (ms) g:{group}      hash    handler error at first last example retrying failed; s:{store}, v:{version} counts
    gr:{group}     zset    its runs, retrying or failed, by time of the last failure (ms) done           zset
    settled events by time (ms): what retention may touch worn           string  time (ms) up to which settled events
    have lost their bodies ix, ix:{store} zset    events by time of arrival (ms) n              hash    every counter
    of every store, `name|store`; `name` where it is of no store t:{store}      hash    the names a store really
    sends: n:{theirs} how often, l:{theirs} when last (ms); a bounded
                           number of names, what is beyond it is counted under the empty name
    decl, seen     hash    handler@version#mark -> declaration, and when it was last made (ms); the mark is of what it
                           asks for; in seen, "@" is any worker
    declv          string  grows whenever the declarations change, so that routing by old ones is noticed
    replay:{name}  string  how far an interrupted replay has come
    ring:{store}   hash    fingerprint -> a learned signing secret, sealed, with what is said of it; see keyring.py
    rings          hash    store -> version of the keyring at its last change     ringv  string  the version
    learning       hash    store -> a mark: its secret is under way, and a signature that fits nothing may fit soon;
                           OWNER.NUMBER, the number grows for as long as its owner is at it
    receivers      hash    receiver -> "version at": which version of the keyring it has read, and when it said so
    check          zset    stores by when their subscriptions are looked at next (ms)
    sub:{store}    string  what the last look found, JSON; see checks.py
    sub:lock:{store}  string  who changes the store's subscriptions now; ends by itself
    heals:{store}  list    what was mended at the store, JSON, the newest first
    removed        set     stores that somebody removed: nothing of theirs is mended, whatever an old config says
    spools         hash    host:data_dir -> what waits in its spool, JSON: count, oldest, at
    aside          hash    item -> why it was set aside: debris and poison
    leader         string  the housekeeper that saves the others the work
    journal        channel outcomes, a list of them in each message

    rq:queue:{q}, rq:job:wake-{q}, rq:queues    the wake-up, written as RQ writes it
    rq:workers, rq:worker:{name}                the workers that live, written by RQ; only read by us
    storehooks_{digest}                         no key: the library of our functions; see library.py

An item is `id` (an event to route) or `id|handler` (a run). An open item is in exactly one of
ready, leased, later and held; every script moves it from one to another in one step.
"""

from __future__ import annotations

PREFIX = "sh:"

EVENT = PREFIX + "e:"
BODY = PREFIX + "b:"
ONCE = PREFIX + "o:"
STATE = PREFIX + "st:"
READY = PREFIX + "ready:"
LANES = PREFIX + "lanes"
LEASED = PREFIX + "leased"
LATER = PREFIX + "later"
HELD = PREFIX + "held:"
PAUSED = PREFIX + "paused"
RESUMING = PREFIX + "resuming"
SHUT = PREFIX + "shut"
SLOTS = PREFIX + "slots:"
FAILED = PREFIX + "failed"
GROUPS = PREFIX + "groups"
GROUP = PREFIX + "g:"
GROUP_RUNS = PREFIX + "gr:"
CURSOR = PREFIX + "replay:"
INDEX = PREFIX + "ix"
COUNTERS = PREFIX + "n"
NAMES = PREFIX + "t:"
DECLARATIONS = PREFIX + "decl"
SEEN = PREFIX + "seen"
DECLARATIONS_VERSION = PREFIX + "declv"
SECRETS = PREFIX + "secrets:"
SECRET_VERSIONS = PREFIX + "secret_versions"
KEYRING_VERSION = PREFIX + "keyring_version"
CHANGING_SECRETS = PREFIX + "changing"
RECEIVERS = PREFIX + "receivers"
CHECK = PREFIX + "check"
CHECKED = PREFIX + "sub:"
CHECK_LOCK = PREFIX + "sub:lock:"
HEALS = PREFIX + "heals:"
REMOVED = PREFIX + "removed"
SPOOLS = PREFIX + "spools"
ASIDE = PREFIX + "aside"
LEADER = PREFIX + "leader"
JOURNAL = PREFIX + "journal"

DEFAULT_QUEUE = "default"
ROUTING_LANE = ""
WAKE = "wake-"
RQ_WORKERS = "rq:workers"
RQ_WORKER = "rq:worker:"


def rq_list(queue: str) -> str:
    return f"rq:queue:{queue}"


def index_of(store: str) -> str:
    return f"{INDEX}:{store}"


def run_item(event_id: str, handler: str) -> str:
    return f"{event_id}|{handler}" if handler else event_id


def split_item(item: str) -> tuple[str, str]:
    event_id, _, handler = item.partition("|")
    return event_id, handler
