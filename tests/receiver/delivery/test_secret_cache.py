"""Receivers learn new secrets without a restart, and say 503 instead of 401 while they cannot be sure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from receiver import config as config_room
from receiver.contract.compose import Request, compose
from receiver.delivery import secret_cache as room
from receiver.delivery.secret_cache import SecretCache
from receiver.inbox import connect, keys
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.learned_secrets import learned_secret
from receiver.inbox.keyring.receiver_versions import LIVE_SECONDS
from tests.receiver.inbox.keyring.test_keyring import KEY, NEW
from tests.support.harness import OFTEN, SECRET, Server, System, eventually, own_server

SEALED = f'[secrets]\nkey = "{KEY}"\n'


def keyring_of(system: System) -> Keyring:
    return Keyring(system.client, system.config.data_dir, KEY)


def locksmith_of(system: System) -> SecretCache:
    return SecretCache(system.config, system.client)


def known(system: System, smith: SecretCache) -> list[bytes]:
    store = smith.with_current_secrets(system.config.known_stores["north"])
    assert store is not None
    return [secret.key for secret in store.secrets]


@pytest.fixture
def sealed_system(make_system: Callable[..., System]) -> System:
    return make_system(more=SEALED)


def test_a_learned_secret_is_known_after_a_look_and_the_look_is_confirmed(sealed_system: System) -> None:
    smith, ring = locksmith_of(sealed_system), keyring_of(sealed_system)
    smith.refresh()
    assert known(sealed_system, smith) == [b"test secret of one store"]
    version = ring.store([learned_secret(sealed_system.config.known_stores["north"], NEW, origin="created")])
    assert len(ring.receivers.behind(version)) == 1
    smith.refresh()
    assert ring.receivers.behind(version) == []
    assert known(sealed_system, smith) == [b"new secret of the store", b"test secret of one store"]
    assert not smith.may_be_incomplete


def test_a_look_that_finds_nothing_new_costs_one_call(sealed_system: System) -> None:
    smith = locksmith_of(sealed_system)
    smith.refresh()
    before = sealed_system.client.info("commandstats").get("cmdstat_get", {"calls": 0})["calls"]
    others = sealed_system.client.info("stats")["total_commands_processed"]
    for _ in range(20):
        smith.refresh()
    after = sealed_system.client.info("commandstats")["cmdstat_get"]["calls"]
    assert after - before == 20
    assert sealed_system.client.info("stats")["total_commands_processed"] - others <= 26  # and one confirmation


def test_while_a_secret_is_under_way_it_is_unsure_for_a_minute_at_most(
    sealed_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    smith, ring = locksmith_of(sealed_system), keyring_of(sealed_system)
    smith.refresh()
    ring.announce_change("north")
    smith.refresh()
    assert smith.may_be_incomplete
    now = time.monotonic()
    for seconds in range(4, 60, 5):  # a look in time: a stall would make it unsure as well
        monkeypatch.setattr(room.time, "monotonic", lambda: now + seconds)  # noqa: B023  asked at once
        smith.refresh()
        assert smith.may_be_incomplete
    monkeypatch.setattr(room.time, "monotonic", lambda: now + 61)
    smith.refresh()
    assert not smith.may_be_incomplete
    ring.announce_change("north")  # another one
    smith.refresh()
    assert smith.may_be_incomplete


def test_a_receiver_that_was_stopped_for_a_while_is_unsure_until_it_has_looked_again(
    sealed_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    smith = locksmith_of(sealed_system)
    smith.refresh()
    assert not smith.may_be_incomplete
    now = time.monotonic()
    monkeypatch.setattr(room.time, "monotonic", lambda: now + room.STALE_SECONDS + 0.1)
    assert smith.may_be_incomplete
    assert room.STALE_SECONDS + room.CONFIRM_EVERY < LIVE_SECONDS, "whoever changes a secret still waits for it then"
    smith.refresh()
    assert smith.may_be_incomplete, "somebody was judged by what was known before, and asks now"
    monkeypatch.setattr(room.time, "monotonic", lambda: now + room.STALE_SECONDS + room.GRACE_SECONDS + 0.2)
    smith.refresh()
    assert not smith.may_be_incomplete


def test_when_it_has_ended_a_delivery_that_was_judged_before_gets_a_moment(
    sealed_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    smith, ring = locksmith_of(sealed_system), keyring_of(sealed_system)
    ring.announce_change("north")
    smith.refresh()
    ring.withdraw_change("north")
    smith.refresh()
    assert smith.may_be_incomplete
    now = time.monotonic()
    monkeypatch.setattr(room.time, "monotonic", lambda: now + room.GRACE_SECONDS + 0.1)
    assert not smith.may_be_incomplete


def test_a_receiver_that_starts_without_redis_knows_what_was_learned_before(
    own_redis: Server, make_system: Callable[..., System]
) -> None:
    system = make_system(more=SEALED, url=own_redis.url)
    keyring_of(system).store([learned_secret(system.config.known_stores["north"], NEW, origin="created")])
    locksmith_of(system).refresh()  # this is how the copy is written
    own_redis.kill()
    smith = locksmith_of(system)
    smith.refresh()
    assert known(system, smith)[0] == b"new secret of the store"
    assert smith.may_be_incomplete
    own_redis.start()
    smith.refresh()
    assert smith.may_be_incomplete, "whoever learned a secret meanwhile gets a moment to write it down"
    eventually(lambda: not smith.may_be_incomplete, room.REFRESH_EVERY + room.GRACE_SECONDS + 1)


def test_what_this_host_learned_while_redis_was_away_is_known_at_once(
    own_redis: Server, make_system: Callable[..., System]
) -> None:
    system = make_system(more=SEALED, url=own_redis.url)
    ring, smith = keyring_of(system), locksmith_of(system)
    smith.refresh()
    own_redis.kill()
    with pytest.raises(RedisError):
        ring.store([learned_secret(system.config.known_stores["north"], NEW, origin="rotated")])
    smith.refresh()
    assert known(system, smith)[0] == b"new secret of the store"
    own_redis.start()
    smith.refresh()  # Redis still does not have it; the file does
    assert known(system, smith)[0] == b"new secret of the store"


def test_a_secret_that_redis_had_and_no_receiver_has_read_is_known_when_redis_goes_away(
    own_redis: Server, make_system: Callable[..., System]
) -> None:
    system = make_system(more=SEALED, url=own_redis.url)
    ring, smith = keyring_of(system), locksmith_of(system)
    smith.refresh()
    ring.store([learned_secret(system.config.known_stores["north"], NEW, origin="rotated")])
    ring.store_pending()
    own_redis.kill()
    smith.refresh()
    assert known(system, smith)[0] == b"new secret of the store"


def test_a_redis_that_was_emptied_is_given_the_copy(sealed_system: System, redis: Redis) -> None:
    smith, ring = locksmith_of(sealed_system), keyring_of(sealed_system)
    ring.store([learned_secret(sealed_system.config.known_stores["north"], NEW, origin="created")])
    smith.refresh()
    redis.delete(keys.SECRETS + "north", keys.SECRET_VERSIONS, keys.KEYRING_VERSION)
    smith.refresh()
    assert known(sealed_system, smith)[0] == b"new secret of the store"
    assert [one.text for one in ring.secrets_of("north")] == [NEW]


def test_debris_in_the_keyring_harms_nothing_else(sealed_system: System) -> None:
    smith, ring = locksmith_of(sealed_system), keyring_of(sealed_system)
    ring.store([learned_secret(sealed_system.config.known_stores["north"], NEW, origin="created")])
    debris = {b"mark": b"\xff\xfe", b"\xff": b"{}", b"other": b"{}"}
    sealed_system.client.hset(keys.SECRETS + "north", mapping=debris)  # type: ignore[arg-type]
    smith.refresh()
    assert known(sealed_system, smith)[0] == b"new secret of the store"
    assert not smith.may_be_incomplete


def test_a_version_that_is_no_number_leaves_it_unsure_and_alive(
    sealed_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    smith = locksmith_of(sealed_system)
    sealed_system.client.set(keys.KEYRING_VERSION, b"\xff")
    smith.refresh()
    assert smith.may_be_incomplete
    assert known(sealed_system, smith) == [b"test secret of one store"]
    sealed_system.client.set(keys.KEYRING_VERSION, 1)
    now = time.monotonic()
    monkeypatch.setattr(room.time, "monotonic", lambda: now + room.REFRESH_EVERY + room.GRACE_SECONDS + 0.1)
    smith.refresh()
    assert not smith.may_be_incomplete


def test_a_host_that_cannot_write_its_copy_still_learns_and_writes_it_when_it_can(sealed_system: System) -> None:
    smith, ring = locksmith_of(sealed_system), keyring_of(sealed_system)
    version = ring.store([learned_secret(sealed_system.config.known_stores["north"], NEW, origin="created")])
    ring.files.copy_file.mkdir()  # a file cannot take a folder's name, not even root's
    smith.refresh()
    assert known(sealed_system, smith)[0] == b"new secret of the store"
    assert (smith.may_be_incomplete, ring.receivers.behind(version)) == (False, [])
    ring.files.copy_file.rmdir()
    smith.refresh()
    assert ring.files.copy()[0] == version


def test_without_a_key_there_is_nothing_to_look_at(system: System) -> None:
    smith = locksmith_of(system)
    smith.start()
    assert not smith.may_be_incomplete
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


def test_a_receiver_takes_a_new_secret_without_a_restart(web: System) -> None:
    assert web.post(signed_with(web, NEW)).status_code == 401
    ring = keyring_of(web)
    version = ring.store([learned_secret(web.config.known_stores["north"], NEW, origin="created")])
    assert ring.receivers.wait_for(version) == []
    assert web.post(signed_with(web, NEW)).status_code == 200
    assert web.post(signed_with(web, SECRET)).status_code == 200, "the one of config still counts"
    ring.remove("north", [learned_secret(web.config.known_stores["north"], NEW, origin="x").fingerprint])


def test_while_unsure_every_refusal_looks_alike_known_store_or_not(web: System) -> None:
    ring, wrong = keyring_of(web), "whsec_d3JvbmcgaW4gZXZlcnkgd2F5"
    plain = {"no signature": Request({}, b"{}"), "wrong signature": signed_with(web, wrong)}
    assert ring.receivers.wait_for(ring.announce_change("north")) == []
    try:
        answers = {
            (store, kind): web.post(request, store)
            for store in ("north", "south", "unheard-of")
            for kind, request in plain.items()
        }
        assert {answer.status_code for answer in answers.values()} == {503}
        assert {answer.headers["retry-after"] for answer in answers.values()} == {"5"}
        assert len({answer.content for answer in answers.values()}) == 1
        assert web.post(signed_with(web, SECRET)).status_code == 200, "what fits is let in as ever"
    finally:
        ring.withdraw_change("north")
    eventually(lambda: web.post(signed_with(web, wrong)).status_code == 401, 10)
    answers = {(s, k): web.post(r, s) for s in ("north", "unheard-of") for k, r in plain.items()}
    assert {answer.status_code for answer in answers.values()} == {401}
    assert len({answer.content for answer in answers.values()}) == 1


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
    assert reads <= 2 + took / OFTEN["receiver.delivery.secret_cache.REFRESH_EVERY"], "only the looks that come round"


def test_a_keyring_under_another_key_is_left_alone_and_config_still_counts(web: System) -> None:
    other = Keyring(web.client, web.config.data_dir / "elsewhere", "11" * 32)
    version = other.store([learned_secret(web.config.known_stores["north"], NEW, origin="created")])
    assert other.receivers.wait_for(version) == []
    assert web.post(signed_with(web, NEW)).status_code == 401
    assert web.post(signed_with(web, SECRET)).status_code == 200


def test_the_web_process_starts_without_redis_and_says_503_to_what_it_cannot_judge(tmp_path: Path) -> None:
    system = System(tmp_path, "redis://127.0.0.1:1", more=SEALED)
    try:
        system.start("web")
        assert system.post(signed_with(system, NEW)).status_code == 503
        answer = system.post(signed_with(system, SECRET))
        assert (answer.status_code, answer.json()["status"]) == (200, "accepted"), "into the spool"
    finally:
        system.close()


def test_config_is_read_with_its_key_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[secrets]\nkey = "env:THE_KEY"\n')
    found = config_room.load(tmp_path / "config.toml", {"THE_KEY": KEY})
    assert KEY not in repr(found)
    assert SecretCache(found, connect("redis://127.0.0.1:1", timeout=0.1)).may_be_incomplete
