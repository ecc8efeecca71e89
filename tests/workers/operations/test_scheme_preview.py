"""Scheme preview: which scheme would fit a refused delivery, and what it would do to the others of the store."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from receiver.config import load
from receiver.contract.compose import Request, compose
from receiver.contract.event import Event
from receiver.contract.intake import receive
from receiver.contract.signing.grammar import Scheme, Secret
from receiver.contract.signing.signatures import PRESETS
from receiver.contract.stores import Store
from receiver.spool import Refusal, open_refusals
from tests.support.harness import System
from tests.support.past_events import past_event
from tests.workers.operations.test_event_tail import Measured
from workers.operations import scheme_preview
from workers.operations.edited_events import resend
from workers.operations.release import ReleaseCheck
from workers.operations.scheme_preview import PreviewedStore, SchemePreviews

TEXT = "the secret of shop, which is long"
CONFIG = f'[stores.shop]\nscheme = "woocommerce"\nsigning_secrets = ["{TEXT}"]\n'


@pytest.fixture
def shop(make_system: Callable[..., System]) -> System:
    system = make_system(more=CONFIG)
    system.config.data_dir.mkdir(mode=0o700, exist_ok=True)
    return system


def signed(scheme: Scheme, number: int, text: str = TEXT, *, age: float = 0.0) -> Request:
    store = Store("shop", scheme, (Secret(scheme.key_of(text)),), url="http://127.0.0.1/webhooks/shop")
    data, now = {"id": number, "total": "1.00"}, time.time() - age
    return compose(store, topic="order.created", delivery_id=f"msg_{number}", data=data, now=now)


def preview(system: System, *requests: Request) -> SchemePreviews:
    """The preview for the last of these, after all were refused."""
    config = system.config
    with closing(open_refusals(config.data_dir)) as stored:
        lines = [
            Refusal(time.time(), "shop", "shop", "signature-mismatch", 9, "", "", one.headers, one.body)
            for one in requests
        ]
        stored.add(lines, bounds=config.receiver.refused, now=time.time())
        last = stored.get(stored.newest(limit=1)[0].id)
        assert last
        store = ReleaseCheck(config).store_of(last)
        assert store
        return PreviewedStore(config, system.client, None, store).run(stored, last)


def accept(system: System, scheme: Scheme, *numbers: int) -> None:
    known = system.config.known_stores["shop"]
    for number in numbers:
        request = signed(scheme, number)
        delivery = receive(request.headers, request.body, store=known, now=time.time())
        system.inbox.accept([delivery])


def test_a_known_scheme_that_fits_is_found_with_what_it_would_break(shop: System) -> None:
    accept(shop, PRESETS["woocommerce"], 1, 2, 3)
    found = preview(
        shop, signed(PRESETS["woocommerce"], 9, "another secret"), *(signed(PRESETS["shopify"], n) for n in (4, 5))
    )
    current, other = found.schemes
    assert (found.kept, found.accepted) == (3, 3)
    assert (current.scheme.name, current.is_current, current.kept_valid, current.accepted_valid) == (
        "woocommerce",
        True,
        0,
        3,
    )
    assert (other.scheme.name, other.kept_valid, other.accepted_valid) == ("shopify", 2, 0)
    assert tomllib.loads(other.toml) == {"stores": {"shop": {"scheme": "shopify"}}}
    line = shop.config_file.read_text().splitlines().index('scheme = "woocommerce"') + 1
    assert found.place == f"{shop.config_file}:{line}"


def test_the_toml_makes_the_delivery_valid(shop: System) -> None:
    """A way to sign that no preset has: the store's own scheme, with what is different."""
    own = PRESETS["woocommerce"]
    odd = replace(own, encoding="hex", algorithm="hmac-sha512")
    found = preview(shop, signed(odd, 4))
    _, other = found.schemes
    assert (other.kept_valid, other.scheme.event) == (1, own.event)
    written = tomllib.loads(other.toml)
    assert written["schemes"]["my-woocommerce"] == {
        "extends": "woocommerce",
        "algorithm": "hmac-sha512",
        "encoding": "hex",
    }
    text = shop.config_file.read_text().replace(CONFIG, "")
    secrets = f'signing_secrets = ["{TEXT}"]\n'
    shop.config_file.write_text(f"{text}\n{other.toml}{secrets}")
    config = load(shop.config_file, {})
    with closing(open_refusals(config.data_dir)) as stored:
        (refusal,) = (one for batch in stored.with_body() for one in batch)
        assert ReleaseCheck(config).is_valid(refusal)


def test_a_scheme_that_would_refuse_the_delivery_too_does_not_fit(shop: System) -> None:
    """Its signature is right, so that it is detected; but the delivery was too old when it arrived."""
    assert len(preview(shop, signed(PRESETS["stripe"], 1)).schemes) == 2
    assert len(preview(shop, signed(PRESETS["stripe"], 2, age=3600)).schemes) == 1


def test_with_a_wrong_secret_nothing_fits(shop: System) -> None:
    found = preview(shop, signed(PRESETS["shopify"], 4, "another secret"))
    assert [one.is_current for one in found.schemes] == [True]


def test_events_that_were_never_signed_are_not_compared(shop: System) -> None:
    accept(shop, PRESETS["woocommerce"], 1)
    (event_id,) = (one.id for one in shop.ledger.events())
    event = shop.ledger.as_event(event_id)
    assert event
    resend(shop.config, shop.inbox, event, event.body)
    assert preview(shop, signed(PRESETS["shopify"], 4)).accepted == 1


def test_the_bodies_that_are_compared_are_bounded(shop: System, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [signed(PRESETS["shopify"], number) for number in range(4)]
    assert preview(shop, *requests).kept == 4
    monkeypatch.setattr(scheme_preview, "MAX_BYTES", len(requests[0].body))
    assert preview(shop, *requests).kept == 2, "it ends with the one that exceeds the bound"


def test_the_past_bodies_are_read_a_few_at_once_and_within_the_bound(shop: System, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir(mode=0o700)
    history = Measured(tmp_path / "large")
    history.write([past_event(number, body=b"x" * 100_000, fields={"store": "shop"}) for number in range(100)])
    assert len(_accepted_of(shop, history)) == 84
    assert history.most < 2_500_000


def _accepted_of(system: System, history: Measured) -> list[Event]:
    return PreviewedStore(system.config, system.client, history, system.config.known_stores["shop"])._accepted


def test_it_says_if_the_time_was_over(shop: System, monkeypatch: pytest.MonkeyPatch) -> None:
    request = signed(PRESETS["shopify"], 1)
    assert preview(shop, request).is_whole
    monkeypatch.setattr(scheme_preview, "SECONDS", -1.0)
    found = preview(shop, request)
    assert ([one.is_current for one in found.schemes], found.is_whole) == ([True], False)
