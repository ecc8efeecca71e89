"""Refused deliveries are stored, not accepted: bounded, fair, off the request path, and released once valid."""

from __future__ import annotations

import errno
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver import logs
from receiver.config.values import Bounds
from receiver.contract.compose import Request, compose
from receiver.contract.intake import receive
from receiver.contract.signing.presets import PRESETS
from receiver.contract.signing.signatures import Scheme
from receiver.contract.stored_headers import MAX_NAME, NOT_STORED, _is_credential, headers_of_refusal, stored_headers
from receiver.delivery import refusal_log
from receiver.delivery.refusal_log import RefusalBuffer, RefusalLog
from receiver.spool import REFUSED_FILE, Refusal, Refusals, database, open_refusals
from receiver.spool.database import WAL_BYTES
from receiver.spool.refused_deliveries import fair_level
from tests.support.harness import OTHER_SECRET, SECRET, System, eventually, own_server
from tests.support.logged_lines import capture_logs
from tests.support.raw_http import pipelined, request

PROXY_CREDENTIALS = (
    "x-api-key",
    "x-auth-token",
    "cf-access-client-secret",
    "x-amzn-oidc-accesstoken",
    "cf-access-jwt-assertion",
)

WINDOW = 1.0
WRONG = "not the secret that the store has"
RIGHT = "whsec_dGhlIHNlY3JldCB0aGF0IHRoZSBzdG9yZSBoYXM="


def disk(system: System) -> int:
    return sum(path.stat().st_size for path in (system.folder / "data").glob(f"{REFUSED_FILE}*"))


def refusals_of(system: System) -> Refusals:
    return open_refusals(system.folder / "data")


def as_the_store_signs(system: System, secret: str = RIGHT, store: str = "south") -> Callable[..., Request]:
    """Builds deliveries of a store whose secret is not the configured one."""
    known = system.config.known_stores[store]
    ours = replace(known.secrets[0], key=known.scheme.key_of(secret))
    theirs = replace(known, secrets=(ours,))

    def make(number: int, *, thin: bool = False, total: str = "1.00") -> Request:
        data = {"id": number} if thin else {"id": number, "total": total}
        return compose(theirs, topic="order.created", delivery_id=f"msg_{number}", data=data, now=time.time())

    return make


def correct(system: System, before: str = OTHER_SECRET, after: str = RIGHT) -> None:
    system.config_file.write_text(system.config_file.read_text().replace(before, after))


def raw(delivery: Request, store: str = "south") -> bytes:
    return request(f"/webhooks/{store}", delivery.headers.items(), delivery.body)


def forged(count: int, size: int, store: str = "north") -> Iterator[bytes]:
    """Deliveries with an invalid signature, each a little different."""
    for number in range(count):
        body = b'{"type":"order.created","data":{"id":%d,"pad":"%s"}}' % (number, b"x" * size)
        yield request(f"/webhooks/{store}", [("webhook-id", f"f{number}"), ("webhook-signature", "v1,AAAA")], body)


def bounded(system: System, refused: str) -> System:
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("threads = 4", f'threads = 4\nrefused = "{refused}"'))
    return system


MORE = f"""
[stores.thin]
scheme = "nuvemshop"
signing_secrets = ["{WRONG}"]
[stores.bare]
scheme = "salla"
signing_secrets = ["{WRONG}"]
"""
MISSING_STORE = f'''
[stores.west]
scheme = "shopify"
domain = "west.example"
signing_secrets = ["{RIGHT}"]
'''

TOKENED_STORE = f"""
[schemes.tokened]
extends = "hex-body"
headers = ["X-Store-Signature"]
[schemes.tokened.event]
topic = ["header:X-Topic"]
id = ["header:X-Delivery-Token", "json:id"]
[stores.tokened]
scheme = "tokened"
signing_secrets = ["{RIGHT}"]
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One receiver with a wrong config; `release` corrects it on disk, only for its own command."""
    with own_server(tmp_path_factory.mktemp("server")) as server:
        system = System(tmp_path_factory.mktemp("system"), server.url, more=MORE)
        text = system.config_file.read_text()
        window = f"threads = 4\ndedupe_window_unidentified = {WINDOW}"
        system.config_file.write_text(text.replace("threads = 4", window))
        system.start("web")
        yield system
        system.close()


