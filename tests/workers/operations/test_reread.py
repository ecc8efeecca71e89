"""events reread: deliveries that could not be read are read again after their store's scheme was corrected."""

from __future__ import annotations

import hashlib
import hmac
import json
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from receiver.inbox import Administration, EventQueries, FailureQueries, Housekeeping, keys
from receiver.inbox.administration import RereadResult
from receiver.inbox.history_moves import HistoryMoves
from tests.support.harness import Process, System
from workers.history.configured_history import open_history
from workers.operations.all_events import AllEvents
from workers.operations.reread import Rereader
from workers.runtime.history_mover import Mover

PLUGIN = """
from workers import Router
router = Router("erp")
@router.on("order.*")
def export(event, ctx):
    return f"{event.topic} {event.delivery_id} {event.resource_id} {event.data['total']}"
"""
SCHEME = """
[schemes.acme]
extends = "hex-body"
headers = ["X-Acme-Signature"]
[schemes.acme.event]
topic = ["header:{topic}"]
id = ["header:{id}"]
resource_id = ["json:id"]
[schemes.acme.topics]
"orders/new" = "order.created"
[stores.acme]
scheme = "acme"
signing_secrets = ["the secret of acme"]
"""
RIGHT_TOPIC, RIGHT_ID = "X-Acme-Topic", "X-Acme-Delivery"


class Acme:
    """A system with a store whose scheme looks for topic and delivery id in the wrong headers at first."""

    def __init__(self, make_system: Callable[..., System], *, header: str = RIGHT_ID, more: str = "") -> None:
        more = SCHEME.format(topic="X-Wrong-Topic", id=header) + more
        self.system = make_system(plugin=PLUGIN, more=more)
        self._wrong_id = header
        self._web: Process = self.system.start("web", "worker", "housekeeper")[0]

    def send(self, number: int = 1, *, delivery: str = "") -> httpx2.Response:
        body = json.dumps({"id": f"order-{number}", "total": "42.00", "lines": [{"sku": "red"}]}).encode()
        return self.send_body(body, delivery=delivery)

    def send_body(self, body: bytes, *, delivery: str = "") -> httpx2.Response:
        signature = hmac.new(b"the secret of acme", body, hashlib.sha256).hexdigest()
        headers = {"X-Acme-Signature": signature, RIGHT_TOPIC: "orders/new", "Content-Type": "application/json"}
        headers |= {RIGHT_ID: delivery} if delivery else {}
        return self.system.http.post("/webhooks/acme", headers=headers, content=body)

    def correct_scheme(self) -> None:
        text = self.system.config_file.read_text()
        text = text.replace("X-Wrong-Topic", RIGHT_TOPIC).replace(self._wrong_id, RIGHT_ID)
        self.system.config_file.write_text(text)
        self._web.send(signal.SIGTERM)
        self._web.wait()
        self._web = self.system.start("web")[0]

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.system.run_cli(*words)

    def counts(self) -> dict[str, int]:
        total = self.system.ledger.counters().total
        return {name: total[name] for name in ("accepted", "settled", "open", "failed", "duplicates")}


def accepted(answer: httpx2.Response) -> str:
    assert (answer.status_code, answer.json()["status"]) == (200, "accepted"), answer.text
    return str(answer.json()["id"])


def test_unreadable_deliveries_are_read_and_routed_after_the_scheme_is_corrected(
    make_system: Callable[..., System],
) -> None:
    acme = Acme(make_system)
    ids = [accepted(acme.send(n, delivery=f"delivery-{n}")) for n in range(3)]
    assert {acme.system.status(one) for one in ids} == {"failed"}
    told = acme.cli("events", "reread", "--yes")
    assert (told.returncode, "3 still unreadable: no topic at header:X-Wrong-Topic" in told.stdout) == (1, True)
    told = acme.cli("events", "reread", "--store", "north", "--yes")
    assert (told.returncode, told.stdout) == (0, "no events of north to read again; other stores have 3\n")
    told = acme.cli("events", "reread", "--dry-run")
    assert "0 can be read" in told.stdout
    assert "storehooks events reread" not in told.stdout, "it would read none"
    acme.correct_scheme()
    told = acme.cli("events", "reread", "--dry-run", "--store", "acme")
    assert (told.returncode, "3 can be read" in told.stdout) == (0, True)
    assert "storehooks events reread --store acme --config" in told.stdout
    assert acme.counts()["failed"] == 3
    told = acme.cli("events", "reread", "--store", "acme", "--yes", "--json")
    assert json.loads(told.stdout)["read"] == 3
    for number, one in enumerate(ids):
        assert acme.system.settled(one) == "settled"
        run = acme.system.run_of(one, "erp.export")
        assert run.result == f"order.created delivery-{number} order-{number} 42.00"
        again = acme.send(number, delivery=f"delivery-{number}").json()
        assert (again["status"], again["id"]) == ("duplicate", one)
    assert acme.counts() == {"accepted": 3, "settled": 3, "open": 0, "failed": 0, "duplicates": 3}
    (sent,) = json.loads(acme.cli("topics", "--json").stdout)
    assert (sent["theirs"], sent["topic"], sent["seen"]) == ("orders/new", "order.created", 3)
    assert "no store has sent" not in acme.cli("doctor").stdout
    assert FailureQueries(acme.system.client).groups().entries == []
    assert "no events to read again" in acme.cli("events", "reread", "--yes").stdout
    assert "1 not read again: already readable" in acme.cli("events", "reread", ids[0], "--yes").stdout
    assert acme.system.identity_holds()


