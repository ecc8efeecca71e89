"""Every key in Redis, on one page. The scripts in `lua/` build the same names from the prefix."""

from __future__ import annotations

import re
import socket
from datetime import datetime
from pathlib import Path

PAGE = """
Events
    e:{id}          hash    An event: v store topic theirs delivery resource received occurred source data_path
                            digest (of the body) state (open, settled, failed) open (number of open runs)
                            bad (number of failed runs) reason
                            secret (fingerprint of the one that it was signed with) earlier (when the event before it
                            of the same resource was accepted, us)
                            repeated (when its last duplicate arrived, ms). For each handler:
                            r:{handler}  the run: "state attempts losses queue token", and then "urgent" if it begins
                                         although its handler is paused. In place of the token, a run that waits until
                                         later has its delay (ms), as has a queued one that is delayed; and one that
                                         has ended, when it did (ms). r: is the event before routing.
                            x:{handler}  the result of the last attempt, as JSON.
                            a:{handler}  its last 10 failed attempts, the newest first, a line of JSON for each: when it
                                         ended (ms), its duration (ms), version, error.
                            k:{handler}  the mark of an ordered run: "c KEY", or "s KEY" if the key stops at a failure,
                                         "m KEY" if runs are merged.
                            m:{handler}  the events whose runs are merged into this one, while it is leased and then.
                            g:{handler}  "group retrying|failed": the group of failures that the run belongs to.
                            p:{handler}  the number of replays.
                            o:{handler}  since it was replayed with --again, which marks of resources and stores it has
                                         begun, as digests. It does not repeat these, but all others.
                            alias        under which other id a redelivery is looked for since it was read again; the
                                         record of that id has only alias_of (this event) and digest.
                            erased       when the event was erased (ms), and the id of the erasure. Of such a record
                                         only what counters and duplicates need is left, and same, which is like moved.
                            l:{handler}  "token late": the token of the last expired lease ("-" once that worker has
                                         answered), and how often a worker was late with the run but alive.
                            An event that was moved to the history leaves a mark, which expires: digest, received,
                            repeated, and moved (a digest of theirs, resource and occurred).
    b:{id}          string  The headers as a JSON line, then the raw body. Removed before the event's record is.
    d:{store}:{m}:{span}    string  The mark of an event that only its body identifies: its arrival by its receiver's
                            clock and by the server's (ms), and its id. The span is its arrival in windows. Expires.
    ix, ix:{store}  zset    Event ids by time of acceptance, of all stores and of one: the server's time in us. Each
                            event has a later one than all before it, so that a cursor misses none.
    accepted_until  string  No event was accepted after this time (us), and the next one will be.
    open_since      string  No event that was accepted before this time (us) is open. There may be a later such time.
    resources       hash    When the newest event of each resource was accepted (us), by a digest of store, kind and id.
    done            zset    Settled events by time (ms). Only these are removed by age, or moved to the history.
    bodies_removed_until    string  The time (ms) up to which the bodies of settled events were removed.
    kept:{id}       string  The event is about to be replayed, read again or imported: it is not moved to the history
                            now. Expires.
    same:{id}       string  The id of the event that a spooled delivery is or repeats. The sender was told this one.
    n               hash    Every counter: "name|store", or "name" where it belongs to no store.
    series:10, series:300, series:3600      string  The counters as they were every 10 s, 5 min and hour: a ring of
                            slots; see queries/time_series.py.
    hours:{store}   string  The same of one store, every hour.
    t:{store}       hash    The event names that a store has sent: n:{name} how often, l:{name} when last (ms). The
                            number of names is limited; the others are counted under the empty name.

Work. A lane is the queue of one handler's runs; the lane "" holds events to be routed.
    ready:{lane}    zset    Items that are ready, in fair order between stores; urgent ones first (scores below -1).
    fair:{lane}     hash    The virtual time of the lane (field "") and of each store in it.
    lanes           hash    Lane -> the RQ queue that is woken for it.
    suspects        set     Lanes with ready items that lost their worker before.
    leased          zset    Leased items by end of the lease (ms).
    later           zset    Items by due time (ms): retries, delayed runs, and runs that wait for another run's effect.
    later_examined  string  How many of `later` the ticks have examined in this round.
    held:{store}    zset    Items of a paused store, in their order.
    queued:{handler}:{key}  zset    Ordered runs that wait for others of their handler and key, by time of
                            acceptance. A key begins with its store.
    order:{handler} hash    Key -> the event ids of its active runs, which all others of the key wait for. "" while its
                            first run waits for an older event of the store to be routed.
    ordered         set     The declarations that ask for an order, by their fields in `declarations`.
    unrouted:{store}        zset    Events that wait to be routed, by time of acceptance; written while `ordered` is
                            not empty.
    heads:{store}   zset    "handler key" whose first run waits for older events to be routed, by its acceptance.
    heads           set     Stores that may have such keys.
    fence           string  The last fence that was given out (us); see claim.lua.
    paused          set     "handler:NAME" and "store:NAME".
    resuming        set     Stores whose held items are being moved back.
    limits          hash    Handler -> the name of its limit.
    slots:{limit}   hash    "token|handler" -> event ids. The runs of one claim, which one child process performs one
                            after the other, hold one slot.
    paces           hash    Limit -> when its next run may begin (ms).
    busy            hash    Limit, or h:{handler} -> "until delay": until when a handler asked for a pause with Busy,
                            and how long that was (ms).
    quarantined     hash    Item -> why it was quarantined: a damaged record. Also keys that were renamed to damaged:...
    damaged:{name}:{time}   A set or lane that had another type, as it was found.

Failures
    failed          zset    Failed runs by time (ms).
    failures_end    string  Since when failures have an end (ms): the first is removed some days after it.
    groups          zset    Groups of failures by time of the last failure (ms).
    gh:{handler}    set     The groups of a handler. Their number is limited; all further causes share one more group.
    g:{group}       hash    handler error at first last example retrying failed; s:{store} counts runs, and
                            v:{version} failed attempts.
    gr:{group}      zset    The group's runs, retrying or failed, by time of the last failure (ms).
    replay:{name}   string  How far a replay has come, or after a space a mark that it has ended.
    bulk:{action}   hash    A bulk action: a replay or drop of many failures; see bulk_actions.py. action selection who
                            groups (JSON, with their handlers) audit count rate first reason; state (trying, running,
                            done, stopped, halted), why, began, ended, position (where its next step begins), due (when,
                            ms), tried (its first runs), and n:{result} how many runs had each result.
    bulk            zset    Bulk actions by when they began (ms). Limited.
    bulk_open       set     Those that are at work, or whose end is not audited yet.

Plugins
    o:{id}          hash    The once marks of an event: "handler|key" -> "begun ms run word" or "done result".
    o:r:{store}:{kind}:{id}:{mark}, o:s:{store}:{mark}
                    hash    The same for a resource and for a store, one key for each mark, since each has its own age.
    st:{plugin}:{store}     hash    A plugin's state.
    written:{plugin}|{store}|{kind}|{id}
                    hash    A plugin's writes to a resource: name -> "begun ended closed action digest sent echo
                            follower by", times in us; see lua/own_writes.lua. hops: when events followed them (ms).
                            Expires.
    newest:{handler}|{store}|{kind}|{id}
                    string  The newest event of a resource that a handler with stale="skip" has settled: "s" and its
                            sequence, or "t" or "u" and its time (us), and its id. Expires.
    gap:{handler}|{store}|{kind}|{id}
                    zset    The runs of a handler with wait_for_gap for a resource, by number: "since id", when each
                            came into this line (ms) and its event. Expires.
    writes          zset    The resources of these by time of the last write (ms). Limited; expires.
    loops           zset    Those with a suspected loop, by when a run was last delayed (ms). Limited; expires.

The server
    format          string  The number of the format of all this; see redis/data_format.py.
    data            string  The id of all this: when the first process looked (us); then the ids of other data that it
                            replaces, as an operator has accepted. See known_data.py.
    imported        hash    "data id|counter" -> how much of it was imported from there; "export id|lines"
                            -> up to which line, and "export id|secrets"; see transferred_data.py.
    seen            zset    The processes of hosts, by until when each has seen events accepted (us).
    replaced        hash    host:data_dir -> "id change ms": it knows data of this id, and noticed a change then.

Handlers and processes
    declarations    hash    "handler@version#mark" -> the declaration, as JSON. The mark identifies what it asks for.
    declared_at     hash    The same fields -> when last declared (ms). The field "@" is any worker.
    declared_by     hash    worker|place -> when it last declared and since when it does (ms), and what, by line.
                            The worker "@" is all of them, before the server lost data.
    declarations_version    string  Grows whenever the declarations change, so that routing by old ones is noticed: the
                            time of the last change (ms), or one more than before.
    versions:{handler}      zset    The last 50 versions of a handler by when each was first declared (ms).
    runs:{day}:{handler}    hash    The runs of a handler that ended on a day: how many by outcome, by
                            duration (d) and by waiting time (w), both as a power of two in us; and the sums of these
                            (ds, ws). The day "all" has all of them, and others are five minutes. Expires. See
                            run_statistics.py.
    runs_counted:{worker}   string  The number of the last counts that a worker has added to those. Expires.
    declared_since  string  When the first declaration was made at this server (ms), which may be new or emptied.
    plugin_fault:{worker}   string  The plugins that a worker cannot load any more, and below them why. Expires.
    leader          string  The housekeeper that does the work for all of them.
    spools          hash    host:data_dir -> what waits in its spool, as JSON: state, count, oldest, at, version.
                            A receiver that stops with an empty spool removes its field; one that is silent may have
                            more than count.
    refusals        hash    host:data_dir -> the sum of the refused deliveries that it stores, as JSON; see
                            host_refusals.py.
    history_place   string  "id host:data_dir": the directory with the past events, and its host. Only with SQLite.
    history         string  How moving events to the history went last, as the housekeeper reports it, as JSON. Expires.
    journal         channel Outcomes of runs, a list of them in each message.

Stores
    secrets:{store} hash    Fingerprint -> a learned signing secret, sealed; see keyring/.
    secret_versions hash    Store -> the version of the keyring at its last change.
    keyring_version string  The version of the keyring.
    changing        hash    Store -> the mark of a change of its secret in progress: OWNER.NUMBER. The number grows
                            while its owner is at work. Meanwhile a signature that matches no secret may soon match.
    receivers       hash    Receiver -> "version at": the version of the keyring it has read, and when it confirmed.
    check           zset    Stores by time of the next check of their subscriptions (ms).
    sub:{store}     string  The result of the last check, as JSON; see subscription_checks.py.
    sub:lock:{store}        string  The process that may change the store's subscriptions now. Expires.
    repairs:{store} list    Repairs of the store's subscriptions, as JSON, the newest first.
    replaced_urls   set     Public URLs that `storehooks dev` had before its config was saved with another one.
    removed         set     Removed stores. Their subscriptions are not repaired, even by a worker with an old config.

People
    audit           zset    What people did, as JSON, by time (ms), and how it ended. Limited; see audit_trail.py.
    erasures        hash    Erasures that have begun and not ended: id -> what is to be its receipt, as JSON.
    receipts        zset    The receipts of erasures, as JSON, by time (ms).
    session:{key}   hash    A login of the console, by a digest of its cookie: role, proof of the password. Expires.
    link:{key}      string  A link to the console that works once, by a digest. Expires.
    login:{key}     string  How many logins have failed from some addresses. Expires.
    wait:{key}      string  No login from those addresses is examined while it exists. Expires.

Alerts; see alert_store.py
    alerts          hash    "rule|subject" of each alert that fires -> since (ms), text, as JSON.
    alert_messages  hash    "id|target" -> a message that a target has not accepted yet, as JSON. Expires. An id begins
                            with the number of its judgement, and ends with its rule and what it says.
    alert_due       zset    Those that will be sent, by when (ms). One that is not here was given up.
    alert_marks     string  The last judgement, as JSON: its number; and for each store the deliveries that were
                            accepted and refused when it last accepted one.

Not ours
    rq:queue:{rq queue}, rq:job:wake-{queue}, rq:queues     The wake-up, written as RQ writes it.
    rq:worker:{name}, rq:workers, rq:workers:{rq queue}     The live workers, written as RQ writes them, with the
                                                            field `storehooks`, which workers of others do not have.
    rq:queue:{rq queue}:intermediate                        Another program's job that a worker has just taken.
    rq:failed:{rq queue}, rq:results:{job}                  Another program's job that was put on one of our queues.
    storehooks_{digest}                         Not a key: the library of our functions; see redis/script_library.py.

An item is `id` (an event to route) or `id|handler` (a run). An open item is in exactly one of
ready, leased, later, held and queued; every script moves it from one to another in one step.
"""
TYPES = {
    name.partition("{")[0]: kind
    for row, kind in re.findall(r"^    (\S[^\n]*?) +(hash|zset|set|string|list)  ", PAGE, re.M)
    for name in row.split(", ")
}
"""The type of each key, by its name up to the first place that is filled in."""