def release(system: System, *arguments: str, more: str = "") -> dict[str, Any]:
    """`refused release` under a corrected config."""
    wrong = system.config_file.read_text()
    correct(system)
    system.config_file.write_text(system.config_file.read_text().replace(WRONG, RIGHT) + more)
    done = system.run_cli("refused", "release", "--json", *arguments, "--yes")
    system.config_file.write_text(wrong)
    assert done.stdout, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def refuse(system: System, delivery: Request, store: str = "south", count: int = 1) -> Refusal:
    """Send a delivery, expect 401, and return what is stored of it; waits until its store has `count` refusals."""
    last = max([one.id for one in refusals_of(system).newest()], default=0)
    assert system.post(delivery, store).status_code == 401
    eventually(lambda: refusals_of(system).newest(limit=1) and refusals_of(system).newest(limit=1)[0].id > last)
    eventually(lambda: len(refusals_of(system).newest(store=store)) >= count)
    found = refusals_of(system).get(refusals_of(system).newest(limit=1)[0].id)
    assert found
    return found


# One refusal


def test_a_refusal_is_stored_with_its_body(shared: System) -> None:
    delivery, before = as_the_store_signs(shared)(1), time.time()
    number = refuse(shared, delivery).id
    line = json.loads(shared.run_cli("refused", "list", "--json").stdout)[0]
    assert before - 0.01 <= datetime.fromisoformat(line.pop("at")).timestamp() <= time.time()
    assert line == {
        "id": number,
        "store": "south",
        "reason": "signature-mismatch",
        "status": 401,
        "length": len(delivery.body),
        "hash": hashlib.sha256(delivery.body).hexdigest()[:16],
        "address": "127.0.0.1",
        "has_body": True,
    }
    shown = json.loads(shared.run_cli("refused", "show", "last", "--json").stdout)
    assert shown["body"].encode() == delivery.body
    assert shown["headers"]["webhook-id"] == "msg_1"
    assert (shared.folder / "data" / REFUSED_FILE).stat().st_mode & 0o077 == 0
    assert shared.ledger.events() == []
    assert " with 401, from 127.0.0.1" in shared.run_cli("refused", "show", "last").stdout


def test_the_raw_output_can_be_verified(shared: System) -> None:
    number = refuse(shared, as_the_store_signs(shared)(1)).id
    (shared.folder / "request").write_text(shared.run_cli("refused", "show", str(number), "--raw").stdout)
    done = shared.run_cli("verify", "--store", "south", "--request", str(shared.folder / "request"))
    assert done.returncode == 1
    assert "NOT VALID  signature-mismatch" in done.stdout


def test_credentials_are_never_stored(shared: System) -> None:
    delivery = as_the_store_signs(shared)(1)
    added = {"authorization": "Bearer x", "cookie": "session=y", **dict.fromkeys(PROXY_CREDENTIALS, "s3cret")}
    stored = refuse(shared, Request({**delivery.headers, **added}, delivery.body)).headers
    assert {name: stored[name] for name in added} == dict.fromkeys(added, NOT_STORED)
    assert {name: stored[name] for name in delivery.headers} == dict(delivery.headers)


def test_an_event_has_every_header_its_scheme_reads_and_no_credential_of_a_proxy(shared: System) -> None:
    request = shared.request()
    store = shared.config.known_stores["north"]
    headers = {**request.headers, **dict.fromkeys(PROXY_CREDENTIALS, "s3cret")}
    stored = receive(headers, request.body, store=store, now=time.time()).event.headers
    assert dict(stored) == dict(request.headers)
    odd = replace(store.scheme, headers=("X-Store-Token",))
    assert stored_headers({"x-store-token": "v1,abc", "x-auth-token": "s"}, odd.reads) == {"x-store-token": "v1,abc"}


@pytest.mark.parametrize(
    "name",
    [
        *("set-cookie", "cookie2", "x-original-cookie", "x-bearer", "x-amzn-oidc-data", "x-ms-client-principal"),
        *("x-client-cert", "ssl-client-certificate", "key", "x-functions-key", "ocp-apim-subscription-key", "api_key"),
        *("x-hub-signature-token", "x-password-sha1", "x-session-digest", "x-signature-secret"),
        *("x-passphrase", "ok-access-passphrase", "x-pwd", "x-user-pass", "x-otp", "x-wsse", "phpsessid"),
    ],
)
def test_a_header_that_may_hold_a_credential_is_stored_only_if_the_scheme_reads_it(name: str) -> None:
    assert stored_headers({name: "s3cret", "host": "h"}) == {"host": "h"}
    assert stored_headers({name: "s3cret"}, {name}) == {name: "s3cret"}


@pytest.mark.parametrize(
    "name",
    [
        *("x-auth-signature", "idempotency-key", "x-idempotency-key", "x-keyword", "x-monkey"),
        *("x-event-key", "x-webhook-key", "x-topic-key", "x_event_key", "delivery-key", "x-message-key"),
    ],
)
def test_a_header_that_is_no_credential_is_stored(name: str) -> None:
    assert stored_headers({name: "1"}) == {name: "1"}


def test_of_too_many_headers_those_that_the_scheme_reads_are_stored() -> None:
    headers = {**{f"x-{number}": "1" for number in range(100)}, "x-topic": "order.paid"}
    stored = stored_headers(headers, {"x-topic"})
    assert (len(stored), stored["x-topic"]) == (64, "order.paid")


