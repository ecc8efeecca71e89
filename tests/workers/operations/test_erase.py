"""`storehooks erase`: nothing of a person is left, everything else is as it was, and counters and duplicates hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import orjson
import psycopg
import pytest

from receiver.inbox import Outcome, keys
from receiver.inbox.administration import ReopenResult
from receiver.inbox.effect_store import EffectStore
from receiver.inbox.history_moves import HistoryMoves
from receiver.inbox.outcomes import OutcomeKind
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import Server, System, eventually
from tests.support.marked_person import MARK, OTHER, Placed, everything, order, traces
from tests.support.past_events import past_event
from tests.support.postgres import needs_postgres, postgres_server
from workers.history.configured_history import open_history
from workers.history.past_events import HistoryError, PastEvent
from workers.operations.erasure.erasing import Erasing
from workers.operations.erasure.plugin_hooks import PluginHooks
from workers.operations.erasure.subject import Subject
from workers.operations.erasure.survey import Survey
from workers.runtime.history_mover import Mover

PLUGIN = """
from pathlib import Path
from workers import Router
router = Router("shop")
@router.on("order.*")
def greet(event, ctx):
    return None
@router.erase
def forget(subject, ctx):
    print("forgets", subject.by)
    Path(__file__).with_name("asked").write_text(f"{subject.store} {subject.by} {subject.name} {len(subject.value)}")
    ctx.state.set("erased", 1)
    return 3
"""
HISTORY = '[history]\nurl = "sqlite"\nafter = "1h"\n'


@pytest.fixture
def marked(tmp_path: Path, own_redis: Server) -> Iterator[System]:
    (tmp_path / "shop").mkdir()
    system = System(tmp_path / "shop", own_redis.url, plugin=PLUGIN, more=HISTORY)
    yield system
    system.close()


def test_nothing_of_a_person_is_left_and_all_else_is_as_it_was(tmp_path: Path, marked: System) -> None:
    erase_and_search(marked, [tmp_path])


@pytest.mark.full
@needs_postgres
def test_nothing_of_a_person_is_left_in_postgresql(tmp_path: Path, marked: System) -> None:
    """Its write-ahead log is not searched: it is overwritten in time."""
    with postgres_server() as server:
        text = marked.config_file.read_text()
        marked.config_file.write_text(text.replace('url = "sqlite"', f'url = "{server.new_database()}"'))

        def flush() -> None:
            with psycopg.connect(server.url(), autocommit=True) as db:
                db.execute("CHECKPOINT")

        erase_and_search(marked, [tmp_path, server.data / "base"], flush)


@pytest.mark.full
@needs_postgres
def test_an_erasure_that_is_repeated_compacts_what_the_first_one_has_changed(
    tmp_path: Path, marked: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_server() as server:
        text = marked.config_file.read_text()
        marked.config_file.write_text(text.replace('url = "sqlite"', f'url = "{server.new_database()}"'))
        first = survey(marked)
        assert first.history
        first.history.write([past_event(1, data=order(1, MARK))])
        first.run()
        with monkeypatch.context() as patch:
            patch.setattr(type(first.history), "compact", raise_away)
            with pytest.raises(HistoryError):
                Erasing(first, PluginHooks(marked.config)).run("a test", open_too=True)
        again = survey(marked)
        assert not again.run()
        receipt = Erasing(again, PluginHooks(marked.config)).run("a test", open_too=True)
        assert receipt.places["past events"] == 1, "it goes on with the first one"
        with psycopg.connect(server.url(), autocommit=True) as db:
            db.execute("CHECKPOINT")
        assert again.history
        assert traces([tmp_path, server.data / "base"], again.history) == []


def raise_away(*_: object) -> None:
    raise HistoryError("the server is away")


def erase_and_search(marked: System, folders: list[Path], flush: Callable[[], None] = lambda: None) -> None:
    history = open_history(marked.config, marked.client)
    assert history
    history.check()
    placed = Placed(marked, history)
    flush()
    assert len(traces(folders, history)) >= 5
    before, counters = everything(marked, history), marked.ledger.counters()
    wanted = ("erase", "--store", "north", "--match", f"customer.email={MARK}")
    told = marked.run_cli(*wanted, "--yes")
    assert (told.returncode, "open: wait until they have ended" in told.stderr) == (1, True), told
    assert everything(marked, history).keys() == before.keys(), "nothing was changed"
    told = marked.run_cli(*wanted, "--yes", "--open", "--json")
    assert told.returncode == 0, told.stdout + told.stderr
    receipt = json.loads(told.stdout)
    assert receipt["places"] == {
        "events": 4, "open events": 2, "failures": 1, "past events": 1, "bodies": 5, "results and errors": 6,
        "once marks": 5, "state": 1, "spool": 1, "refused": 1, "audit trail": 1, "other texts": 1,
    }  # fmt: skip
    assert receipt["plugins"] == {"shop": "3"}
    assert (marked.folder / "asked").read_text() == f"north match customer.email {len(MARK)}"
    flush()
    eventually(lambda: not traces(folders, history), what=f"no trace: {traces(folders, history)}")
    _all_else_is_as_it_was(before, everything(marked, history))
    assert marked.identity_holds()
    after = marked.ledger.counters().total
    assert after["accepted"] == counters.total["accepted"] + 1, "the spooled delivery was counted"
    assert after["failed"] == counters.total["failed"]
    for name, delivery in placed.deliveries.items():
        if delivery.event.data["customer"]["email"] == MARK:
            (again,) = marked.inbox.accept([delivery])
            assert again.status == "duplicate", name
    assert traces(folders, history) == [], "a redelivery brings nothing back"
    shown = marked.run_cli("erase", "--receipt", receipt["id"]).stdout
    assert receipt["hash"] in shown
    assert MARK not in shown


def _all_else_is_as_it_was(before: dict[str, object], after: dict[str, object]) -> None:
    """What has the other person's address has it still, and unchanged."""
    others = {name: value for name, value in before.items() if OTHER in repr(value) or OTHER in name}
    assert len(others) > 20
    changed = {name for name, value in others.items() if after.get(name) != value}
    assert changed == set()