PREFIX = "sh:"

EVENT = PREFIX + "e:"
BODY = PREFIX + "b:"
ONCE = PREFIX + "o:"
STATE = PREFIX + "st:"
WRITTEN = PREFIX + "written:"
NEWEST = PREFIX + "newest:"
GAP = PREFIX + "gap:"
LOOPS = PREFIX + "loops"
READY = PREFIX + "ready:"
LANES = PREFIX + "lanes"
LEASED = PREFIX + "leased"
LATER = PREFIX + "later"
HELD = PREFIX + "held:"
QUEUED = PREFIX + "queued:"
ORDER = PREFIX + "order:"
UNROUTED = PREFIX + "unrouted:"
PAUSED = PREFIX + "paused"
RESUMING = PREFIX + "resuming"
LIMITS = PREFIX + "limits"
BUSY = PREFIX + "busy"
SLOTS = PREFIX + "slots:"
FAILED = PREFIX + "failed"
FAILURES_END = PREFIX + "failures_end"
GROUPS = PREFIX + "groups"
GROUP = PREFIX + "g:"
GROUP_RUNS = PREFIX + "gr:"
CURSOR = PREFIX + "replay:"
BULK = PREFIX + "bulk:"
BULK_ACTIONS = PREFIX + "bulk"
BULK_OPEN = PREFIX + "bulk_open"
INDEX = PREFIX + "ix"
OPEN_SINCE = PREFIX + "open_since"
RESOURCES = PREFIX + "resources"
RUNS = PREFIX + "runs:"
VERSIONS = PREFIX + "versions:"
DONE = PREFIX + "done"
ACCEPTED_UNTIL = PREFIX + "accepted_until"
FORMAT = PREFIX + "format"
DATA = PREFIX + "data"
IMPORTED = PREFIX + "imported"
SEEN = PREFIX + "seen"
REPLACED = PREFIX + "replaced"
SAME = PREFIX + "same:"
KEPT = PREFIX + "kept:"
COUNTERS = PREFIX + "n"
EVENT_NAMES = PREFIX + "t:"
DECLARATIONS = PREFIX + "declarations"
DECLARED_AT = PREFIX + "declared_at"
DECLARED_BY = PREFIX + "declared_by"
DECLARATIONS_VERSION = PREFIX + "declarations_version"
DECLARED_SINCE = PREFIX + "declared_since"
SECRETS = PREFIX + "secrets:"
SECRET_VERSIONS = PREFIX + "secret_versions"
KEYRING_VERSION = PREFIX + "keyring_version"
CHANGING_SECRETS = PREFIX + "changing"
RECEIVERS = PREFIX + "receivers"
CHECK = PREFIX + "check"
CHECKED = PREFIX + "sub:"
CHECK_LOCK = PREFIX + "sub:lock:"
REPAIRS = PREFIX + "repairs:"
REPLACED_URLS = PREFIX + "replaced_urls"
REMOVED = PREFIX + "removed"
SPOOLS = PREFIX + "spools"
QUARANTINED = PREFIX + "quarantined"
PLUGIN_FAULT = PREFIX + "plugin_fault:"
REFUSALS = PREFIX + "refusals"
HISTORY_PLACE = PREFIX + "history_place"
LEADER = PREFIX + "leader"
HISTORY = PREFIX + "history"
JOURNAL = PREFIX + "journal"
ALERTS = PREFIX + "alerts"
ALERT_MESSAGES = PREFIX + "alert_messages"
ALERT_DUE = PREFIX + "alert_due"
ALERT_MARKS = PREFIX + "alert_marks"
AUDIT = PREFIX + "audit"
ERASURES = PREFIX + "erasures"
RECEIPTS = PREFIX + "receipts"
SESSION = PREFIX + "session:"
LINK = PREFIX + "link:"
LOGIN = PREFIX + "login:"
WAIT = PREFIX + "wait:"