def test_long_names_of_headers_are_neither_searched_nor_kept_in_memory() -> None:
    """A sender chooses the names; 8 kB take milliseconds to search, and would stay for the life of the process."""
    before = _is_credential.cache_info().misses
    names = [f"x-{number}-{'n' * 7900}" for number in range(8)]
    assert headers_of_refusal(dict.fromkeys(names, "1")) == dict.fromkeys(names, NOT_STORED)
    assert stored_headers({names[0]: "1"}, {names[0]}) == {names[0]: "1"}, "the scheme reads it"
    assert _is_credential.cache_info().misses == before
    assert stored_headers({"x" * MAX_NAME: "1"}) == {"x" * MAX_NAME: "1"}


@pytest.mark.parametrize("scheme", PRESETS.values(), ids=lambda scheme: scheme.name)
def test_the_signature_headers_of_every_preset_are_stored_for_an_unknown_store(scheme: Scheme) -> None:
    """It may be released later, under its real scheme."""
    assert set(stored_headers(dict.fromkeys(scheme.header_names, "x"))) == set(scheme.header_names) - {"authorization"}


def test_a_locked_file_delays_no_answer(shared: System) -> None:
    make = as_the_store_signs(shared)
    before = refusals_of(shared).count()
    refuse(shared, make(0))
    lock = sqlite3.connect(shared.folder / "data" / REFUSED_FILE, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    begun = time.monotonic()
    answers = {shared.post(make(number), "south").status_code for number in range(1, 40)}
    took = time.monotonic() - begun
    lock.execute("ROLLBACK")
    assert answers == {401}
    assert took < 5.0, "it waits for no lock"
    assert eventually(lambda: refusals_of(shared).count() == before + 40)


def test_the_file_is_created_with_the_first_refusal_and_closed_at_the_end(system: System) -> None:
    system.start("web")
    assert system.post(system.request()).status_code == 200
    assert list((system.folder / "data").glob("refused*")) == []
    assert system.post(as_the_store_signs(system)(1), "south").status_code == 401
    system.processes[0].stop()
    assert [path.name for path in (system.folder / "data").glob("refused*")] == [REFUSED_FILE]
    assert refusals_of(system).count() == 1


def test_nothing_is_stored_when_it_is_off_and_the_command_says_so(make_system: Callable[..., System]) -> None:
    system = bounded(make_system(), "off")
    system.start("web")
    assert system.post(as_the_store_signs(system)(1), "south").status_code == 401
    eventually(lambda: system.ledger.counters().total["refused"] == 1)
    assert not (system.folder / "data" / REFUSED_FILE).exists()
    assert '[receiver] refused = "off"' in system.run_cli("refused").stdout
    assert not (system.folder / "data" / REFUSED_FILE).exists()  # the command creates no file


def test_a_file_that_cannot_be_written_is_logged_once_and_delays_no_answer(make_system: Callable[..., System]) -> None:
    system = make_system()
    (system.folder / "data" / REFUSED_FILE).mkdir()  # in the way
    system.start("web", quicker={"receiver.delivery.refusal_log.REPORT_EVERY": 0.5})
    for number in range(5):
        assert system.post(as_the_store_signs(system)(number), "south").status_code == 401
    eventually(lambda: "cannot be written" in system.log("web"))
    assert system.log("web").count("cannot be written") == 1
    (system.folder / "data" / REFUSED_FILE).rmdir()
    eventually(lambda: (system.folder / "data" / REFUSED_FILE).exists() and refusals_of(system).count() == 5)


def test_the_log_counts_all_bodies_that_are_lost_since_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / REFUSED_FILE).mkdir()  # in the way
    writing = RefusalLog(tmp_path, None)
    with capture_logs() as lines:
        for number, seconds in ((1, 0), (3, 1), (2, 60)):
            now = time.monotonic() + seconds
            monkeypatch.setattr(logs.time, "monotonic", lambda now=now: now)
            for _ in range(number):
                writing._buffer.add(refusal(1.0))
            writing.flush()
    assert [one["lost"] for one in lines] == [1, 5]


# Release


def test_no_delivery_is_lost_by_a_wrong_secret_once_it_is_corrected(make_system: Callable[..., System]) -> None:
    """The quick form: a tight bound; every genuine delivery is released with its own time of arrival."""
    system = bounded(make_system(), "48h, 1MB")
    system.start("web")
    wrong_secret_then_release(system, genuine=150, forgeries=2_000, size=600)
    assert refusals_of(system).count_with_body() < 1_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_genuine_deliveries_survive_a_hundred_thousand_forged_ones(system: System) -> None:
    system.start("web")
    begun = time.monotonic()
    wrong_secret_then_release(system, genuine=1_000, forgeries=100_000, size=1_000)
    left = refusals_of(system)
    print(f"left: {left.count():,} lines, {left.count_with_body():,} of them with their body")
    print(f"in {time.monotonic() - begun:.0f} s")


