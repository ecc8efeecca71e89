"""An unknown store costs the same work as a known one, so that timing does not reveal which stores exist."""

from __future__ import annotations

import http.client
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from hmac import compare_digest
from pathlib import Path
from typing import Any

import orjson
import pytest
from redis import Redis

from receiver.config import Config
from receiver.contract.signing import grammar, mac, signatures
from receiver.contract.stores import StoreIndex
from receiver.delivery.admission import Admission, IncomingDelivery
from receiver.delivery.answers import Answer
from receiver.delivery.pipeline import imitation_key
from receiver.delivery.refusal_log import RefusalLog
from receiver.delivery.secret_cache import SecretCache
from receiver.inbox.counter_buffer import CounterBuffer
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.learned_secrets import learned_secret
from tests.receiver.inbox.keyring.test_keyring import KEY
from tests.support.harness import System, signed_store

SECRETS = ", ".join(f'"whsec_{letter * 32}"' for letter in "ABCDEFGH")
STORES = f"""
[schemes.long]
headers = ["x-long"]
algorithm = "hmac-sha512"
[schemes.parsed]
headers = ["x-parsed"]
signed = "{{json:type}}.{{body}}"
[schemes.placed]
signature = ["json:signature", "json:other"]
signed = "{{json:type}}.{{timestamp}}"
timestamp = "json:sent"
tolerance = 0
allow_unsigned_body = true
[schemes.plain]
headers = ["x-plain"]
algorithm = "sha256"
signed = "{{secret}}{{body}}"
[schemes.queried]
headers = ["x-queried"]
algorithm = "hmac-sha1"
signed = "{{query:at?}}.{{body_sha256}}.{{body}}"
[stores.rotating]
signing_secrets = [{SECRETS}]
[stores.ended]
signing_secrets = [{{value = "whsec_{"E" * 32}", not_after = 2020-01-01T00:00:00Z}}]
{signed_store("hexa", "hex-body", domain="hexa.example")}
{signed_store("longer", "long", "and the one before")}
{signed_store("parser", "parsed")}
{signed_store("placer", "placed")}
{signed_store("plain", "plain")}
{signed_store("queried", "queried")}
{signed_store("stripe", "stripe")}
{signed_store("shopify", "shopify", domain="north.myshopify.example")}
{signed_store("shopify2", "shopify", "and the one before", domain="south.myshopify.example")}
{signed_store("salla", "salla", domain="1234")}
"""
UNKNOWN = [f"shop-{number}" for number in range(400)]
BODY = orjson.dumps({"type": "order.created", "signature": "0" * 64, "sent": 1, "data": {"note": "x" * 900_000}})
FORGED = {
    "webhook-id": "msg_1",
    "webhook-timestamp": str(int(time.time())),
    "webhook-signature": "v1," + "A" * 43 + "=",
    "x-signature": "0" * 64,
    "x-long": "0" * 128,
    "x-parsed": "0" * 64,
    "x-plain": "0" * 64,
    "x-queried": "0" * 40,
    "stripe-signature": f"t={int(time.time())},v1={'0' * 64}",
    "x-shopify-hmac-sha256": "A" * 43 + "=",
    "x-salla-signature": "0" * 64,
}
"""A signature of every scheme, so that one request costs each store its full work."""
Work = tuple[Any, ...]
Measure = Callable[..., Work]


@pytest.fixture
def config(make_system: Callable[..., System]) -> Config:
    return make_system(more=STORES).config


def admission(config: Config, redis: Redis) -> Admission:
    refusals = RefusalLog(config.data_dir, None)
    secrets = SecretCache(config, redis)
    return Admission(config.known_stores, imitation_key(config), secrets, CounterBuffer(redis), refusals)