REDACT = '[redact]\npaths = ["lines", "note"]\n'


def test_what_is_left_of_a_redacted_delivery_is_read_and_it_keeps_its_identity(
    make_system: Callable[..., System],
) -> None:
    """It could never be read, and each message named a command that did not help."""
    acme = Acme(make_system, more=REDACT)
    first = accepted(acme.send(1, delivery="d1"))
    acme.correct_scheme()
    assert "1 read and routed" in acme.cli("events", "reread", "--yes").stdout
    assert acme.system.settled(first) == "settled"
    assert acme.system.run_of(first, "erp.export").result == "order.created d1 order-1 42.00"
    shown = json.loads(acme.cli("events", "show", first, "--json").stdout)
    assert (shown["redacted"], shown["payload"]["lines"]) == (["lines"], None)
    again = acme.send(1, delivery="d1").json()
    assert (again["status"], again["id"]) == ("duplicate", first)
    assert acme.counts() == {"accepted": 1, "settled": 1, "open": 0, "failed": 0, "duplicates": 1}


def test_a_redacted_delivery_whose_id_is_read_from_elsewhere_now_is_sent_again(
    make_system: Callable[..., System],
) -> None:
    acme = Acme(make_system, header="X-Wrong-Id", more=REDACT)
    first = accepted(acme.send(1, delivery="d1"))
    acme.correct_scheme()
    told = acme.cli("events", "reread", "--yes")
    reason = "[redact] paths removed lines, and it has another id now; drop it, and have the store send it again"
    assert (told.returncode, reason in " ".join(told.stdout.split())) == (1, True), told.stdout
    assert acme.system.status(first) == "failed"
    new = accepted(acme.send(1, delivery="d1"))
    assert acme.system.settled(new) == "settled"
    assert acme.system.run_of(new, "erp.export").result == "order.created d1 order-1 42.00"


def test_a_redelivery_is_a_duplicate_although_its_id_is_read_from_elsewhere_now(
    make_system: Callable[..., System],
) -> None:
    acme = Acme(make_system, header="X-Wrong-Id")
    early, late = accepted(acme.send(1, delivery="d1")), accepted(acme.send(2, delivery="d2"))
    acme.correct_scheme()
    new = accepted(acme.send(2, delivery="d2"))
    assert acme.system.settled(new) == "settled"
    told = acme.cli("events", "reread", "--yes").stdout
    assert "1 read and routed" in told
    assert "1 settled: delivered again and accepted meanwhile" in told
    assert acme.system.settled(early) == acme.system.settled(late) == "settled"
    assert acme.system.run_of(early, "erp.export").result == "order.created d1 order-1 42.00"
    assert acme.system.run_of(late, "erp.export") is None
    assert acme.system.run_of(late, "intake").result == f"delivered again, and accepted as {new}"
    for number, one in ((1, early), (2, new)):
        again = acme.send(number, delivery=f"d{number}").json()
        assert (again["status"], again["id"]) == ("duplicate", one)
    assert acme.counts() == {"accepted": 3, "settled": 3, "open": 0, "failed": 0, "duplicates": 2}
    assert acme.system.identity_holds()
    # The second id goes with the event.
    before = len(acme.system.client.keys(keys.EVENT + "*"))
    assert before == 4
    Housekeeping(acme.system.client).trim(bodies=0, records=0)
    assert acme.system.client.keys(keys.EVENT + "*") == []


def test_without_a_delivery_id_a_repeat_of_an_event_that_was_read_again_is_a_duplicate(
    make_system: Callable[..., System],
) -> None:
    acme = Acme(make_system)
    first = accepted(acme.send())
    acme.correct_scheme()
    acme.cli("events", "reread", "--yes")
    assert acme.system.settled(first) == "settled"
    again = acme.send().json()
    assert (again["status"], again["id"]) == ("duplicate", first)


