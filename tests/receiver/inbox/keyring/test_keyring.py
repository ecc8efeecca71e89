"""The keyring: sealed secrets in Redis and on disk, which can be read and added only with the key."""

from __future__ import annotations

import base64
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from redis import Redis
from redis.exceptions import RedisError

from receiver.config import load
from receiver.contract.compose import compose
from receiver.contract.errors import ConfigError
from receiver.contract.signing.presets import STANDARD_WEBHOOKS
from receiver.contract.signing.signatures import MAX_LEARNED, MAX_SECRETS, Secret, verify
from receiver.contract.stores import Store
from receiver.inbox import connect, keys
from receiver.inbox.keyring.host_files import COPY, LEFTOVER_SECONDS, PENDING
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.learned_secrets import (
    CannotUnseal,
    LearnedSecret,
    Seal,
    count_valid,
    learned_secret,
    with_learned_secrets,
)
from tests.support.harness import SECRET, Server

KEY = "a2V5IG9mIHRoZSB0ZXN0cywgMzIgYnl0ZXMgbG9uZyE="
OTHER_KEY = "00" * 32
NORTH = Store("north", STANDARD_WEBHOOKS, ())
NEW = "whsec_bmV3IHNlY3JldCBvZiB0aGUgc3RvcmU="


@pytest.fixture
def keyring(redis: Redis, tmp_path: Path) -> Keyring:
    return Keyring(redis, tmp_path, KEY)


def secret(text: str = NEW, **how: object) -> LearnedSecret:
    return learned_secret(NORTH, text, origin="created", **how)  # type: ignore[arg-type]


def test_a_stored_secret_is_returned(keyring: Keyring) -> None:
    one = secret(subscription="7")
    keyring.store([one])
    assert keyring.secrets_of("north") == [one]
    assert keyring.secrets_of("south") == []


def test_no_secret_is_readable_in_redis_or_in_a_file(keyring: Keyring, redis: Redis, tmp_path: Path) -> None:
    keyring.store([secret()])
    keyring.files.write_copy(1, keyring.sealed(["north"]))
    stored = redis.hgetall(keys.SECRETS + "north")[secret().fingerprint.encode()]
    for text in (stored, (tmp_path / COPY).read_bytes()):
        assert NEW.encode() not in text
        assert b"bmV3IHNl" not in text
        assert secret().fingerprint.encode() in text
    assert NEW not in repr(keyring.secrets_of("north"))


def test_secrets_that_have_not_ended_are_counted_without_the_key() -> None:
    """Ended ones are kept for a week. The doctor took a store that had only these for one with a secret."""
    ends, seal, now = {"none": None, "past": 99.0, "now": 100.0, "next": 101.0}, Seal(b"k" * 32), 100.0
    sealed = {name: seal.close(replace(secret(), not_after=end)) for name, end in ends.items()}
    assert [count_valid({name: blob}, now) for name, blob in sealed.items()] == [1, 0, 0, 1]
    damaged = {str(n): blob for n, blob in enumerate([b"", b"x", b"[]", b"{}", b"7", b'{"not_after": "x"}'])}
    assert count_valid({**sealed, **damaged}, now) == 2


def test_the_files_are_private_and_pending_secrets_are_removed_when_every_receiver_has_them(
    keyring: Keyring, tmp_path: Path
) -> None:
    keyring.files.write_copy(1, {})
    assert stat.S_IMODE(os.stat(tmp_path / COPY).st_mode) == 0o600
    version = keyring.store([secret()])
    keyring.receivers.confirm("slow", version - 1)
    assert keyring.store_pending() == 0
    assert (tmp_path / PENDING).exists(), "a receiver has not read it yet, and Redis may fail before it does"
    assert stat.S_IMODE(os.stat(tmp_path / PENDING).st_mode) == 0o600
    keyring.receivers.confirm("slow", version)
    keyring.store_pending()
    assert not (tmp_path / PENDING).exists()
    assert not list(tmp_path.glob(".keyring-*"))


def test_files_of_a_writer_that_was_killed_are_removed_and_no_others(keyring: Keyring, tmp_path: Path) -> None:
    """They stayed for ever, and may hold a secret that was deleted since then."""
    data, old = keyring.files.copy_file.parent, time.time() - 2 * LEFTOVER_SECONDS
    killed = (data / ".keyring-pending-abcdefgh", data / ".keyring-a1b2c3_d")
    writing, folder, link = data / ".keyring-pending-ijklmnop", data / ".keyring-folder12", data / ".keyring-linklink"
    others = (
        data / ".keyring-backup",
        data / ".keyring-2024-01-01",
        data / ".other-abcdefgh",
        data / "keyring-abcdefgh",
    )
    target = tmp_path / "target"
    folder.mkdir()
    link.symlink_to(target)
    for path in (*killed, writing, *others, target):
        path.write_bytes(b"sealed")
        if path != writing:
            os.utime(path, (old, old))
    os.utime(link, (old, old), follow_symlinks=False)
    keyring.files.write_copy(1, {})
    assert not killed[1].exists()
    keyring.store([secret()])
    assert [path for path in (writing, folder, link, *others, target) if not path.exists()] == []
    assert not killed[0].exists()


