"""Export and import: another server has the same events, counts and marks, and does what the first would have done."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from receiver.contract.errors import ConfigError
from receiver.inbox import FailureQueries, Outcome, keys
from receiver.inbox.effect_store import EffectStore
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.learned_secrets import learned_secret
from receiver.inbox.known_data import accept_data
from receiver.inbox.redis import script_runner
from receiver.inbox.transferred_data import Transfer
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import OTHER_SECRET, Server, System
from tests.support.postgres import needs_postgres, postgres_server
from workers.history.past_events import HistoryDatabase
from workers.history.postgres_history import PostgresHistory
from workers.history.sqlite_history import SqliteHistory
from workers.operations.transfer import export_file, importing
from workers.operations.transfer.export_file import ExportEnd, ExportHeader
from workers.operations.transfer.exporting import DataExporter
from workers.operations.transfer.importing import DataImporter, read_summary
from workers.operations.transfer.secret_box import close_box, open_box
from workers.runtime.history_mover import Mover

ORDERED = ("shop.sync", "default", True, "c resource")


@pytest.fixture
def other(make_system: Callable[..., System], own_redis: Server) -> System:
    """Another server, empty."""
    return make_system(url=own_redis.url)


def export(system: System, path: Path, history: HistoryDatabase | None = None, **how: Any) -> ExportEnd:
    header = ExportHeader(data=next(iter(Transfer(system.client).data_ids()), "100"), **how)
    return DataExporter(system.client, history, path, header).run([], "", lambda _: None)


def import_into(system: System, path: Path, history: HistoryDatabase | None = None) -> dict[str, int]:
    importer = DataImporter(system.client, history, system.config, keyring=None, passphrase="")
    importer.run(path, lambda _: None)
    return importer.results


def settle(system: System, **event: Any) -> str:
    event_id = system.accept(**event)
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    effects = EffectStore(system.client, keep=3600, at_work=60)
    effects.begin(f"o:{event_id}", "shop.greet|mail", run.item, in_doubt="run")
    effects.end(f"o:{event_id}", "shop.greet|mail", run.item, b'"sent"')
    system.inbox.finish([Outcome(run, "done", {"result": "hi"})])
    return event_id


def fail(system: System, how: str = "failed", **event: Any) -> str:
    event_id = system.accept(**event)
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    arguments = {"delay": 60} if how == "retry" else {}
    detail = {"error": "ValueError: no", "group": "abc", "version": "1"}
    system.inbox.finish([Outcome(run, how, detail, **arguments)])  # type: ignore[arg-type]
    return event_id


def counts(system: System) -> dict[str, Any]:
    found = system.ledger.counters()
    return {"total": found.total, "stores": found.stores, "other": found.other}


def test_the_other_server_has_equal_counters_runs_and_failures(system: System, other: System, tmp_path: Path) -> None:
    settled, failed, retrying = settle(system), fail(system), fail(system, "retry")
    delivery = system.delivery(store="south")
    (opened,) = system.inbox.accept([delivery])
    system.inbox.accept([delivery])
    system.client.hincrby(keys.COUNTERS, "refused|north", 3)
    end = export(system, tmp_path / "all.gz")
    assert end == ExportEnd(events=4, open=2, failed=1)
    results = import_into(other, tmp_path / "all.gz")
    assert results["new"] == 4
    assert counts(other) == counts(system)
    assert other.identity_holds()
    for event_id in (settled, failed, retrying, opened.id):
        ours, theirs = other.ledger.event(event_id), system.ledger.event(event_id)
        assert (ours.summary, ours.body, ours.headers) == (theirs.summary, theirs.body, theirs.headers)
        assert [(run.handler, run.status, run.result, run.error) for run in ours.runs] == [
            (run.handler, run.status, run.result, run.error) for run in theirs.runs
        ]
    ours, theirs = (list(FailureQueries(one.client).every_group()) for one in (other, system))
    assert [(one.id, one.failed, one.retrying, one.error) for one in ours] == [
        (one.id, one.failed, one.retrying, one.error) for one in theirs
    ]
    assert other.client.zscore(keys.FAILED, f"{failed}|shop.greet") == system.client.zscore(
        keys.FAILED, f"{failed}|shop.greet"
    )
    assert other.ledger.event_names("south")[0].seen == 1


def test_importing_twice_changes_nothing(system: System, other: System, tmp_path: Path) -> None:
    settle(system), fail(system), system.accept()
    export(system, tmp_path / "all.gz")
    import_into(other, tmp_path / "all.gz")
    before = other.client.keys("*"), counts(other)
    results = import_into(other, tmp_path / "all.gz")
    assert (results["new"], results["known"]) == (0, 3)
    assert (sorted(other.client.keys("*")), counts(other)) == (sorted(before[0]), before[1])


def test_a_redelivery_is_a_duplicate_there_and_an_effect_is_not_repeated(
    system: System, other: System, tmp_path: Path
) -> None:
    delivery = system.delivery()
    event_id = system.inbox.accept([delivery])[0].id
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    effects = EffectStore(system.client, keep=3600, at_work=60)
    for place in (f"o:{event_id}", "o:r:north:order:1001:mail", "o:s:north:mail"):
        effects.begin(place, "shop.greet|mail", run.item, in_doubt="run")
        effects.end(place, "shop.greet|mail", run.item, b'"sent"')
    effects.write("st:shop:north", "cursor", b"7")
    system.inbox.finish([Outcome(run, "done", {})])
    export(system, tmp_path / "all.gz")
    import_into(other, tmp_path / "all.gz")
    assert other.inbox.accept([delivery])[0].status == "duplicate"
    there = EffectStore(other.client, keep=3600, at_work=60)
    for place in (f"o:{event_id}", "o:r:north:order:1001:mail", "o:s:north:mail"):
        assert there.begin(place, "shop.greet|mail", run.item, in_doubt="run") == ["done", b'"sent"']
    assert there.read("st:shop:north", "cursor") == b"7"
    assert 0 < other.client.pttl("sh:o:s:north:mail") <= 3_600_000


def mark(system: System, place: str, *, is_done: bool, name: str = "mail") -> None:
    effects = EffectStore(system.client, keep=3600, at_work=60)
    effects.begin(place, f"shop.greet|{name}", "some|run", in_doubt="run")
    if is_done:
        effects.end(place, f"shop.greet|{name}", "some|run", b'"sent"')


def is_done(system: System, place: str, name: str = "mail") -> bool:
    return (system.client.hget(f"sh:{place}", f"shop.greet|{name}") or b"").startswith(b"done ")


def test_an_event_that_the_new_server_accepted_itself_gets_what_was_done_in_the_old_one(
    system: System, other: System, tmp_path: Path
) -> None:
    delivery = system.delivery()
    event_id = settle_delivery(system, delivery)
    (there,) = other.inbox.accept([delivery])
    assert (there.id, there.status) == (event_id, "accepted")
    shared = "o:r:north:order:1001:mail"
    for place in (f"o:{event_id}", shared):
        mark(system, place, is_done=True)
        mark(other, place, is_done=False)
    mark(system, f"o:{event_id}", is_done=False, name="label")
    mark(other, f"o:{event_id}", is_done=True, name="label")
    export(system, tmp_path / "all.gz")
    assert import_into(other, tmp_path / "all.gz")["known"] == 1
    for place, name in ((f"o:{event_id}", "mail"), (f"o:{event_id}", "label"), (shared, "mail")):
        assert is_done(other, place, name), (place, name)
    # The handler that has ended there does not run here, and another one does.
    event, version = claim_one(other.inbox), other.inbox.declarations().version
    assert other.inbox.route([(event, [GREET, ("shop.book", "default", True)])], version) == [["routed", "shop.book"]]
    assert other.run_of(event_id, "shop.greet").result == "hi"
    assert other.identity_holds()


def test_a_past_event_gets_what_was_done_in_the_old_server(system: System, other: System, tmp_path: Path) -> None:
    delivery, theirs = system.delivery(), SqliteHistory(tmp_path / "theirs")
    theirs.check()
    event_id = settle_delivery(system, delivery)
    mark(system, f"o:{event_id}", is_done=True)
    settle_delivery(other, delivery)
    Mover(other.client, theirs).move(age=0, known_for=3600, many=10)
    export(system, tmp_path / "all.gz")
    import_into(other, tmp_path / "all.gz", theirs)
    Mover(other.client, theirs).move(age=0, known_for=3600, many=10)
    assert [*theirs.event(event_id).once] == [b"shop.greet|mail"]
    assert other.identity_holds()


@pytest.mark.parametrize("where", ["history", "redis"])
def test_a_mover_at_work_takes_no_event_that_gets_what_was_done(
    system: System, other: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The marks of an event that was moved meanwhile were lost, and it counted as imported."""
    delivery, theirs = system.delivery(), SqliteHistory(tmp_path / "theirs")
    theirs.check()
    event_id = settle_delivery(system, delivery)
    mark(system, f"o:{event_id}", is_done=True)
    settle_delivery(other, delivery)
    if where == "history":
        Mover(other.client, theirs).move(age=-1, known_for=3600)
    import_events = Transfer.import_events

    def meanwhile(*arguments: Any) -> list[int]:
        Mover(other.client, theirs).move(age=-1, known_for=3600)
        return import_events(*arguments)

    monkeypatch.setattr(Transfer, "import_events", meanwhile)
    export(system, tmp_path / "all.gz")
    import_into(other, tmp_path / "all.gz", theirs)
    assert Mover(other.client, theirs).move(age=-1, known_for=3600).moved == 1
    assert [*theirs.event(event_id).once] == [b"shop.greet|mail"]
    assert other.identity_holds()


