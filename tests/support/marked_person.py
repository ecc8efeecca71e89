"""A person whose email address is stored everywhere a payload can reach, beside others; and the search for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from receiver.config.values import Bounds
from receiver.inbox import Outcome
from receiver.inbox.audit_trail import AuditTrail
from receiver.inbox.effect_store import EffectStore
from receiver.inbox.outcomes import OutcomeKind
from receiver.spool import Refusal, open_events, open_refusals
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import Server, System
from workers.history.past_events import HistoryDatabase, PastEvent, Position
from workers.history.row_format import event_of
from workers.runtime.history_mover import Mover

MARK = "ann-7f3a+shop@example.com"
OTHER = "bob-11c2@example.com"
GROUP = "abcd1234"


def order(number: int, email: str) -> dict[str, Any]:
    return {"id": number, "total": "42.00", "customer": {"id": 77 if email == MARK else 88, "email": email}}


class Placed:
    """What was placed, and the deliveries of the person, to be delivered again."""

    def __init__(self, system: System, history: HistoryDatabase, first: int = 0) -> None:
        """`first` is added to all numbers, where a person is placed again."""
        self.system, self.history = system, history
        self.deliveries: dict[str, Any] = {}
        self._effects = EffectStore(system.client, keep=3600, at_work=1)
        for email, number in ((OTHER, 100), (MARK, 200), (OTHER, 300)):
            self._past(first + number, email)
        while Mover(system.client, history).move(age=-1, known_for=3600.0).moved:
            pass
        for email, number in ((OTHER, 110), (MARK, 210), (OTHER, 310)):
            self._ended(first + number, email)
        for email, number in ((OTHER, 320), (MARK, 220)):
            self._open(first + number, email)
        for email, number in ((OTHER, 320), (MARK, 220)):
            self._elsewhere(first + number, email)

    def _delivery(self, number: int, email: str) -> Any:
        one = self.system.delivery("order.paid", data=order(number, email), delivery_id=f"d{number}")
        self.deliveries[f"d{number}"] = one
        return one

    def _run(self, number: int, email: str, *outcomes: tuple[OutcomeKind, dict[str, Any]]) -> str:
        event_id = self.system.inbox.accept([self._delivery(number, email)])[0].id
        (run,) = route(self.system.inbox, claim_one(self.system.inbox), GREET)
        for at, (kind, detail) in enumerate(outcomes):
            if at:
                self.system.housekeeping.tick()
                run = claim_one(self.system.inbox, "shop.greet")
            self.system.inbox.finish([Outcome(run, kind, {"version": "1", **detail})])
        place = f"o:{event_id}"
        self._effects.begin(place, "shop.greet|mail", f"{event_id}|shop.greet", in_doubt="run")
        self._effects.end(place, "shop.greet|mail", "", orjson.dumps(f"sent to {email}"))
        return event_id

    def _past(self, number: int, email: str) -> None:
        self._run(number, email, (OutcomeKind.DONE, {"result": f"booked for {email}"}))

    def _ended(self, number: int, email: str) -> None:
        error = {"error": f"ValueError: {email}", "traceback": f"File x\n{email}", "group": GROUP}
        self._run(number, email, (OutcomeKind.DONE, {"result": f"booked for {email}"}))
        self._run(number + 1, email, (OutcomeKind.RETRY, error), (OutcomeKind.FAILED, error))

    def _open(self, number: int, email: str) -> None:
        error = {"error": f"ValueError: {email}", "traceback": email, "group": GROUP}
        event_id = self.system.inbox.accept([self._delivery(number, email)])[0].id
        (run,) = route(self.system.inbox, claim_one(self.system.inbox), GREET)
        self.system.inbox.finish([Outcome(run, OutcomeKind.RETRY, error, 600.0)])
        assert self.system.status(event_id) == "open"

    def _elsewhere(self, number: int, email: str) -> None:
        for place in (f"o:r:north:order:{number}:shop.greet|points", f"o:s:north:shop.greet|{number}"):
            self._effects.begin(place, f"shop.greet|{number}", "run", in_doubt="run")
            self._effects.end(place, f"shop.greet|{number}", "", orjson.dumps({"to": email}))
        self._effects.write("st:shop:north", f"last {number}", orjson.dumps({"email": email}))
        data_dir = self.system.config.data_dir
        spool = open_events(data_dir)
        spool.add([self._delivery(number + 1, email)])
        spool.close()
        refused = open_refusals(data_dir)
        body = orjson.dumps({"type": "order.paid", "data": order(number + 2, email)})
        one = Refusal(time.time(), "north", "", "bad-signature", len(body), "00", "127.0.0.1", {"x-from": email}, body)
        refused.add([one], bounds=Bounds(3600.0, 1 << 20), now=time.time())
        refused.close()
        AuditTrail(self.system.client).begin("command ops@host", "drop", {"reason": f"{email} has asked"})
        if email == MARK:  # not routed yet. One of the other person would be claimed by the next that is placed
            self.system.inbox.accept([self._delivery(number + 3, email)])


def traces(folders: list[Path], history: HistoryDatabase, mark: str = MARK) -> list[str]:
    """Where the mark is found: in the bytes of every file, and in what the history has compressed."""
    text = mark.encode()
    found = [
        str(path)
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.is_socket() and text in path.read_bytes()
    ]
    for one in past_events(history):
        texts = (one.content or b"", *one.fields.values(), *one.once.keys(), *one.once.values())
        found += [f"history {one.id}" for _ in range(any(text in each for each in texts))]
    return found


def everything(system: System, history: HistoryDatabase) -> dict[str, Any]:
    """All that Redis, the history and the files have, by name, to be compared."""
    client, found = system.client, dict[str, Any]()
    for key in client.scan_iter("sh:*"):
        kind = client.type(key)
        if kind == b"hash":
            found |= {f"{key!r} {name!r}": value for name, value in client.hgetall(key).items()}
        elif kind == b"zset":
            found |= {f"{key!r} {name!r}": "member" for name in client.zrange(key, 0, -1)}
        elif kind == b"string":
            found[repr(key)] = client.get(key)
    return found | {f"history {one.id}": one for one in past_events(history)}


def past_events(history: HistoryDatabase) -> Iterator[PastEvent]:
    after = Position(-1, "")
    while page := history.rows("north", after, 2_000):
        yield from (event_of(*row) for row in page)
        after = Position(page[-1][1], page[-1][0])


__all__ = ["MARK", "OTHER", "Placed", "Server", "everything", "order", "traces"]