@pytest.mark.parametrize("name", ["store", "fingerprint", "origin", "not_after", "learned_at", "subscription"])
def test_the_metadata_of_a_secret_cannot_be_changed(name: str) -> None:
    seal = Seal(b"k" * 32)
    sealed = orjson.loads(seal.close(secret()))
    sealed[name] = 4e9 if name in ("not_after", "learned_at") else "another"
    with pytest.raises(CannotUnseal):
        seal.open(orjson.dumps(sealed))


@pytest.mark.parametrize("blob", [b"", b"{}", b"[]", b'{"box": 1}', b'{"box": "AAAA"}', b"\xff"])
def test_damaged_entries_are_not_opened(blob: bytes) -> None:
    with pytest.raises(CannotUnseal):
        Seal(b"k" * 32).open(blob)


def test_a_secret_of_one_store_cannot_be_moved_to_another(keyring: Keyring, redis: Redis) -> None:
    keyring.store([secret()])
    redis.hset(keys.SECRETS + "south", mapping=redis.hgetall(keys.SECRETS + "north"))
    assert keyring.secrets_of("south") == []


def test_another_key_opens_nothing(keyring: Keyring, redis: Redis, tmp_path: Path) -> None:
    keyring.store([secret()])
    assert Keyring(redis, tmp_path, OTHER_KEY).secrets_of("north") == []