def wrong_secret_then_release(system: System, *, genuine: int, forgeries: int, size: int) -> None:
    """South signs with a secret that is not configured, during a flood of forged deliveries for two other stores."""
    make = as_the_store_signs(system)
    answered: list[int] = []
    sizes = [0]

    def forge(store: str, count: int) -> None:
        answered.append(pipelined(system.port, watched(forged(count, size, store)))[401])

    def watched(requests: Iterator[bytes]) -> Iterator[bytes]:
        for number, one in enumerate(requests):
            yield one
            if number % 500 == 0:
                sizes.append(disk(system))

    half = forgeries // 2
    forgers = [threading.Thread(target=forge, args=(store, half)) for store in ("north", "unknown")]
    for forger in forgers:
        forger.start()
    arrivals: dict[str, float] = {}
    for number in range(genuine):
        assert system.post(make(number), "south").status_code == 401
        arrivals[f"msg_{number}"] = time.time()
    for forger in forgers:
        forger.join()
    assert sum(answered) == forgeries
    eventually(lambda: len(refusals_of(system).newest(store="south", limit=genuine + 1)) == genuine, within=20)
    sizes.append(disk(system))

    correct(system)
    done = system.run_cli("refused", "release", "--store", "south", "--json", "--yes")
    assert json.loads(done.stdout) == {"accepted": genuine, "duplicates": 0, "full": 0, "still_refused": {}}
    assert done.returncode == 0
    events = system.ledger.events(store="south", limit=genuine + 1)
    assert len(events) == system.ledger.counters().stores["south"]["accepted"] == genuine
    for event in events:
        assert abs(event.received_at.timestamp() - arrivals[event.delivery_id]) < 1.0
        assert event.source == "released"
    print(f"{forgeries:,} forged, {genuine:,} genuine: {max(sizes) / 2**20:.1f} MB on disk, accepted {len(events):,}")
    assert max(sizes) <= system.config.receiver.refused.max_bytes + 2 * WAL_BYTES
    again = system.run_cli("refused", "release", "--store", "south", "--yes")
    assert (again.returncode, "no refused deliveries" in again.stdout) == (0, True)


def test_an_interrupted_release_accepts_nothing_twice(shared: System) -> None:
    """Restoring the file simulates a kill between accepting and deleting."""
    make = as_the_store_signs(shared, store="thin")
    for _ in range(3):
        refuse(shared, make(7, thin=True), "thin")
    before = sqlite3.connect(":memory:")
    with sqlite3.connect(shared.folder / "data" / REFUSED_FILE) as file:
        file.backup(before)
    first = release(shared, "--store", "thin")
    with sqlite3.connect(shared.folder / "data" / REFUSED_FILE) as file:
        before.backup(file)
    second = release(shared, "--store", "thin")
    assert (first["accepted"], first["duplicates"]) == (3, 0)
    assert (second["accepted"], second["duplicates"]) == (0, 3)
    assert len(shared.ledger.events(store="thin")) == 3


def test_repeats_without_an_id_are_recognised_by_their_time_of_arrival(shared: System) -> None:
    delivery = as_the_store_signs(shared, store="bare")(1)
    first = time.monotonic()
    assert {shared.post(delivery, "bare").status_code for _ in range(2)} == {401}
    eventually(lambda: time.monotonic() > first + 1.2 * WINDOW)
    refuse(shared, delivery, "bare", 3)
    result = release(shared, "--store", "bare")
    assert (result["accepted"], result["duplicates"]) == (2, 1)


def test_a_state_that_returns_is_released_as_an_event(shared: System) -> None:
    """As on arrival. The last of them was a duplicate of the first, and removed."""
    make = as_the_store_signs(shared, store="thin")
    first, second = make(8), make(8, total="2.00")
    assert {shared.post(one, "thin").status_code for one in (first, second, first)} == {401}
    eventually(lambda: len(refusals_of(shared).newest(store="thin")) == 3)
    result = release(shared, "--store", "thin")
    assert (result["accepted"], result["duplicates"]) == (3, 0)


def hours_ago(system: System, *numbers: int) -> None:
    """As if these were refused in a row, within a window, before the host was booted: the inbox knows none of them."""
    with sqlite3.connect(system.folder / "data" / REFUSED_FILE) as file:
        for place, number in enumerate(numbers):
            at = int((time.time() - 7200 + place * WINDOW / 10) * 1000)
            values = (at, 100 * place, number)
            file.execute("UPDATE refused SET at = ?, uptime = ?, boot = 'an earlier one' WHERE id = ?", values)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)], ids=str)