def test_what_cannot_be_read_stays_a_failure_and_the_command_says_why(make_system: Callable[..., System]) -> None:
    acme = Acme(make_system)
    broken, gone = accepted(acme.send_body(b"{not JSON", delivery="d1")), accepted(acme.send(2, delivery="d2"))
    acme.correct_scheme()
    acme.system.client.delete(keys.BODY + gone)
    told = acme.cli("events", "reread", "--yes")
    assert told.returncode == 1
    assert "1 still unreadable: the body is not JSON" in told.stdout
    assert "1 not read: no such event, or its body was deleted by retention" in told.stdout
    assert acme.system.status(broken) == acme.system.status(gone) == "failed"
    assert acme.system.identity_holds()
    told = acme.cli("failures", "drop", "--event", broken, "--reason", "noise", "--yes")
    assert "1 run dropped" in told.stdout
    assert acme.system.status(broken) == "settled"


def test_no_command_treats_intake_as_a_handler(make_system: Callable[..., System]) -> None:
    acme = Acme(make_system)
    event_id = accepted(acme.send(delivery="d1"))
    (group,) = FailureQueries(acme.system.client).groups().entries
    for words in ((), ("show", group.id)):
        told = acme.cli("failures", *words).stdout
        assert "events reread --dry-run" in told
        assert all(hint not in told for hint in ("pause", "failures replay", "handlers run", "ran intake"))
    for words in (
        ("failures", "replay", "--group", group.id, "--yes"),
        ("failures", "replay", "--event", event_id, "--yes"),
        ("events", "replay", event_id, "--handler", "erp.export", "--yes"),
        ("events", "replay", event_id, "--yes"),
        ("handlers", "pause", "intake", "--yes"),
        ("handlers", "resume", "intake", "--yes"),
        ("handlers", "retire", "intake", "--yes"),
        ("handlers", "run", "intake", "--event", event_id),
    ):
        refused = acme.cli(*words)
        assert (refused.returncode, "`storehooks events reread`" in refused.stderr) == (2, True), words
    assert "0 runs match" in acme.cli("events", "replay", "--handler", "erp.export", "--yes").stdout
    shown = acme.cli("events", "show", event_id).stdout
    assert f"events reread {event_id}" in shown
    assert "events replay" not in shown
    explained = acme.cli("handlers", "explain", event_id).stdout
    assert f"events reread {event_id}" in explained
    assert "failures replay" not in explained
    assert acme.system.status(event_id) == "failed"
    assert acme.system.administration.reopen([f"{event_id}|intake"], {}) == ["unreadable"]
    assert acme.counts()["failed"] == 1


def test_events_that_were_moved_to_the_history_are_found(make_system: Callable[..., System]) -> None:
    """The command said that no event was accepted yet."""
    acme = Acme(make_system, more='[history]\nurl = "sqlite"\n')
    dropped = accepted(acme.send(1, delivery="d1"))
    acme.cli("failures", "drop", "--event", dropped, "--reason", "noise", "--yes")
    acme.correct_scheme()
    readable = accepted(acme.send(2, delivery="d2"))
    assert acme.system.settled(readable) == "settled"
    history = open_history(acme.system.config, acme.system.client)
    assert history
    history.check()
    assert Mover(acme.system.client, history).move(age=-1, known_for=3600.0).moved == 2
    for which in ("last", readable, readable[:8]):
        for how in ("--yes", "--dry-run"):
            told = acme.cli("events", "reread", which, how)
            said = "1 not read again: already readable; only unreadable events are read again"
            assert (told.returncode, said in told.stdout) == (1, True), told.stdout + told.stderr
    told = acme.cli("failures", "replay", "--event", "last", "--yes")
    assert (told.returncode, f"event {readable} has no failed run" in told.stderr) == (2, True), told.stderr
    moves = HistoryMoves(acme.system.client)
    assert "1 can be read" in acme.cli("events", "reread", dropped, "--dry-run").stdout
    assert moves.past([dropped, readable]) == [dropped, readable], "nothing is changed"
    assert "1 read and routed" in acme.cli("events", "reread", dropped, "--yes").stdout
    assert acme.system.settled(dropped) == "settled"
    assert acme.system.run_of(dropped, "erp.export").result == "order.created d1 order-1 42.00"
    assert moves.past([dropped, readable]) == [readable], "only what is read again is brought back"
    acme.cli("erase", "--store", "acme", "--match", "id=order-2", "--yes")
    told = acme.cli("events", "reread", readable, "--yes")
    assert "1 not read: the event was erased" in told.stdout, told.stdout + told.stderr
    assert acme.system.identity_holds()