@pytest.fixture
def measure(config: Config, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """The hashes and parses that refusing one forged delivery costs, with their lengths."""
    done: list[tuple[str, int]] = []

    def counting(kind: str, real: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        def count(content: bytes) -> Any:
            if len(content) > 1000:
                done.append((kind, len(content)))
            return real(content)

        return count

    monkeypatch.setattr(grammar, "keyed", lambda key, digest: counting(digest, mac.keyed(key, digest)))
    monkeypatch.setattr(grammar, "secret_first", lambda key: counting("plain", mac.secret_first(key)))
    monkeypatch.setattr(orjson, "loads", counting("parse", orjson.loads))
    admit = admission(config, redis).admit

    def work(store: str, body: bytes = BODY, **headers: str) -> Work:
        done.clear()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = admit(IncomingDelivery(store, FORGED | named, body, "192.0.2.1", time.time()))
        assert isinstance(answer, Answer)
        assert answer.status == 401
        return tuple(sorted(done))

    return work


def test_the_work_for_an_unknown_store_is_that_for_one_of_the_known(config: Config, measure: Measure) -> None:
    known = {name: measure(name) for name in config.known_stores}
    assert len(set(known.values())) >= 5, known
    assert measure("rotating").count(measure("north")[0]) == 8
    assert measure("placer") == (("parse", len(BODY)),), "signature, timestamp and content are read at once"
    unknown = Counter(measure(name) for name in UNKNOWN)
    assert set(unknown) == set(known.values())
    for work, count in Counter(known.values()).items():
        expected = len(UNKNOWN) * count / len(known)
        assert expected / 2 < unknown[work] < expected * 2, "as many as among the known ones"


def test_a_name_costs_the_same_in_every_process(config: Config, redis: Redis, measure: Measure) -> None:
    again = StoreIndex(config.known_stores, imitation_key(config))
    first = StoreIndex(config.known_stores, imitation_key(config))
    assert all(first.by_name(name).store == again.by_name(name).store for name in UNKNOWN)
    other = StoreIndex(config.known_stores, b"another key")
    assert sum(first.by_name(name).store != other.by_name(name).store for name in UNKNOWN) > len(UNKNOWN) / 2
    assert len({measure("shop-1") for _ in range(5)}) == 1


def test_a_change_of_the_config_changes_few_names(make_system: Callable[..., System], config: Config) -> None:
    changed = make_system(more=STORES.replace("the secret of stripe", "a new secret of stripe")).config
    keys = {imitation_key(config), imitation_key(changed)}
    with_key = '[secrets]\nkey = "' + "0a" * 32 + '"\n'
    keyed = [make_system(more=with_key + more).config for more in (STORES, STORES.replace("the secret of", "new of"))]
    assert imitation_key(keyed[0]) == imitation_key(keyed[1]) not in keys
    more = dict(config.known_stores) | {"zed": config.known_stores["salla"]}
    before, after = StoreIndex(config.known_stores, b"key"), StoreIndex(more, b"key")
    moved = sum(before.by_name(name).store.scheme != after.by_name(name).store.scheme for name in UNKNOWN)
    assert moved < len(UNKNOWN) / 5


def with_merchant(merchant: object) -> bytes:
    return orjson.dumps({"merchant": merchant, "data": {"note": "x" * 900_000}})


@pytest.mark.parametrize(
    ("of", "also"),
    [
        ("shopify", {}),
        ("salla", {}),
        ("shopify", {"x_shop_domain": "no.example"}),
        ("salla", {"x_shop_domain": "no.example"}),
        ("salla", {"x_shopify_shop_domain": "no.example"}),
        ("shopify", {"merchant": 99}),
    ],
)
def test_the_common_url_shows_no_more(measure: Measure, of: str, also: Mapping[str, Any]) -> None:
    """One source names a store that may exist; the others name none. Only the value of that one source differs."""
    headers = {name: value for name, value in also.items() if name != "merchant"}

    def work(name: str) -> Work:
        if of == "salla":
            return measure("", with_merchant(int(name)), **headers)
        return measure("", with_merchant(also.get("merchant")), x_shopify_shop_domain=name, **headers)

    exist = ["1234"] if of == "salla" else ["north.myshopify.example", "south.myshopify.example"]
    known = {work(name) for name in exist}
    unknown = {work(str(9000 + number) if of == "salla" else f"{number}.example") for number in range(60)}
    assert known == unknown


def test_a_delivery_that_names_no_store_is_refused_like_an_unknown_one(measure: Measure) -> None:
    assert measure("")


def test_with_no_store_at_all_every_name_is_refused(redis: Redis, config: Config) -> None:
    index = StoreIndex({}, b"")
    assert index.by_name("north").is_known is False
    assert index.find({}, b"{}") is None


def test_an_unknown_store_has_no_secret_that_could_match(config: Config, redis: Redis) -> None:
    """A store's owner knows a secret; with it, an unknown name must not take another time."""
    known = config.known_stores["hexa"]
    admit = admission(config, redis)
    for name in UNKNOWN[:50]:
        headers = signatures.sign(
            known.scheme, secret=known.secrets[0], headers={}, body=b"{}", now=time.time()
        ).headers
        answer = admit.admit(IncomingDelivery(name, headers, b"{}", "192.0.2.1", time.time()))
        assert isinstance(answer, Answer)
        assert answer.status == 401


def test_secrets_of_the_keyring_count_for_unknown_stores_too(make_system: Callable[..., System]) -> None:
    """Both stores learn three secrets; an unknown store must then be hashed with four secrets as well."""
    system = make_system(more=f'[secrets]\nkey = "{KEY}"\n')
    cache, keyring = SecretCache(system.config, system.client), Keyring(system.client, system.config.data_dir, KEY)
    for store in system.config.known_stores.values():
        keyring.store([learned_secret(store, f"whsec_{letter * 32}", origin="created") for letter in "ABC"])
    cache.refresh()
    admit = Admission(system.config.known_stores, b"key", cache, CounterBuffer(system.client), RefusalLog(Path(), None))
    hashed = Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("north", "south", "no-store"):

            def counting(expected: bytes, given: bytes, name: str = name) -> bool:
                hashed[name] += 1
                return compare_digest(expected, given)

            patch.setattr(signatures, "compare_digest", counting)
            admit.admit(IncomingDelivery(name, FORGED, b"{}", "192.0.2.1", time.time()))
            patch.undo()
    assert hashed == {"north": 4, "south": 4, "no-store": 4}


@pytest.mark.parametrize("headers", [{}, FORGED], ids=["no signature", "forged"])
@pytest.mark.parametrize("at", ["a URL of its own", "the common URL"])
def test_a_small_delivery_to_an_unknown_store_costs_the_same_calls(
    config: Config, redis: Redis, headers: Mapping[str, str], at: str
) -> None:
    """Hashing the name or raising once more would show: a small delivery costs little else."""
    admit = admission(config, redis).admit

    def calls(name: str) -> Counter[str]:
        named = {} if at == "a URL of its own" else {"x-shopify-shop-domain": f"{name}.myshopify.example"}
        incoming = IncomingDelivery("" if named else name, {**headers, **named}, b"", "192.0.2.1", time.time())
        tries = [calls_of(lambda: admit(incoming)) for _ in range(4)]
        return min(tries, key=Counter.total)  # without what is computed once, or starts a timer

    names = {"shopify", "shopify2"} if at == "a URL of its own" else {"north", "south"}
    known = {name: calls(name) for name in names}
    unknown = [calls(name) for name in UNKNOWN[:60]]
    for name, cost in known.items():
        nearest = min(unknown, key=lambda one: sum(((one - cost) + (cost - one)).values()))
        assert nearest == cost, name


def calls_of(function: Callable[[], object]) -> Counter[str]:
    """How often each function is called, in Python or in C, and how often one is left by an exception."""
    found: Counter[str] = Counter()

    def count(frame: Any, what: str, argument: Any) -> None:
        if what == "call":
            found[frame.f_code.co_name] += 1
        elif what in ("c_call", "c_exception"):
            found[f"{what} {argument.__name__}"] += 1

    def count_errors(frame: Any, what: str, argument: Any) -> Any:
        found["exception"] += what == "exception"
        return count_errors

    before = sys.getprofile(), sys.gettrace()
    sys.setprofile(count)
    sys.settrace(count_errors)
    try:
        function()
    finally:
        sys.settrace(before[1])
        sys.setprofile(before[0])
    return found


@pytest.mark.slow
def test_medians_of_unknown_stores_are_within_a_tenth_of_known_ones(make_system: Callable[..., System]) -> None:
    """Over HTTP, in turns, so that the machine's load affects all alike."""
    system = make_system(more=STORES)
    system.start("web")
    known = system.config.known_stores
    index = StoreIndex(known, imitation_key(system.config))
    pairs: dict[str, str] = {}
    for name in UNKNOWN:
        pairs.setdefault(index.by_name(name).store.name, name)
    names = [*pairs, *pairs.values()]
    times = timed(system.port, names, tries=200)
    medians = {name: statistics.median(times[name]) for name in names}
    ratios = {name: medians[unknown] / medians[name] for name, unknown in pairs.items()}
    for name, ratio in ratios.items():
        print(f"{name:10} {medians[name] * 1000:6.2f} ms, unknown {medians[pairs[name]] * 1000:6.2f} ms, {ratio:.3f}")
    assert all(0.9 < ratio < 1.1 for ratio in ratios.values()), ratios


def timed(port: int, names: list[str], *, tries: int) -> dict[str, list[float]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(tries):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = time.perf_counter()
            connection.request("POST", f"/webhooks/{name}", body=BODY, headers=FORGED)
            answer = connection.getresponse()
            answer.read()
            times[name].append(time.perf_counter() - began)
            assert answer.status == 401
    connection.close()
    return times