def test_repeats_that_are_released_by_several_commands_are_one_event(shared: System, order: tuple[int, ...]) -> None:
    """Each command began without knowing what was released before it, and accepted them again."""
    delivery = as_the_store_signs(shared, store="bare")(100 + order[0])
    numbers = [refuse(shared, delivery, "bare").id for _ in order]
    hours_ago(shared, *numbers)
    results = [release(shared, str(numbers[place])) for place in order]
    assert [(one["accepted"], one["duplicates"]) for one in results] == [(1, 0), (0, 1), (0, 1)]


@pytest.mark.parametrize(
    "commands", [("12", "3"), ("1", "23"), ("1", "3", "2"), ("3", "12"), ("13", "2"), ("2", "1", "3")], ids=str
)
def test_a_state_that_returns_is_an_event_whichever_command_releases_it(
    shared: System, commands: tuple[str, ...]
) -> None:
    """A lost update is worse than a repeat."""
    make, number = as_the_store_signs(shared, store="thin"), 200 + int("".join(commands)) + len(commands[0])
    first, second = make(number), make(number, total="2.00")
    numbers = [refuse(shared, one, "thin").id for one in (first, second, first)]
    hours_ago(shared, *numbers)
    results = [release(shared, *(str(numbers[int(place) - 1]) for place in one)) for one in commands]
    assert (sum(one["accepted"] for one in results), sum(one["duplicates"] for one in results)) == (3, 0)
    assert not set(numbers) & {one.id for one in refusals_of(shared).newest()}


def test_a_release_that_is_killed_before_it_removes_what_it_accepted_gives_the_same_ids_again(
    make_system: Callable[..., System],
) -> None:
    system = make_system(more=MORE)
    system.start("web")
    delivery = as_the_store_signs(system, store="bare")(1)
    numbers = [refuse(system, delivery, "bare").id for _ in range(3)]
    hours_ago(system, *numbers)
    correct(system, WRONG, RIGHT)
    assert system.run_cli("refused", "release", str(numbers[0]), "--yes").returncode == 0
    (event,) = system.ledger.events(store="bare")
    with closing(sqlite3.connect(system.config.data_dir / REFUSED_FILE, isolation_level=None)) as writing:
        writing.execute("BEGIN IMMEDIATE")  # so that it cannot remove them
        killed = system.start_cli("refused", "release", str(numbers[1]), "--yes")
        eventually(lambda: system.ledger.counters().stores["bare"]["duplicates"] == 1, what="the repeat is judged")
        killed.kill()
        writing.execute("ROLLBACK")
    assert [one.id for one in refusals_of(system).newest()] == numbers[:0:-1]
    result = json.loads(system.run_cli("refused", "release", "--json", "--yes").stdout)
    assert (result["accepted"], result["duplicates"]) == (0, 2)
    assert [one.id for one in system.ledger.events(store="bare")] == [event.id]


def test_what_is_known_of_released_deliveries_is_hashes_and_ids_and_a_dry_run_writes_none(shared: System) -> None:
    delivery = as_the_store_signs(shared, store="bare")(300, total="a secret name")
    number = refuse(shared, delivery, "bare").id
    known = kept(shared)
    assert release(shared, str(number), "--dry-run")["accepted"] == 1
    assert kept(shared) == known
    assert release(shared, str(number))["accepted"] == 1
    (new,) = kept(shared) - known
    event = shared.ledger.events(store="bare", limit=1)[0]
    assert event.id in new
    assert not any("secret" in str(one) or one == event.resource_id for one in new)


def kept(system: System) -> set[tuple[Any, ...]]:
    with sqlite3.connect(system.folder / "data" / REFUSED_FILE) as file:
        exists = file.execute("SELECT 1 FROM sqlite_master WHERE name = 'released'").fetchone()
        return {*file.execute("SELECT * FROM released")} if exists else set()


def test_a_delivery_after_the_clock_was_set_back_is_no_repeat(shared: System) -> None:
    delivery = as_the_store_signs(shared, store="bare")(2)
    refuse(shared, delivery, "bare")
    later = refuse(shared, delivery, "bare")
    with sqlite3.connect(shared.folder / "data" / REFUSED_FILE) as file:
        file.execute("UPDATE refused SET at = at - 3600000 WHERE id = ?", (later.id,))
    result = release(shared, "--store", "bare")
    assert (result["accepted"], result["duplicates"]) == (2, 0)


def test_an_equal_body_an_hour_later_is_no_repeat_although_the_clock_was_set_back_by_that_hour(shared: System) -> None:
    """Only this host's clock was compared, and the later update was lost."""
    delivery = as_the_store_signs(shared, store="bare")(3)
    refuse(shared, delivery, "bare")
    later = refuse(shared, delivery, "bare")
    with sqlite3.connect(shared.folder / "data" / REFUSED_FILE) as file:
        file.execute("UPDATE refused SET uptime = uptime + 3600000 WHERE id = ?", (later.id,))
    result = release(shared, "--store", "bare")
    assert (result["accepted"], result["duplicates"]) == (2, 0)