def test_what_needs_the_content_of_an_erased_event_says_that_it_was_erased(marked: System) -> None:
    event_id = marked.accept("order.paid", data=order(1, MARK))
    (run,) = route(marked.inbox, claim_one(marked.inbox), GREET)
    marked.inbox.finish([Outcome(run, OutcomeKind.DONE, {"result": "ok", "version": "1"})])
    for remembered in (keys.NEWEST, keys.GAP):
        marked.client.set(f"{remembered}shop.greet|north|order|1", "of the resource")
        marked.client.set(f"{remembered}shop.gone|north|order|1", "of a handler that has no run of it")
    done = marked.run_cli("erase", "--store", "north", "--customer", "77", "--yes")
    assert done.returncode == 0, done.stderr
    assert marked.client.keys("sh:*|north|order|1") == []
    assert "too short to be looked for in free text" in done.stdout
    item = keys.run_item(event_id, "shop.greet")
    assert marked.administration.reopen([item], {}) == [ReopenResult.ERASED]
    assert "was erased on" in marked.run_cli("events", "show", event_id).stdout
    told = marked.run_cli("events", "replay", event_id, "--yes")
    assert "the event was erased" in told.stdout + told.stderr
    assert "nothing is stored" in marked.run_cli("erase", "--store", "north", "--customer", "77", "--dry-run").stdout


def test_a_short_value_is_found_by_its_path_only() -> None:
    short, long = Subject("north", "customer", "", "77"), Subject("north", "match", "customer.email", MARK)
    assert not short.is_in_text(b"order 77 is ready")
    assert long.is_in_text(f"mailed {MARK}.".encode())
    for other in (f"x{MARK}", f"mary.{MARK}", f"mary+{MARK}", f"mary%2B{MARK}", f"{MARK}.au", f"{MARK}m"):
        assert not long.is_in_text(f"mailed {other} today".encode()), "the address of another person"
    for same in (f"to:{MARK}", f"...{MARK}.", f"key_{MARK}", f"mail-{MARK}, x"):
        assert long.is_in_text(same.encode())
    assert Subject("north", "match", "n", "42.50").probes == (b"42",)


