"""Receivers learn new secrets without a restart, and answer 503 instead of 401 while they may lack one."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from receiver import config as receiver_config
from receiver.contract.compose import Request, compose
from receiver.delivery import secret_cache
from receiver.delivery.secret_cache import CONFIRM_EVERY, SecretCache
from receiver.inbox import connect, keys
from receiver.inbox.keyring.change_marks import mark_for
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.learned_secrets import learned_secret
from receiver.inbox.keyring.receiver_versions import LIVE_SECONDS
from tests.receiver.inbox.keyring.test_keyring import KEY, NEW
from tests.support.harness import SECRET, Server, System, eventually, own_server
from tests.support.programs import OFTEN

SEALED = f'[secrets]\nkey = "{KEY}"\n'


def keyring_of(system: System) -> Keyring:
    return Keyring(system.client, system.config.data_dir, KEY)


def cache_of(system: System) -> SecretCache:
    return SecretCache(system.config, system.client)


def known(system: System, cache: SecretCache) -> list[bytes]:
    store = cache.with_current_secrets(system.config.known_stores["north"])
    return [secret.key for secret in store.secrets]


@pytest.fixture
def sealed_system(make_system: Callable[..., System]) -> System:
    return make_system(more=SEALED)


def test_a_learned_secret_is_known_and_confirmed_after_a_refresh(sealed_system: System) -> None:
    cache, keyring = cache_of(sealed_system), keyring_of(sealed_system)
    cache.refresh()
    assert known(sealed_system, cache) == [b"test secret of one store"]
    version = keyring.store([learned_secret(sealed_system.config.known_stores["north"], NEW, origin="created")])
    assert len(keyring.receivers.behind(version)) == 1
    cache.refresh()
    assert keyring.receivers.behind(version) == []
    assert known(sealed_system, cache) == [b"new secret of the store", b"test secret of one store"]
    assert not cache.may_be_incomplete


def test_a_refresh_without_changes_costs_one_call(sealed_system: System) -> None:
    cache = cache_of(sealed_system)
    cache.refresh()
    before = sealed_system.client.info("commandstats").get("cmdstat_get", {"calls": 0})["calls"]
    others = sealed_system.client.info("stats")["total_commands_processed"]
    for _ in range(20):
        cache.refresh()
    after = sealed_system.client.info("commandstats")["cmdstat_get"]["calls"]
    assert after - before == 20
    assert sealed_system.client.info("stats")["total_commands_processed"] - others <= 26  # and one confirmation


def test_an_announced_change_makes_the_cache_incomplete_for_five_minutes_at_most(
    sealed_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, keyring = cache_of(sealed_system), keyring_of(sealed_system)
    cache.refresh()
    keyring.announce_change("north")
    cache.refresh()
    assert cache.may_be_incomplete
    now = time.monotonic()
    for seconds in range(4, 300, 5):  # refreshed in time: a stale cache would be incomplete as well
        monkeypatch.setattr(secret_cache.time, "monotonic", lambda: now + seconds)  # noqa: B023  asked at once
        cache.refresh()
        assert cache.may_be_incomplete
    monkeypatch.setattr(secret_cache.time, "monotonic", lambda: now + 301)
    cache.refresh()
    assert not cache.may_be_incomplete
    keyring.announce_change("north")  # another one
    cache.refresh()
    assert cache.may_be_incomplete


def test_a_secret_that_a_second_change_could_not_replace_is_not_waited_for(sealed_system: System) -> None:
    cache, keyring = cache_of(sealed_system), keyring_of(sealed_system)
    keyring.announce_change("north", mark_for("owner", 0, ["5"]))
    cache.refresh()
    assert not cache.may_be_incomplete
    keyring.announce_change("north", mark_for("owner", 1, ["5"]))
    cache.refresh()
    assert cache.may_be_incomplete


def test_a_receiver_that_was_stopped_is_incomplete_until_it_has_refreshed(
    sealed_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_of(sealed_system)
    cache.refresh()
    assert not cache.may_be_incomplete
    now = time.monotonic()
    monkeypatch.setattr(secret_cache.time, "monotonic", lambda: now + secret_cache.STALE_SECONDS + 0.1)
    assert cache.may_be_incomplete
    assert secret_cache.STALE_SECONDS + secret_cache.CONFIRM_EVERY < LIVE_SECONDS, (
        "the process that changes a secret still waits for it"
    )
    cache.refresh()
    assert cache.may_be_incomplete, "a delivery may have been checked with the old secrets"
    monkeypatch.setattr(
        secret_cache.time, "monotonic", lambda: now + secret_cache.STALE_SECONDS + secret_cache.GRACE_SECONDS + 0.2
    )
    cache.refresh()
    assert not cache.may_be_incomplete


def test_the_cache_stays_incomplete_for_a_moment_after_a_change_has_ended(
    sealed_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, keyring = cache_of(sealed_system), keyring_of(sealed_system)
    keyring.announce_change("north")
    cache.refresh()
    keyring.withdraw_change("north")
    cache.refresh()
    assert cache.may_be_incomplete
    now = time.monotonic()
    monkeypatch.setattr(secret_cache.time, "monotonic", lambda: now + secret_cache.GRACE_SECONDS + 0.1)
    assert not cache.may_be_incomplete


def test_a_receiver_that_starts_without_redis_knows_secrets_learned_before(
    own_redis: Server, make_system: Callable[..., System]
) -> None:
    system = make_system(more=SEALED, url=own_redis.url)
    keyring_of(system).store([learned_secret(system.config.known_stores["north"], NEW, origin="created")])
    cache_of(system).refresh()  # writes the copy
    own_redis.kill()
    cache = cache_of(system)
    cache.refresh()
    assert known(system, cache)[0] == b"new secret of the store"
    assert cache.may_be_incomplete
    own_redis.start()
    cache.refresh()
    assert cache.may_be_incomplete, "a secret learned meanwhile may not be written yet"
    eventually(lambda: not cache.may_be_incomplete, secret_cache.REFRESH_EVERY + secret_cache.GRACE_SECONDS + 1)


def test_a_secret_learned_on_this_host_without_redis_is_known_at_once(
    own_redis: Server, make_system: Callable[..., System]
) -> None:
    system = make_system(more=SEALED, url=own_redis.url)
    keyring, cache = keyring_of(system), cache_of(system)
    cache.refresh()
    own_redis.kill()
    with pytest.raises(RedisError):
        keyring.store([learned_secret(system.config.known_stores["north"], NEW, origin="rotated")])
    cache.refresh()
    assert known(system, cache)[0] == b"new secret of the store"
    own_redis.start()
    cache.refresh()  # Redis still does not have it; the file does
    assert known(system, cache)[0] == b"new secret of the store"


def test_a_secret_that_no_receiver_has_read_is_known_when_redis_becomes_unreachable(
    own_redis: Server, make_system: Callable[..., System]
) -> None:
    system = make_system(more=SEALED, url=own_redis.url)
    keyring, cache = keyring_of(system), cache_of(system)
    cache.refresh()
    keyring.store([learned_secret(system.config.known_stores["north"], NEW, origin="rotated")])
    keyring.store_pending()
    own_redis.kill()
    cache.refresh()
    assert known(system, cache)[0] == b"new secret of the store"


def test_an_emptied_redis_is_restored_from_the_copy(sealed_system: System, redis: Redis) -> None:
    cache, keyring = cache_of(sealed_system), keyring_of(sealed_system)
    keyring.store([learned_secret(sealed_system.config.known_stores["north"], NEW, origin="created")])
    cache.refresh()
    redis.delete(keys.SECRETS + "north", keys.SECRET_VERSIONS, keys.KEYRING_VERSION)
    cache.refresh()
    assert known(sealed_system, cache)[0] == b"new secret of the store"
    assert [one.text for one in keyring.secrets_of("north")] == [NEW]


def test_damaged_records_in_the_keyring_affect_no_others(sealed_system: System) -> None:
    cache, keyring = cache_of(sealed_system), keyring_of(sealed_system)
    keyring.store([learned_secret(sealed_system.config.known_stores["north"], NEW, origin="created")])
    damaged = {b"mark": b"\xff\xfe", b"\xff": b"{}", b"other": b"{}"}
    sealed_system.client.hset(keys.SECRETS + "north", mapping=damaged)  # type: ignore[arg-type]
    cache.refresh()
    assert known(sealed_system, cache)[0] == b"new secret of the store"
    assert not cache.may_be_incomplete


def test_a_damaged_version_leaves_the_cache_incomplete_and_working(
    sealed_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_of(sealed_system)
    sealed_system.client.set(keys.KEYRING_VERSION, b"\xff")
    cache.refresh()
    assert cache.may_be_incomplete
    assert known(sealed_system, cache) == [b"test secret of one store"]
    sealed_system.client.set(keys.KEYRING_VERSION, 1)
    now = time.monotonic()
    monkeypatch.setattr(
        secret_cache.time, "monotonic", lambda: now + secret_cache.REFRESH_EVERY + secret_cache.GRACE_SECONDS + 0.1
    )
    cache.refresh()
    assert not cache.may_be_incomplete


def test_a_host_that_cannot_write_its_copy_still_learns_and_writes_it_later(sealed_system: System) -> None:
    cache, keyring = cache_of(sealed_system), keyring_of(sealed_system)
    version = keyring.store([learned_secret(sealed_system.config.known_stores["north"], NEW, origin="created")])
    keyring.files.copy_file.mkdir()  # not even root can replace a folder by a file
    cache.refresh()
    assert known(sealed_system, cache)[0] == b"new secret of the store"
    assert (cache.may_be_incomplete, keyring.receivers.behind(version)) == (False, [])
    keyring.files.copy_file.rmdir()
    cache.refresh()
    assert keyring.files.copy()[0] == version


def test_receivers_remove_files_of_a_writer_that_was_killed(
    sealed_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else may be written for long, and one of a process that ended just now is too new for its successor."""
    cache, data = cache_of(sealed_system), sealed_system.config.data_dir
    cache.refresh()
    left = data / ".keyring-pending-abcdefgh"
    left.write_bytes(b"sealed")
    os.utime(left, (0, 0))
    now = time.monotonic()
    monkeypatch.setattr(secret_cache.time, "monotonic", lambda: now + CONFIRM_EVERY + 1)
    cache.refresh()
    assert not left.exists()