@pytest.mark.parametrize("booted", [False, True])
def test_a_delivery_without_an_id_that_is_released_and_sent_again_is_one_event(
    make_system: Callable[..., System], booted: bool
) -> None:
    """In either order it was two. After a boot it cannot be judged when it arrived, and an update must not be lost."""
    system = make_system(more=MORE)
    system.start("web")
    make = as_the_store_signs(system, store="bare")
    before, after = make(1), make(2)
    refuse(system, before, "bare")
    refuse(system, after, "bare")
    if booted:
        with sqlite3.connect(system.folder / "data" / REFUSED_FILE) as file:
            file.execute("UPDATE refused SET boot = 'an earlier one'")
    correct(system, WRONG, RIGHT)
    system.processes[0].stop()
    system.start("web")
    assert system.post(before, "bare").status_code == 200
    result = json.loads(system.run_cli("refused", "release", "--json", "--yes").stdout)
    assert system.post(after, "bare").status_code == 200
    assert (result["accepted"], result["duplicates"]) == ((2, 0) if booted else (1, 1))
    assert len(system.ledger.events(store="bare")) == (4 if booted else 2)


@pytest.mark.parametrize(
    "damage",
    [
        "refused SET at = 'x'",
        "refused SET at = 1e300",
        "refused SET store = x'ff'",
        "refused SET reason = CAST(x'ff' AS TEXT)",
        "refused_body SET headers = x'7b'",
        "refused_body SET headers = '{\"a\": 1}'",
        "refused_body SET body = 7",
    ],
)
def test_a_damaged_row_is_left_out_with_a_warning_and_the_others_are_released(system: System, damage: str) -> None:
    """Commands ended with a traceback."""
    requests = [as_the_store_signs(system)(number) for number in range(3)]
    refusals, bounds = open_refusals(system.config.data_dir), Bounds(3600, 4 << 20)
    at = time.time()
    refusals.add(
        [
            Refusal(at, "south", "south", "signature-mismatch", len(one.body), "h", "127.0.0.1", one.headers, one.body)
            for one in requests
        ],
        bounds=bounds,
        now=at,
    )
    with sqlite3.connect(system.folder / "data" / REFUSED_FILE) as file:
        file.execute(f"UPDATE {damage} WHERE id = 2")
    for command in (["refused"], ["refused", "show", "2"], ["verify", "--refused", "2"], ["doctor", "--json"]):
        done = system.run_cli(*command)
        assert "Traceback" not in done.stderr, (command, done.stderr)
    if damage.startswith("refused SET") and "TEXT" not in damage:
        said = system.run_cli("refused").stderr
        assert "left out: 1 damaged row of refused.sqlite3" in said
    assert release(system)["accepted"] == (3 if "TEXT" in damage else 2)


def test_a_release_does_not_move_the_last_time_of_a_topic_back(shared: System) -> None:
    number = refuse(shared, as_the_store_signs(shared)(4711)).id
    refused = time.time()
    eventually(lambda: time.time() > refused + 0.1)  # the last time may go back by less than this
    began = time.time()
    shared.deliver(store="south")
    assert release(shared, str(number))["accepted"] == 1
    (topic,) = json.loads(shared.run_cli("topics", "--store", "south", "--json").stdout)
    assert datetime.fromisoformat(topic["last_at"]).timestamp() >= began - 0.01


def test_deliveries_of_a_missing_store_are_released_once_it_is_configured(shared: System) -> None:
    wrong = shared.config_file.read_text()
    shared.config_file.write_text(wrong + MISSING_STORE)
    own, common = (shared.request(store="west", delivery_id=name) for name in ("own", "all"))
    shared.config_file.write_text(wrong)
    number = refuse(shared, own, "west").id
    assert shared.http.post("/webhooks", headers=common.headers, content=common.body).status_code == 401
    eventually(lambda: refusals_of(shared).newest(limit=1)[0].id == number + 1)
    still = shared.run_cli("refused", "release", str(number), str(number + 1), "--yes")
    assert (still.returncode, "2 deliveries still refused: unknown-store" in still.stdout) == (1, True)
    assert release(shared, "--store", "west", "--dry-run", more=MISSING_STORE)["accepted"] == 2
    assert release(shared, str(number), more=MISSING_STORE)["accepted"] == 1
    assert release(shared, "--store", "west", more=MISSING_STORE)["accepted"] == 1
    assert {event.delivery_id for event in shared.ledger.events(store="west")} == {"own", "all"}