def test_what_was_resumed_deleted_or_replayed_since_is_not_imported_again(
    system: System, other: System, tmp_path: Path
) -> None:
    event_id = settle(system)
    system.administration.pause(handler="shop.greet")
    EffectStore(system.client, keep=3600, at_work=60).write("st:shop:north", "cursor", b"7")
    export(system, tmp_path / "all.gz")
    first = import_into(other, tmp_path / "all.gz")
    assert (first["paused"], first["values"]) == (1, 1)
    assert is_done(other, f"o:{event_id}")
    other.administration.resume(handler="shop.greet")
    EffectStore(other.client, keep=3600, at_work=60).write("st:shop:north", "cursor", None)
    other.client.delete(keys.ONCE + event_id)  # as a replay with --again does
    again = import_into(other, tmp_path / "all.gz")
    assert (again["new"], again["known"], again["paused"], again["values"]) == (0, 1, 0, 0)
    assert other.administration.paused() == set()
    assert other.client.exists("sh:st:shop:north", keys.ONCE + event_id) == 0


def test_an_import_that_ends_before_any_of_its_steps_goes_on_with_what_is_missing(
    system: System, other: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at_once in ("EVENTS_AT_ONCE", "VALUES_AT_ONCE"):
        monkeypatch.setattr(importing, at_once, 2)
    for _ in range(3):
        settle(system)
    places = ["o:r:north:order:1001:mail", "o:s:north:mail", "o:s:north:label"]
    for place in places:
        mark(system, place, is_done=True)
    EffectStore(system.client, keep=3600, at_work=60).write("st:shop:north", "cursor", b"7")
    export(system, tmp_path / "all.gz")
    real, steps = script_runner.run_one, [0]

    def run_until(last: int) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            steps[0] += 1
            if steps[0] > last:
                raise ConnectionError
            return real(*arguments)

        return run

    import_into(other, tmp_path / "all.gz")
    wanted, number = kept(other), 0
    while steps[0] >= number:  # until the import has fewer steps
        other.client.flushall()
        steps[0] = 0
        monkeypatch.setattr(script_runner, "run_one", run_until(number))
        with suppress(ConnectionError):
            import_into(other, tmp_path / "all.gz")
        monkeypatch.setattr(script_runner, "run_one", real)
        import_into(other, tmp_path / "all.gz")
        assert kept(other) == wanted, number
        number += 1
    assert number > 5
    assert [is_done(other, place) for place in places] == [True] * 3


def kept(system: System) -> tuple[Any, set[str], int]:
    """What is in a server: its counters, the keys of kept values, and the number of events."""
    values = {one.key for one in Transfer(system.client).kept_values()}
    return counts(system), values, system.client.zcard(keys.INDEX)


def test_an_erased_event_stays_erased(system: System, other: System, tmp_path: Path) -> None:
    delivery = system.delivery()
    event_id = settle_delivery(system, delivery)
    mark(system, f"o:{event_id}", is_done=True)
    other.inbox.accept([delivery])
    other.client.hset(keys.EVENT + event_id, "erased", "1 abc")
    export(system, tmp_path / "all.gz")
    import_into(other, tmp_path / "all.gz")
    assert other.client.exists(keys.ONCE + event_id) == 0
    assert other.client.hget(keys.EVENT + event_id, "x:shop.greet") is None


def test_open_events_run_there_and_pauses_hold(system: System, other: System, tmp_path: Path) -> None:
    unrouted = system.accept()
    leased = system.accept()
    waiting = route(system.inbox, claim_one(system.inbox), ("shop.paused", "default", False))
    assert waiting == []
    system.administration.pause(handler="shop.paused")
    claim_one(system.inbox)
    assert system.client.zcard(keys.LEASED) == 1
    export(system, tmp_path / "all.gz")
    import_into(other, tmp_path / "all.gz")
    assert other.administration.paused() == {"handler:shop.paused"}
    assert other.client.zcard(keys.LEASED) == 0
    assert other.inbox.claim({"shop.paused": 5}, capacity=5).runs == ()
    assert [run.event.id for run in other.inbox.claim({"": 5}, capacity=5).runs] == [leased]
    assert other.client.llen("rq:queue:storehooks") == 1
    assert system.run_of(unrouted, "shop.paused").status == other.run_of(unrouted, "shop.paused").status == "waiting"


def test_past_events_are_imported_too_and_moved_there(system: System, other: System, tmp_path: Path) -> None:
    ours, theirs = SqliteHistory(tmp_path / "ours"), SqliteHistory(tmp_path / "theirs")
    ours.check(), theirs.check()
    delivery = system.delivery()
    event_id = settle_delivery(system, delivery)
    recent = settle(system)
    Mover(system.client, ours).move(age=0, known_for=3600, many=1)
    assert ours.event(event_id)
    end = export(system, tmp_path / "all.gz", ours)
    assert end.events == 2
    import_into(other, tmp_path / "all.gz", theirs)
    Mover(other.client, theirs).move(age=0, known_for=3600, many=10)
    assert {event_id, recent} <= {theirs.event(one).id for one in (event_id, recent)}
    assert theirs.event(event_id).once == ours.event(event_id).once
    assert other.inbox.accept([delivery])[0].status == "duplicate"
    other.client.delete(keys.EVENT + event_id)  # as its mark after the duplicate window
    export(system, tmp_path / "again.gz", ours)
    assert import_into(other, tmp_path / "again.gz", theirs)["new"] == 0
    assert counts(other)["total"]["accepted"] == 2


def test_past_events_go_from_one_history_to_another(system: System, tmp_path: Path) -> None:
    """Only their marks are in Redis, and the new history has none of them."""
    carry_to(SqliteHistory(tmp_path / "now"), system, tmp_path)


@pytest.mark.full
@needs_postgres
def test_past_events_go_from_sqlite_to_postgresql(system: System, tmp_path: Path) -> None:
    with postgres_server() as server:
        now = PostgresHistory(server.new_database())
        carry_to(now, system, tmp_path)
        now.close()


def carry_to(now: HistoryDatabase, system: System, tmp_path: Path) -> None:
    before = SqliteHistory(tmp_path / "before")
    before.check()
    delivery = system.delivery()
    event_id, recent = settle_delivery(system, delivery), settle(system)
    assert Mover(system.client, before).move(age=0, known_for=3600, many=1).moved == 1
    system.client.set(keys.DATA, "100")
    total = counts(system)
    export(system, tmp_path / "all.gz", before)
    first = import_into(system, tmp_path / "all.gz", now)
    assert (first["new"], first["known"]) == (1, 1)
    assert now.event(event_id) == before.event(event_id)
    assert now.event(recent) is None, "it is in Redis"
    export(system, tmp_path / "again.gz", before)
    assert import_into(system, tmp_path / "again.gz", now)["new"] == 0
    assert counts(system) == total
    assert system.inbox.accept([delivery])[0].status == "duplicate"


def settle_delivery(system: System, delivery: Any) -> str:
    event_id = system.inbox.accept([delivery])[0].id
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, "done", {"result": "hi"})])
    return str(event_id)