@pytest.mark.parametrize(
    "written",
    ["ann-7f3a%2Bshop%40example.com", r"ann-7f3a\u002bshop\u0040example.com", r"Hi\nann-7f3a+shop\\u0040example.com"],
)
def test_a_value_is_found_however_it_is_written(marked: System, written: str) -> None:
    subject = Subject("north", "match", "customer.email", MARK)
    assert subject.is_in_text(f"from={written}&x=1".encode())
    assert subject.replaced_in(f'"{written}"'.encode()).endswith(b'(erased)"')
    marked.administration.client.hset("sh:st:shop:north", "last", f'{{"to":"{written}"}}')
    delivery = marked.delivery("order.paid", data={"id": 1, "note": "MARK"}, delivery_id="d1")
    body = delivery.event.body.replace(b"MARK", written.encode())
    marked.inbox.accept([replace(delivery, event=replace(delivery.event, body=body))])
    found = survey(marked).run()
    assert (len(found.open), found.counts["state"]) == (1, 1)


@pytest.mark.parametrize("customer", [77, 88], ids=["in an event of the person", "in an event of another one"])
def test_a_number_that_no_decimal_holds_does_not_end_an_erasure(marked: System, customer: int) -> None:
    """The command ended with a traceback. And the output of a plugin does not mix with the JSON."""
    given = marked.delivery("order.paid", data={"id": 1, "total": "TOTAL", "note": 77, "customer": {"id": customer}})
    for number, total in enumerate((b"1e-99999999999999999999", b"0e99999999999999999999")):
        body = given.event.body.replace(b'"TOTAL"', total)
        marked.inbox.accept([replace(given, event=replace(given.event, body=body, id=f"{number}{given.event.id[1:]}"))])
    told = marked.run_cli("erase", "--store", "north", "--customer", "77", "--yes", "--open", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["places"].get("open events", 0) == (2 if customer == 77 else 0)
    assert "forgets customer" in told.stderr


@pytest.mark.parametrize(
    "call", ['ctx.once("crm", len, "x")', 'ctx.once("crm", len, "x", scope="store")', 'ctx.key("crm")']
)
def test_an_effect_of_an_event_is_refused_in_a_function_for_erasures(marked: System, call: str) -> None:
    """It was done for the first person, and its stored result was given for all others."""
    plugin = next(marked.folder.glob("*.py"))
    plugin.write_text(PLUGIN.replace("return 3", f"return bool({call})"))
    told = marked.run_cli("erase", "--store", "north", "--customer", "77", "--yes")
    assert told.returncode != 0
    assert "an erasure has no event" in told.stderr + told.stdout


def survey(marked: System) -> Survey:
    subject = Subject("north", "match", "customer.email", MARK)
    history = open_history(marked.config, marked.client)
    assert history
    history.check()
    return Survey(marked.config, marked.client, history, subject)


def test_what_moves_or_is_written_between_survey_and_erasure_is_erased(tmp_path: Path, marked: System) -> None:
    """A settled event is moved to the history; a run that was under way ends and writes texts."""
    marked.accept("order.paid", data=order(1, MARK))
    (run,) = route(marked.inbox, claim_one(marked.inbox), GREET)
    marked.inbox.finish([Outcome(run, OutcomeKind.DONE, {"result": "ok", "version": "1"})])
    marked.accept("order.paid", data=order(2, MARK))
    (running,) = route(marked.inbox, claim_one(marked.inbox), GREET)
    effects, place = EffectStore(marked.client, keep=3600, at_work=60), "o:r:north:order:2:shop.greet|mail"
    effects.begin(place, "shop.greet|mail", running.item, in_doubt="run")
    effects.write("st:shop:north", "last", orjson.dumps({"to": MARK}))
    looked = survey(marked)
    assert looked.run().counts["events"] == 2
    assert [one for one in looked.found.texts if one.key == place] == [], "it has begun, and is not done"
    assert looked.history
    assert Mover(marked.client, looked.history).move(age=-1, known_for=3600.0).moved == 1
    effects.write("st:shop:north", "last", orjson.dumps({"to": "bob"}))
    effects.end(place, "shop.greet|mail", running.item, orjson.dumps(f"sent to {MARK}"))
    effects.write("st:shop:north", "more", orjson.dumps({"to": MARK}))
    marked.inbox.finish([Outcome(running, OutcomeKind.DONE, {"result": MARK, "version": "1"})])
    receipt = Erasing(looked, PluginHooks(marked.config)).run("a test", open_too=True)
    eventually(lambda: not traces([tmp_path], looked.history), what="no trace")
    assert effects.read("st:shop:north", "last") == b'{"to":"bob"}', "what was written over it stays"
    assert effects.read(place, "shop.greet|mail") == b"done null"
    assert receipt.missed == []
    assert receipt.subject == looked.subject.digest(receipt.salt) != looked.subject.digest("")


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=[pytest.mark.full, needs_postgres])])
def test_a_slow_mover_brings_nothing_back_after_an_erasure(tmp_path: Path, marked: System, kind: str) -> None:
    """It has read the events before. Their contents were in the history after the receipt was stored."""
    with ExitStack() as stack:
        if kind == "postgresql":
            text, server = marked.config_file.read_text(), stack.enter_context(postgres_server())
            marked.config_file.write_text(text.replace('url = "sqlite"', f'url = "{server.new_database()}"'))

        def settle(number: int, mark: str) -> str:
            event_id = marked.accept("order.paid", data=order(number, mark))
            (run,) = route(marked.inbox, claim_one(marked.inbox), GREET)
            marked.inbox.finish([Outcome(run, OutcomeKind.DONE, {"result": mark, "version": "1"})])
            return event_id

        looked = survey(marked)
        history = looked.history
        assert history
        settle(1, OTHER)
        mover = Mover(marked.client, history)
        assert mover.move(age=-1, known_for=3600.0).moved == 1
        ids = [settle(2, MARK), settle(3, MARK)]
        read = HistoryMoves(marked.client).settled(age=-1).events
        assert [one.id for one in read] == ids
        looked.run()
        receipt = Erasing(looked, PluginHooks(marked.config)).run("a test", open_too=False)
        assert receipt.missed == []
        assert len(history.write([PastEvent(*one) for one in read])) == 2
        assert traces([tmp_path], history) == []
        assert mover.move(age=-2, known_for=3600.0).moved == 2
        assert [one.is_erased for one in history.events(ids)] == [True, True]
        assert marked.identity_holds()
        history.close()