def test_a_delivery_is_not_released_without_a_header_that_its_scheme_reads_and_that_was_not_stored(
    shared: System,
) -> None:
    """It was accepted without its id, and its refusal deleted. A header that was sent empty is stored."""
    wrong = shared.config_file.read_text()
    shared.config_file.write_text(wrong + TOKENED_STORE)
    sent = shared.request(store="tokened", delivery_id="d1")
    shared.config_file.write_text(wrong)
    assert sent.headers["x-delivery-token"] == "d1"
    number = refuse(shared, sent, "tokened").id
    empty = refuse(shared, Request({**sent.headers, "x-delivery-token": ""}, sent.body), "tokened").id
    assert f"{NOT_STORED}\n" in shared.run_cli("refused", "show", str(number)).stdout
    assert "not stored" not in shared.run_cli("refused", "show", str(empty)).stdout
    result = release(shared, "--store", "tokened", more=TOKENED_STORE)
    assert (result["accepted"], result["still_refused"]) == (1, {"incomplete": 1})
    assert [one.id for one in refusals_of(shared).newest(store="tokened")] == [number]
    shared.config_file.write_text(wrong + TOKENED_STORE)
    shown = " ".join(shared.run_cli("verify", "--refused", str(number)).stdout.split())
    shared.config_file.write_text(wrong)
    assert "NOT VALID incomplete: the scheme reads x-delivery-token, whose value was not stored" in shown
    assert "have the store send it again" in shown
    assert "1 refused of tokened; 0 valid with the current config." in shown


# Bounds


@given(sizes=st.lists(st.integers(0, 10**7), max_size=30), limit=st.integers(0, 10**8))
def test_the_fair_level_is_within_the_limit_and_cuts_no_small_store(sizes: list[int], limit: int) -> None:
    level = fair_level(sizes, limit)
    assert sum(min(size, level) for size in sizes) <= max(limit, sum(sizes) if sum(sizes) <= limit else limit)
    if sum(sizes) <= limit:
        assert level >= max(sizes, default=0)
    elif sizes:
        assert level >= limit // len(sizes)


def refusal(at: float, store: str = "north", size: int = 1000) -> Refusal:
    return Refusal(at, store, store, "no-signature", size, "0" * 16, "192.0.2.1", {"a": "b"}, b"x" * size)


def test_refusals_that_could_not_be_written_are_counted_later_and_not_said_to_be_stored(tmp_path: Path) -> None:
    """On a full disk they were in no figure, and doctor said that all were stored."""
    in_the_way = tmp_path / REFUSED_FILE
    in_the_way.mkdir()
    writer, now = RefusalLog(tmp_path, Bounds(3600, 1 << 20)), time.time()
    for number in range(3):
        writer.add(refusal(now + number / 1000))
        writer.flush()
    in_the_way.rmdir()
    writer.add(refusal(now + 1))
    writer.close()
    (of,) = open_refusals(tmp_path).by_store()
    assert (of.total, of.with_body) == (4, 1)