def test_without_a_key_there_is_no_keyring_to_read(system: System) -> None:
    cache = cache_of(system)
    cache.start()
    assert not cache.may_be_incomplete
    assert system.client.exists(keys.RECEIVERS) == 0


# Over HTTP, with a real web server


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with own_server(tmp_path_factory.mktemp("server")) as server:
        folder: Path = tmp_path_factory.mktemp("system")
        (folder / "data").mkdir()
        system = System(folder, server.url, more=SEALED)
        system.start("web")
        yield system
        system.close()


def signed_with(system: System, text: str, store: str = "north") -> Request:
    known_store = system.config.known_stores["north"]
    mine = learned_secret(known_store, text, origin="x").as_secret(known_store.scheme)
    target = replace(known_store, secrets=(mine,))
    return compose(target, topic="order.paid", delivery_id=f"m{time.time_ns()}", data={"id": 1}, now=time.time())


def test_a_receiver_accepts_a_new_secret_without_a_restart(web: System) -> None:
    assert web.post(signed_with(web, NEW)).status_code == 401
    keyring = keyring_of(web)
    version = keyring.store([learned_secret(web.config.known_stores["north"], NEW, origin="created")])
    assert keyring.receivers.wait_for(version) == []
    assert web.post(signed_with(web, NEW)).status_code == 200
    assert web.post(signed_with(web, SECRET)).status_code == 200, "the configured secret is still valid"
    keyring.remove("north", [learned_secret(web.config.known_stores["north"], NEW, origin="x").fingerprint])