def test_an_erasure_begins_no_history(marked: System) -> None:
    """It may be run on another host than the one that will have it."""
    marked.accept("order.paid", data=order(1, MARK))
    (run,) = route(marked.inbox, claim_one(marked.inbox), GREET)
    marked.inbox.finish([Outcome(run, OutcomeKind.DONE, {"result": MARK, "version": "1"})])
    told = marked.run_cli("erase", "--store", "north", "--match", f"customer.email={MARK}", "--yes")
    assert told.returncode == 0, told.stderr
    assert not (marked.config.data_dir / "history").exists()
    assert not marked.client.exists(keys.HISTORY_PLACE)


def test_an_event_that_cannot_be_erased_is_named_and_the_exit_code_says_so(marked: System) -> None:
    event_id = marked.accept("order.paid", data=order(1, MARK))
    marked.client.delete(f"sh:e:{event_id}")
    marked.client.set(f"sh:e:{event_id}", "damaged")
    told = marked.run_cli("erase", "--store", "north", "--match", f"customer.email={MARK}", "--yes", "--json")
    assert told.returncode == 1
    assert "1 event could not be erased" in told.stderr
    assert json.loads(told.stdout)["missed"] == [f"{event_id}: its record is damaged"]


def test_a_group_does_not_show_the_error_of_a_run_that_has_left_it(marked: System) -> None:
    for number, email in ((1, OTHER), (2, MARK)):
        event_id = marked.accept("order.paid", data=order(number, email))
        (run,) = route(marked.inbox, claim_one(marked.inbox), GREET)
        detail = {"error": f"no mail to {email}", "group": "abcd1234", "version": "1"}
        marked.inbox.finish([Outcome(run, OutcomeKind.FAILED, detail)])
    assert MARK.encode() in marked.client.hget("sh:g:abcd1234", "error")
    marked.administration.reopen([keys.run_item(event_id, "shop.greet")], {"shop.greet": "default"})
    assert marked.client.hget("sh:g:abcd1234", "error") == f"no mail to {OTHER}".encode()