def test_without_a_key_a_secret_is_refused_with_the_fix(redis: Redis, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set \[secrets\] key"):
        Keyring(redis, tmp_path, "").store([secret()])


def test_a_secret_learned_during_an_outage_is_stored_in_redis_later(own_redis: Server, tmp_path: Path) -> None:
    keyring = Keyring(own_redis.client, tmp_path, KEY)
    own_redis.kill()
    with pytest.raises(RedisError):
        keyring.store([secret()])
    assert keyring.files.everything()["north"].keys() == {secret().fingerprint}
    own_redis.start()
    assert keyring.store_pending() == 1
    assert [one.text for one in keyring.secrets_of("north")] == [NEW]
    assert keyring.files.pending() == {}


def test_an_end_that_was_set_is_not_removed_by_a_pending_copy(keyring: Keyring, redis: Redis) -> None:
    keyring.store([secret()])
    pending = keyring.files.pending_file.read_bytes()
    keyring.store([replace(secret(), not_after=5.0)])
    keyring.files.pending_file.write_bytes(pending)  # left by a process that died
    assert [one.not_after for one in keyring.secrets_of("north")] == [5.0]
    assert keyring.store_pending() == 0
    assert keyring.files.pending() == {}
    assert [one.not_after for one in keyring.secrets_of("north")] == [5.0]


def test_two_processes_add_pending_secrets_and_none_is_lost(tmp_path: Path, redis: Redis) -> None:
    keyrings = [Keyring(redis, tmp_path, KEY) for _ in range(4)]
    stores = [Store(f"s{n}", STANDARD_WEBHOOKS, ()) for n in range(4)]

    def add(keyring: Keyring, store: Store) -> None:
        for n in range(10):
            one = learned_secret(store, f"whsec_{'QUJD' * (n + 1)}", origin="created")
            keyring.files.add_pending([(one.store, one.fingerprint, Seal(b"k" * 32).close(one))])

    threads = [threading.Thread(target=add, args=pair) for pair in zip(keyrings, stores, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {store: len(found) for store, found in keyrings[0].files.pending().items()} == {
        f"s{n}": 10 for n in range(4)
    }


def test_a_redis_that_lost_its_data_gets_the_copy(keyring: Keyring, redis: Redis) -> None:
    version = keyring.store([secret()])
    keyring.files.write_copy(version, keyring.sealed(["north"]))
    redis.flushdb()
    assert keyring.restore() > version
    assert [one.text for one in keyring.secrets_of("north")] == [NEW]


def test_an_entry_under_a_wrong_fingerprint_is_not_restored_and_the_others_are(keyring: Keyring, redis: Redis) -> None:
    one = secret()
    keyring.store([one])
    blob = redis.hget(keys.SECRETS + "north", one.fingerprint)
    assert isinstance(blob, bytes)
    keyring.files.write_copy(7, {"north": {"elsewhere": blob, one.fingerprint: blob}, "south": {"alone": blob}})
    redis.flushdb()
    assert keyring.restore() >= 7
    assert redis.hkeys(keys.SECRETS + "north") == [one.fingerprint.encode()]
    keyring.files.write_copy(8, {"north": {"elsewhere": blob}})
    keyring.restore()


def test_learned_secrets_come_newest_first_and_ended_ones_last() -> None:
    old = secret("whsec_b2xk", now=1.0)
    new = secret(NEW, now=2.0)
    ended = LearnedSecret("north", "whsec_ZW5kZWQ=", "x", "created", 0.0, not_after=5.0)
    config = load_store()
    store = with_learned_secrets(config, [old, ended, new, secret(SECRET)])
    assert [one.key for one in store.secrets] == [
        b"new secret of the store",
        b"old",
        b"test secret of one store",
        b"ended",
    ]
    assert not store.secrets[-1].is_active(time.time())


def test_many_ended_secrets_do_not_displace_a_live_one(keyring: Keyring) -> None:
    live = secret(now=1.0)
    ended = [replace(secret(f"whsec_{'QUJD' * (n + 1)}", now=100.0 + n), not_after=5.0 + n) for n in range(60)]
    assert with_learned_secrets(NORTH, [*ended, live]).secrets[0].key == b"new secret of the store"
    keyring.store([live, *ended])
    assert keyring.remove_ended("north") == 60
    assert keyring.secrets_of("north") == [live]


def test_each_secret_in_its_overlap_is_tried_after_a_rotation_of_as_many_subscriptions_as_possible() -> None:
    """With more than 24 subscriptions, genuine deliveries that were signed before a rotation were refused."""
    now = time.time()

    def many(name: str, how_many: int, learned_at: float, end: float | None) -> list[LearnedSecret]:
        texts = [f"whsec_{base64.b64encode(f'{name} {number}'.encode()).decode()}" for number in range(how_many)]
        return [replace(secret(text, now=learned_at), not_after=end) for text in texts]

    active, overlap = many("active", MAX_LEARNED, now - 10, None), many("overlap", MAX_LEARNED, now - 999, now + 60)
    past = many("past", 30, now - 5, now - 1)
    configured = tuple(Secret(b"configured %d" % number) for number in range(MAX_SECRETS))
    store = with_learned_secrets(replace(NORTH, secrets=configured), [*past, *overlap, *active])
    for one in (*active, *overlap):
        signer = replace(NORTH, secrets=(one.as_secret(NORTH.scheme),))
        sent = compose(signer, topic="order.paid", delivery_id="m1", data={"id": 1}, now=now)
        verify(store.scheme, secrets=store.secrets, headers=sent.headers, body=sent.body, now=now)
    shown = with_learned_secrets(NORTH, [*past, *overlap[:30]]).secrets
    assert sum(not one.is_active(now) for one in shown) == MAX_LEARNED - 30, "in the rest of the room, for `verify`"


def load_store() -> Store:
    return Store("north", STANDARD_WEBHOOKS, (learned_secret(NORTH, SECRET, origin="x").as_secret(STANDARD_WEBHOOKS),))


def test_a_receiver_whose_entry_is_damaged_is_waited_for(keyring: Keyring, redis: Redis) -> None:
    """It was removed, and a rotation did not wait for it although it is alive."""
    redis.hset(keys.RECEIVERS, "one", "garbage")
    assert keyring.receivers.behind(keyring.version()) == ["one"]
    keyring.receivers.confirm("one", keyring.version())
    assert keyring.receivers.behind(keyring.version()) == []


def test_waiting_reports_receivers_that_are_behind_but_not_those_that_are_gone(keyring: Keyring, redis: Redis) -> None:
    version = keyring.announce_change("north")
    keyring.receivers.confirm("one", version)
    keyring.receivers.confirm("two", version - 1)
    redis.hset(keys.RECEIVERS, "dead", "0 1000")
    assert keyring.receivers.behind(version) == ["two"]
    assert redis.hexists(keys.RECEIVERS, "dead") == 0
    threading.Timer(0.2, keyring.receivers.confirm, ("two", version)).start()
    assert keyring.receivers.wait_for(version, within=5) == []
    assert keyring.receivers.wait_for(keyring.withdraw_change("north"), within=0.1) == ["one", "two"]


def test_the_state_has_versions_and_announced_changes(keyring: Keyring) -> None:
    first = keyring.store([secret()])
    version = keyring.announce_change("south")
    state = keyring.state()
    assert (state.version, state.versions) == (version, {"north": first})
    assert set(state.changing) == {"south"}
    keyring.withdraw_change("south")
    assert keyring.state().changing == {}


@pytest.mark.parametrize("key", ["short", "not base64 at all!", "QUJD", "zz" * 32])
def test_an_invalid_key_is_refused_at_start(tmp_path: Path, key: str) -> None:
    (tmp_path / "config.toml").write_text(f'[secrets]\nkey = "{key}"\n')
    with pytest.raises(ConfigError, match="openssl rand"):
        load(tmp_path / "config.toml", {})


def test_a_store_without_secrets_needs_a_key_and_an_api(tmp_path: Path) -> None:
    write: Callable[[str], int] = (tmp_path / "config.toml").write_text
    write(f'[secrets]\nkey = "{KEY}"\n[stores.north]\nbase_url = "https://north.example"\n')
    assert load(tmp_path / "config.toml", {}).known_stores["north"].secrets == ()
    for text in (f'[secrets]\nkey = "{KEY}"\n[stores.north]\n', '[stores.north]\nbase_url = "https://north.example"\n'):
        write(text)
        with pytest.raises(ConfigError, match="no signing_secrets"):
            load(tmp_path / "config.toml", {})


def test_an_unreachable_server_raises(tmp_path: Path) -> None:
    keyring = Keyring(connect("redis://127.0.0.1:1", timeout=0.2), tmp_path, KEY)
    with pytest.raises(RedisError):
        keyring.state()