def test_while_incomplete_every_refusal_is_alike_for_known_and_unknown_stores(web: System) -> None:
    keyring, wrong = keyring_of(web), "whsec_d3JvbmcgaW4gZXZlcnkgd2F5"
    plain = {"no signature": Request({}, b"{}"), "wrong signature": signed_with(web, wrong)}
    assert keyring.receivers.wait_for(keyring.announce_change("north")) == []
    try:
        answers = {
            (store, kind): web.post(request, store)
            for store in ("north", "south", "unknown")
            for kind, request in plain.items()
        }
        assert {answer.status_code for answer in answers.values()} == {503}
        assert {answer.headers["retry-after"] for answer in answers.values()} == {"5"}
        assert len({answer.content for answer in answers.values()}) == 1
        assert web.post(signed_with(web, SECRET)).status_code == 200, "valid deliveries are accepted"
    finally:
        keyring.withdraw_change("north")
    eventually(lambda: web.post(signed_with(web, wrong)).status_code == 401, 10)
    answers = {(s, k): web.post(r, s) for s in ("north", "unknown") for k, r in plain.items()}
    assert {answer.status_code for answer in answers.values()} == {401}
    assert len({answer.content for answer in answers.values()}) == 1


def found_by_doctor(system: System, store: str = "north") -> list[tuple[str, str]]:
    """Level and text of what doctor says about the refused deliveries of a store."""
    findings = json.loads(system.run_cli("doctor", "--json").stdout)["findings"]
    return [
        (one["level"], one["text"]) for one in findings if one["check"] == store and " refused since " in one["text"]
    ]