def test_counts_of_events_that_are_no_longer_stored_are_added_once(
    system: System, other: System, tmp_path: Path
) -> None:
    for _ in range(3):
        settle(system)
    while system.housekeeping.trim(bodies=0, records=0)[1] == 0:
        pass
    settle(system)
    export(system, tmp_path / "first.gz")
    import_into(other, tmp_path / "first.gz")
    fail(system)
    export(system, tmp_path / "second.gz")
    import_into(other, tmp_path / "second.gz")
    import_into(other, tmp_path / "first.gz")
    assert counts(other) == counts(system)


def test_ordered_runs_run_in_their_order_there(system: System, other: System, tmp_path: Path) -> None:
    ids = [system.accept(data={"id": 7, "n": n}) for n in range(3)]
    for _ in ids:
        event = claim_one(system.inbox)
        (reply,) = system.inbox.route([(event, [ORDERED])], system.inbox.declarations().version)
        assert reply[0] == "routed"
    export(system, tmp_path / "all.gz")
    import_into(other, tmp_path / "all.gz")
    ran = []
    for _ in ids:
        (run,) = other.inbox.claim({"shop.sync": 1}, capacity=1).runs
        ran.append(run.event.id)
        other.inbox.finish([Outcome(run, "done", {})])
    assert ran == ids
    assert other.identity_holds()