def test_unexpected_errors_do_not_end_the_thread_that_stores_refused_deliveries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one, no refused delivery of the process was stored any more, and nothing said so."""
    exists, failed, reported = Path.exists, [], []

    def exists_later(path: Path) -> bool:
        if path.name == REFUSED_FILE and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error")
        return exists(path)

    def report(stores: Any) -> None:
        reported.append([one.total for one in stores])
        if len(reported) == 1:
            raise OSError(errno.EMFILE, "Too many open files")

    for name in ("WRITE_EVERY", "REPORT_EVERY"):
        monkeypatch.setattr(refusal_log, name, 0.01)
    monkeypatch.setattr(Path, "exists", exists_later)
    with capture_logs() as lines:
        writer = RefusalLog(tmp_path, Bounds(3600, 1 << 20), report)
        eventually(lambda: failed, what="the disk fails")
        writer.add(refusal(time.time()))
        eventually(lambda: reported == [[1], [1]], what="it is stored, and the report is tried again")
        writer.add(refusal(time.time()))
        eventually(lambda: reported[2:] == [[2]], what="so is the next one")
    writer.close()
    said = [(line["event"], line["why"]) for line in lines]
    assert said == [("the number of refused deliveries cannot be reported", "[Errno 24] Too many open files")]


def test_a_buffer_full_of_lines_that_could_not_be_written_takes_new_refusals() -> None:
    """It raised, so that a refused delivery got no answer."""
    buffer = RefusalBuffer(max_lines=3)
    buffer.add_lines([refusal(number) for number in range(5)])
    buffer.add(refusal(9))
    assert [(one.at, one.has_body) for one in buffer.all()] == [(3, False), (4, False), (9, True)]


def test_refusals_whose_log_cannot_be_emptied_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(database, "truncate_wal", fails)
    writer = RefusalLog(tmp_path, Bounds(3600, 1 << 20))
    for _ in range(3):
        writer.add(refusal(time.time()))
        writer.flush()
    writer.close()
    (of,) = open_refusals(tmp_path).by_store()
    assert (of.total, of.with_body) == (3, 3)


@given(stores=st.lists(st.sampled_from("aaaaaaaaab"), max_size=400))
def test_the_buffer_is_bounded_and_small_stores_keep_their_bodies(stores: list[str]) -> None:
    buffer = RefusalBuffer(max_bytes=50_000, max_lines=60)
    for number, store in enumerate(stores):
        buffer.add(refusal(float(number), store))
    every = buffer.all()
    assert len(every) == buffer.count <= 60
    assert sum(one.cost for one in every) <= 50_000
    if stores.count("b") <= 15:
        assert sum(one.store == "b" and one.has_body for one in every) == stores.count("b")


def test_old_refusals_are_deleted_and_bodies_before_lines(tmp_path: Path) -> None:
    refusals, bounds = open_refusals(tmp_path), Bounds(3600, 4 << 20)
    refusals.add((refusal(float(at), size=20_000) for at in range(400)), bounds=bounds, now=400.0)
    assert refusals.count() == 400
    assert 100 < refusals.count_with_body() < 200
    assert [one.has_body for one in refusals.newest(limit=400)] == sorted(
        (one.has_body for one in refusals.newest(limit=400)), reverse=True
    )
    refusals.add([], bounds=bounds, now=3600.0 + 250)
    assert refusals.count() == 150
    refusals.add([], bounds=bounds, now=1e6)
    assert (refusals.count(), refusals.count_with_body()) == (0, 0)


def test_refusals_are_released_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    """Two web processes write what they refused one after the other, each its own."""
    refusals = open_refusals(tmp_path)
    now = time.time()
    for arrived in ((3, 1, 5), (4, 2, 6)):
        refusals.add([refusal(now + seconds) for seconds in arrived], bounds=Bounds(3600, 1 << 20), now=now)
    found = [one.at - now for batch in refusals.with_body(batch=2) for one in batch]
    assert found == pytest.approx([1, 2, 3, 4, 5, 6], abs=0.01)


def test_a_flood_of_one_store_deletes_nothing_of_another(tmp_path: Path) -> None:
    refusals, bounds = open_refusals(tmp_path), Bounds(1e9, 2 << 20)
    refusals.add((refusal(float(at), "small") for at in range(100)), bounds=bounds, now=1.0)
    for part in range(20):
        flood = (refusal(part * 1000.0 + at, "flooding", 600) for at in range(1_000))
        refusals.add(flood, bounds=bounds, now=1.0)
    assert len([one for one in refusals.newest(store="small", limit=200) if one.has_body]) == 100
    size = sum(path.stat().st_size for path in tmp_path.glob(f"{REFUSED_FILE}*"))
    assert size < (2 << 20) + 2 * WAL_BYTES


def test_a_release_keeps_to_the_number_of_open_events_of_a_store(system: System) -> None:
    system.start("web")
    for number in range(3):
        assert system.post(system.request(store="north", data={"id": number}), "south").status_code == 401
    eventually(lambda: refusals_of(system).count() == 3)
    correct(system, after=SECRET)
    text = system.config_file.read_text().replace("[stores.south]\n", "[stores.south]\nmax_stored = 1\n")
    system.config_file.write_text(text)
    done = json.loads(system.run_cli("refused", "release", "--store", "south", "--json", "--yes").stdout)
    assert (done["accepted"], done["full"], refusals_of(system).count()) == (1, 2, 2)


def test_a_damaged_file_is_set_aside_and_the_next_refusals_are_stored(system: System) -> None:
    file = system.config.data_dir / REFUSED_FILE
    file.write_bytes(b"not a database" * 1000)
    said = system.run_cli("doctor", "--json").stdout
    assert "refused deliveries cannot be read" in said
    assert "a file of the spool" not in said
    system.start("web")
    assert system.post(system.request(store="north"), "south").status_code == 401
    eventually(lambda: refusals_of(system).count() == 1)
    assert Path(f"{file}-damaged").exists()
    assert system.log("web").count("the file of refused deliveries was damaged") == 1
    assert "cannot be written" not in system.log("web")


def test_a_refused_delivery_is_recorded_with_the_address_that_a_trusted_proxy_names(system: System) -> None:
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("threads = 4", 'threads = 4\ntrusted_proxies = ["127.0.0.1"]'))
    system.start("web")
    forged = {"webhook-id": "msg_1", "webhook-signature": "v1,AAAA", "x-forwarded-for": "203.0.113.66, 192.0.2.7"}
    assert system.http.post("/webhooks/north", headers=forged, content=b"{}").status_code == 401
    (refusal,) = eventually(lambda: system.refusals().newest(), what="the refusal is stored")
    assert refusal.address == "192.0.2.7"