def test_one_answered_503_is_shown_so_and_doctor_reports_it_only_until_it_is_sent_again(
    make_system: Callable[..., System],
) -> None:
    """A rotation without a fault ended with a failure of doctor, and a refusal "with 401" that was none."""
    system = make_system(more=SEALED)
    system.start("web")
    keyring, store = keyring_of(system), system.config.known_stores["north"]
    assert keyring.receivers.wait_for(keyring.announce_change("north")) == []
    first, second = signed_with(system, NEW), signed_with(system, NEW)
    assert [system.post(one).status_code for one in (first, second)] == [503, 503]
    system.refused(2)
    shown = "with 503, so that the sender tries again"
    assert f"{shown}, from 127.0.0.1" in system.run_cli("refused", "show", "last").stdout
    assert f"{shown} (signature-mismatch), from" in " ".join(
        system.run_cli("verify", "--refused", "last").stdout.split()
    )
    rows = json.loads(system.run_cli("refused", "list", "--json").stdout)
    assert [(one["reason"], one["status"]) for one in rows] == [("signature-mismatch", 503)] * 2
    ((level, text),) = found_by_doctor(system)
    assert (level, text.startswith("2 refused since ")) == ("warn", True), "its secret is not known yet"

    assert keyring.receivers.wait_for(keyring.store([learned_secret(store, NEW, origin="created")])) == []
    keyring.withdraw_change("north")
    assert system.post(first).status_code == 200
    ((level, text),) = found_by_doctor(system)
    assert level == "fail", "the store has not sent the other one again"
    assert re.fullmatch("1 refused since .*, all stored; all valid under the current config", text), text
    assert system.post(second).status_code == 200
    assert found_by_doctor(system) == []
    released = system.run_cli("refused", "release", "last", "--yes").stdout
    assert "1 duplicate: accepted already" in released


def test_another_body_under_the_id_of_an_accepted_event_was_not_sent_again(make_system: Callable[..., System]) -> None:
    system = make_system(more=SEALED)
    system.start("web")
    keyring, store = keyring_of(system), system.config.known_stores["north"]
    assert keyring.receivers.wait_for(keyring.announce_change("north")) == []
    ours = replace(store, secrets=(learned_secret(store, NEW, origin="x").as_secret(store.scheme),))
    one, other = (
        compose(ours, topic="order.paid", delivery_id="m1", data={"id": number}, now=time.time()) for number in (1, 2)
    )
    assert system.post(one).status_code == 503
    system.refused()
    assert keyring.receivers.wait_for(keyring.store([learned_secret(store, NEW, origin="created")])) == []
    assert system.post(other).status_code == 200
    assert [level for level, _ in found_by_doctor(system)] == ["fail"]
    assert system.post(one).status_code == 200
    assert found_by_doctor(system) == [], "it is an event under another id"


def test_forged_requests_cost_the_server_no_calls(web: System) -> None:
    request = signed_with(web, "whsec_d3JvbmcgaW4gZXZlcnkgd2F5")
    stats = web.client.info
    before = {name: dict(stat) for name, stat in stats("commandstats").items()}
    started = time.monotonic()
    for _ in range(200):
        assert web.post(request).status_code == 401
    took = time.monotonic() - started
    after = stats("commandstats")
    reads = sum(after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in ("cmdstat_get",))
    every = ("secret_cache.REFRESH_EVERY", "drain.RUN_EVERY", "drain.RUN_EVERY")
    regular = sum(took / OFTEN[f"receiver.delivery.{name}"] for name in every)
    assert reads <= 3 + regular, "only the refreshes, and the drain's checks of the format and of the data"


def test_a_keyring_under_another_key_is_ignored_and_config_still_valid(web: System) -> None:
    other = Keyring(web.client, web.config.data_dir / "elsewhere", "11" * 32)
    version = other.store([learned_secret(web.config.known_stores["north"], NEW, origin="created")])
    assert other.receivers.wait_for(version) == []
    assert web.post(signed_with(web, NEW)).status_code == 401
    assert web.post(signed_with(web, SECRET)).status_code == 200


def test_the_web_process_starts_without_redis_and_answers_503_to_what_it_cannot_verify(tmp_path: Path) -> None:
    system = System(tmp_path, "redis://127.0.0.1:1", more=SEALED)
    try:
        system.start("web")
        assert system.post(signed_with(system, NEW)).status_code == 503
        answer = system.post(signed_with(system, SECRET))
        assert (answer.status_code, answer.json()["status"]) == (200, "accepted"), "in the spool"
    finally:
        system.close()


def test_config_is_read_with_its_key_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[secrets]\nkey = "env:THE_KEY"\n')
    found = receiver_config.load(tmp_path / "config.toml", {"THE_KEY": KEY})
    assert KEY not in repr(found)
    assert SecretCache(found, connect("redis://127.0.0.1:1", timeout=0.1)).may_be_incomplete