def test_a_filter_leaves_out_other_events_and_what_is_no_event(system: System, other: System, tmp_path: Path) -> None:
    wanted = settle(system)
    settle(system, store="south"), settle(system, topic="product.updated")
    EffectStore(system.client, keep=3600, at_work=60).write("st:shop:north", "cursor", b"7")
    end = export(system, tmp_path / "some.gz", store="north", topic="order.*")
    assert end.events == 1
    import_into(other, tmp_path / "some.gz")
    assert [one.id for one in other.ledger.events()] == [wanted]
    assert other.client.keys("sh:st:*") == []
    assert counts(other)["total"]["accepted"] == 1


def test_data_that_accepted_these_events_itself_counts_them_once(system: System, tmp_path: Path) -> None:
    settle(system), system.accept()
    system.client.set(keys.DATA, "100")
    export(system, tmp_path / "all.gz")
    system.client.delete(*system.client.keys("sh:e:*"), *system.client.keys("sh:ix*"), keys.COUNTERS)
    accept_data(system.client)
    assert import_into(system, tmp_path / "all.gz")["new"] == 2
    assert counts(system)["total"]["accepted"] == 2
    assert system.identity_holds()


@pytest.mark.parametrize("cut", [1, 300])
def test_an_export_that_was_cut_off_goes_on(
    system: System, other: System, tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_file, "PART_BYTES", 500)
    ids = [settle(system) for _ in range(6)]
    path, whole = tmp_path / "cut.gz", tmp_path / "whole.gz"
    export(system, path)
    path.write_bytes(path.read_bytes()[: -cut * 3])
    with pytest.raises(ConfigError, match="not complete"):
        read_summary(path)
    later = settle(system)
    assert export(system, path).events == 6
    export(system, whole)
    assert [line["event"] for part in export_file.read_parts(path) for line in part.lines if "event" in line] == ids
    import_into(other, path)
    assert other.ledger.event(later) is None
    assert counts(other)["total"]["accepted"] == 6
    assert read_summary(whole)[1].events == 7