DEFAULT_QUEUE = "default"
"""The queue of handlers without `queue=`, and of events to be routed."""
RQ_QUEUE = "storehooks"
ROUTING_LANE = ""
INTAKE = "intake"
"""The handler whose failures are events that cannot be read. No plugin's handler has this name: theirs have a dot."""
WAKE = "wake-"
RQ_WORKER = "rq:worker:"
RQ_QUEUES = "rq:queues"


def rq_queue(queue: str) -> str:
    """What RQ calls the queue of a handler. Other programs have queues in this database too; `default` is theirs."""
    return RQ_QUEUE if queue == DEFAULT_QUEUE else f"{RQ_QUEUE}:{queue}"


def from_rq_queue(name: str) -> str:
    return DEFAULT_QUEUE if name == RQ_QUEUE else name.removeprefix(f"{RQ_QUEUE}:")


def rq_list(queue: str) -> str:
    return f"rq:queue:{rq_queue(queue)}"


def rq_intermediate(queue: str) -> str:
    """RQ's list of the jobs that a worker has taken from a queue and not recorded yet."""
    return f"{rq_list(queue)}:intermediate"


def rq_workers(queue: str) -> str:
    """RQ's list of the live workers that serve a queue. Each of our workers serves the default queue."""
    return f"rq:workers:{rq_queue(queue)}"


def busy_field(handler: str, limit: str = "") -> str:
    """What Busy closes: the limit of the handler, or the handler itself if it has none."""
    return limit or f"h:{handler}"


def index_of(store: str) -> str:
    return f"{INDEX}:{store}"


def index_score(moment: datetime) -> str:
    """A time as the indexes of events have it."""
    return f"{moment.timestamp() * 1e6:.0f}"


def host_of(data_dir: Path) -> str:
    """The name of this host in SPOOLS and REPLACED. A machine may run two receivers, each with its directory."""
    return f"{socket.gethostname()}:{data_dir.resolve()}"


def host_name(field: bytes) -> str:
    """A host's field as text that can be typed, even if it is damaged."""
    return field.decode("utf-8", "backslashreplace")


def run_item(event_id: str, handler: str) -> str:
    return f"{event_id}|{handler}" if handler else event_id


def split_item(item: str) -> tuple[str, str]:
    event_id, _, handler = item.partition("|")
    return event_id, handler