def test_a_mover_at_work_takes_no_event_that_is_read_again(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While memory is short, events are moved as soon as they have settled. This one counted as readable already."""
    acme = Acme(make_system, more='[history]\nurl = "sqlite"\n')
    dropped = accepted(acme.send(1, delivery="d1"))
    acme.cli("failures", "drop", "--event", dropped, "--reason", "noise", "--yes")
    acme.correct_scheme()
    client, history = acme.system.client, open_history(acme.system.config, acme.system.client)
    assert history
    history.check()

    def move() -> int:
        return Mover(client, history).move(age=-1, known_for=3600.0).moved

    assert move() == 1
    reread = Administration.reread

    def meanwhile(*arguments: Any, **options: Any) -> list[RereadResult]:
        assert move() == 0
        return reread(*arguments, **options)

    monkeypatch.setattr(Administration, "reread", meanwhile)
    config, events = acme.system.config, AllEvents(client, history)
    rereader = Rereader(config, client, events, store=None, dry_run=False)
    rereader.read([dropped])
    assert rereader.counts == {RereadResult.READ: 1}
    assert acme.system.settled(dropped) == "settled"


@pytest.mark.parametrize("problem", ["", "no topic"])
def test_a_dropped_event_can_be_read_again(system: System, problem: str) -> None:
    delivery = system.delivery()
    unreadable = replace(delivery, event=replace(delivery.event, topic="unreadable"), unreadable="no topic")
    (stored,) = system.inbox.accept([unreadable])
    system.administration.drop([f"{stored.id}|intake"], reason="noise")
    assert system.status(stored.id) == "settled"
    (result,) = system.administration.reread([(stored.id, replace(delivery, unreadable=problem))], repeat_window=60)
    assert result == ("unreadable" if problem else "read")
    assert system.status(stored.id) == ("settled" if problem else "open")
    assert [one.seen for one in EventQueries(system.client).event_names("north")] == [1], "counted on arrival"
    assert system.identity_holds()


@pytest.mark.parametrize("ahead", [3600, 30])
def test_an_event_of_a_receiver_whose_clock_is_ahead_repeats_no_later_one(system: System, ahead: float) -> None:
    """By the receivers' clocks they are equally old; by the server's, one is an hour older."""
    later = replace(system.delivery(), content_hash="m")
    moment = later.event.received_at + timedelta(seconds=ahead)
    first = replace(later, event=replace(later.event, id="first", received_at=moment))
    system.inbox.accept([replace(first, content_hash="", unreadable="no topic")])
    system.client.zincrby(keys.INDEX, -3600 * 10**6, "first")
    system.inbox.accept([later])
    assert system.administration.reread([("first", first)], repeat_window=60) == ["read"]
    assert system.identity_holds()


def test_a_repeat_of_an_event_that_was_read_again_is_one_whatever_its_resource_had_before(system: System) -> None:
    """The event that was read again is not among those of its resource: the newest of these is an older one."""
    bodies = {amount: system.delivery("product.updated", data={"id": 7, "stock": amount}) for amount in (4, 5, 6)}
    older, first, again, other = (
        replace(bodies[amount], content_hash=str(amount), event=replace(bodies[amount].event, id=f"e{number}"))
        for number, amount in enumerate((4, 5, 5, 6))
    )
    unreadable = replace(first.event, topic="unreadable", resource_id="")
    system.inbox.accept([older, replace(first, event=unreadable, content_hash="", unreadable="no topic")])
    assert system.administration.reread([("e1", first)], repeat_window=60) == ["read"]
    sent = [again, other, replace(again, event=replace(again.event, id="e4"))]
    assert [system.inbox.accept([one], repeat_window=60)[0].id for one in sent] == ["e1", "e3", "e4"]


@pytest.mark.parametrize(("resource", "result"), [(1, "duplicate"), (2, "read")])
def test_another_body_under_an_id_that_counts_alone_is_read(system: System, resource: int, result: str) -> None:
    """The corrected scheme finds the id of an event that was accepted meanwhile. Only an equal body is that event."""
    accepted = system.delivery(delivery_id="d1", data={"id": 1})
    again = accepted if resource == 1 else system.delivery(delivery_id="d1", data={"id": resource})
    system.inbox.accept([accepted])
    system.inbox.accept(
        [replace(again, event=replace(again.event, id="before"), others_count=False, unreadable="no topic")]
    )
    assert again.event.id == accepted.event.id
    assert system.administration.reread([("before", again)], repeat_window=60) == [result]
    assert system.identity_holds()


def test_events_are_read_again_in_the_order_of_their_arrival(system: System) -> None:
    ids = []
    for number in range(5):
        delivery = system.delivery(store="north" if number % 2 else "south")
        (stored,) = system.inbox.accept([replace(delivery, unreadable=f"no topic in {'ab'[number % 2]}")])
        ids.append(stored.id)
        system.client.zadd(keys.FAILED, {f"{stored.id}|intake": number})
    assert list(FailureQueries(system.client).unreadable()) == ids