def test_a_complete_export_and_one_with_other_options_are_not_written_over(system: System, tmp_path: Path) -> None:
    path = tmp_path / "all.gz"
    settle(system)
    export(system, path)
    with pytest.raises(ConfigError, match="complete export"):
        export(system, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="other options"):
        export(system, path, store="north")


def test_other_files_and_newer_formats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match="no export"):
        read_summary(path)
    path.unlink()
    writer = export_file.ExportWriter(path, at=0)
    writer.add({export_file.MARK: export_file.VERSION + 1})
    writer.end_part()
    writer.close()
    with pytest.raises(ConfigError, match="update it"):
        read_summary(path)


def test_a_file_that_is_cut_or_changed_anywhere_gives_a_sentence(
    system: System, other: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_file, "PART_BYTES", 500)
    for _ in range(3):
        settle(system)
    path, damaged = tmp_path / "all.gz", tmp_path / "damaged.gz"
    export(system, path)
    whole = path.read_bytes()
    for length in range(1, len(whole), 7):
        damaged.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=r"is not complete|is cut off|is no export"):
            read_summary(damaged)
        damaged.write_bytes(whole[:length] + bytes([whole[length] ^ 0xFF]) + whole[length + 1 :])
        with suppress(ConfigError):  # some bytes of a member are in none of its lines
            assert read_summary(damaged)[1].events == 3
    for lines in (b"[]\n", b"\n", b"7\n", b"", b"{}\n", b"no JSON\n"):
        damaged.write_bytes(gzip.compress(lines))
        with pytest.raises(ConfigError, match="is no export"):
            read_summary(damaged)
    for line in (b'{"key":"st:shop:north"}\n', b'{"paused":7}\n', b"[]\n", b'{"counts":{"a":1}}\n', b"{}\n"):
        damaged.write_bytes(whole + gzip.compress(line) + gzip.compress(b'{"end":{"events":3,"open":0,"failed":0}}\n'))
        with pytest.raises(ConfigError, match="is damaged: line"):
            import_into(other, damaged)


def test_a_full_disk_gives_a_sentence_and_the_export_goes_on(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(system)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(ConfigError, match="No space left on device; the same command goes on"):
            export(system, tmp_path / "all.gz")
    assert export(system, tmp_path / "all.gz").events == 1


def test_bytes_that_are_no_text_come_back_as_they_were(system: System, other: System, tmp_path: Path) -> None:
    event_id = settle(system)
    content = b'{"x":"y"}\n\xff\x00\xfe not text'
    system.client.set(keys.BODY + event_id, content)
    export(system, tmp_path / "all.gz")
    import_into(other, tmp_path / "all.gz")
    assert other.client.get(keys.BODY + event_id) == content


def test_secrets_are_exported_only_with_a_passphrase(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path
) -> None:
    key = '[secrets]\nkey = "{}"\n'.format
    source, target = make_system(more=key("11" * 32)), make_system(url=own_redis.url, more=key("22" * 32))
    store = source.config.known_stores["north"]
    Keyring(source.client, tmp_path, "11" * 32).store([learned_secret(store, OTHER_SECRET, origin="created")])
    settle(source)
    path, word = str(tmp_path / "all.gz"), tmp_path / "passphrase"
    refused = source.run_cli("export", path, "--secrets")
    assert (refused.returncode, "needs a passphrase" in refused.stderr) == (2, True), refused.stderr
    word.write_text("correct horse battery\n")
    done = source.run_cli("export", path, "--secrets", "--passphrase-file", str(word))
    assert (done.returncode, "1 event (0 open, 0 failed), 1 secret" in done.stdout) == (0, True), done.stderr
    plain = b"".join(orjson.dumps(line) for part in export_file.read_parts(Path(path)) for line in part.lines)
    assert OTHER_SECRET.encode() not in plain
    asked = target.run_cli("import", path)
    assert (asked.returncode, "this would import 1 event; confirm it with --yes" in asked.stderr) == (2, True)
    assert target.client.zcard(keys.INDEX) == 0
    done = target.run_cli("import", path, "--secrets", "--passphrase-file", str(word), "--yes")
    assert (done.returncode, "events: 1 new" in done.stdout) == (0, True), done.stderr
    found = Keyring(target.client, tmp_path / "there", "22" * 32).secrets_of("north")
    assert [one.text for one in found] == [OTHER_SECRET]
    keyring = Keyring(target.client, tmp_path / "there", "22" * 32)
    keyring.store([replace(found[0], not_after=1.0)])
    again = target.run_cli("import", path, "--secrets", "--passphrase-file", str(word), "--yes")
    assert (again.returncode, "secrets: 0" in again.stdout) == (0, True), again.stderr
    assert [one.not_after for one in keyring.secrets_of("north")] == [1.0]
    keyring.remove("north", [found[0].fingerprint])
    target.run_cli("import", path, "--secrets", "--passphrase-file", str(word), "--yes")
    assert keyring.secrets_of("north") == []


def test_another_passphrase_opens_nothing() -> None:
    box = close_box([{"text": "secret"}], "correct horse battery")
    assert open_box(box, "correct horse battery") == [{"text": "secret"}]
    with pytest.raises(ConfigError, match="does not open"):
        open_box(box, "another passphrase")
