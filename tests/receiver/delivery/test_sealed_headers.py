"""A store that signs in the Authorization header: a refusal stores it sealed, and can be verified and released."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path

import pytest

from receiver.contract.stored_headers import NOT_STORED, SEALED, headers_of_refusal, sealed_headers
from receiver.inbox.keyring.header_seal import HeaderSeal
from receiver.spool import Refusal
from tests.support.harness import System

RIGHT, WRONG = "the secret that the store signs with", "another secret, in the config by mistake"
KEY, OTHER_KEY = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
STORES = f"""
[stores.acme]
scheme = "acme"
signing_secrets = ["{WRONG}"]
[schemes.acme]
headers = ["Authorization"]
signed = "{{body}}"
[schemes.acme.event]
topic = ["json:type"]
id = ["json:id"]
"""
BODY = b'{"type":"order.created","id":"evt_1","data":{"id":7}}'
SIGNATURE = hmac.new(RIGHT.encode(), BODY, hashlib.sha256).hexdigest()


def start(make_system: Callable[..., System], key: str) -> System:
    system = make_system(more=STORES + (f'[secrets]\nkey = "{key}"\n' if key else ""))
    system.start("web")
    return system


def refuse(system: System, store: str = "acme") -> Refusal:
    answer = system.http.post(f"/webhooks/{store}", headers={"authorization": SIGNATURE}, content=BODY)
    assert answer.status_code == 401
    system.refused()
    found = system.refusals().get(system.refusals().newest(limit=1)[0].id)
    assert found
    return found


def correct(system: System, before: str = WRONG, after: str = RIGHT) -> None:
    system.config_file.write_text(system.config_file.read_text().replace(before, after))


def shown(system: System, *command: str) -> str:
    return " ".join(system.run_cli(*command).stdout.split())


def on_disk(data_dir: Path) -> bytes:
    return b"".join(path.read_bytes() for path in data_dir.rglob("*") if path.is_file())


def test_a_sealed_authorization_is_verified_and_released(make_system: Callable[..., System]) -> None:
    system = start(make_system, KEY)
    stored = refuse(system)
    assert stored.headers["authorization"].startswith(SEALED)
    assert BODY in on_disk(system.config.data_dir)
    assert SIGNATURE.encode() not in on_disk(system.config.data_dir)
    assert SIGNATURE not in shown(system, "refused", "show", "last")
    assert SIGNATURE not in shown(system, "refused", "show", "last", "--json")
    assert f"authorization: {SIGNATURE}" in system.run_cli("refused", "show", "last", "--raw").stdout
    assert "NOT VALID signature-mismatch" in shown(system, "verify", "--refused", "last")
    correct(system)
    assert "1 refused of acme; 1 valid with the current config." in shown(system, "verify", "--refused", "last")
    done = system.run_cli("refused", "release", "--store", "acme", "--yes")
    assert (done.returncode, "1 event accepted" in done.stdout) == (0, True), done.stdout
    (event,) = system.ledger.events(store="acme")
    assert event.delivery_id == "evt_1"
    record = system.ledger.event(event.id)
    assert record
    assert "authorization" not in record.headers, "an event has no use for it"


@pytest.mark.parametrize("key", ["", OTHER_KEY])
def test_under_another_key_or_without_one_verify_and_release_say_why_not(
    make_system: Callable[..., System], key: str
) -> None:
    system = start(make_system, KEY)
    refuse(system)
    correct(system)
    correct(system, f'key = "{KEY}"', f'key = "{key}"')
    told = shown(system, "verify", "--refused", "last")
    assert "incomplete: the scheme reads authorization, whose value is sealed under a [secrets] key that is not" in told
    assert "run this with the [secrets] key that the receiver had then" in told
    assert "1 delivery still refused: incomplete" in shown(system, "refused", "release", "--yes")
    assert system.refusals().count() == 1


def test_without_a_key_on_arrival_it_is_not_stored_and_verify_says_what_to_set(
    make_system: Callable[..., System],
) -> None:
    system = start(make_system, "")
    assert refuse(system).headers["authorization"] == NOT_STORED
    assert SIGNATURE.encode() not in on_disk(system.config.data_dir)
    correct(system)
    told = shown(system, "verify", "--refused", "last")
    assert "incomplete: the scheme reads authorization, whose value is stored only if there is a [secrets] key" in told
    assert 'set [secrets] key = "env:KEYRING_KEY" for every process' in told
    assert "([schemes." not in told  # the fix belongs to another table
    told = shown(system, "refused", "release", "--store", "acme", "--yes")
    assert "1 delivery still refused: incomplete" in told
    assert "storehooks verify --store acme --refused last" in told


def test_a_header_is_sealed_only_if_the_scheme_reads_it() -> None:
    seal = HeaderSeal(KEY)
    headers = {"authorization": "Bearer x", "cookie": "a=b", "x-topic": "order"}
    stored = headers_of_refusal(headers, {"authorization", "x-topic"}, seal.close)
    assert (stored["cookie"], stored["x-topic"]) == (NOT_STORED, "order")
    assert "Bearer" not in stored["authorization"]
    assert seal.open_all(stored) == {**headers, "cookie": NOT_STORED}
    assert seal.close("authorization", "Bearer x") != seal.close("authorization", "Bearer x")
    assert headers_of_refusal(headers, {"x-topic"}, seal.close)["authorization"] == NOT_STORED


def test_a_value_that_was_moved_changed_or_sent_is_not_opened() -> None:
    seal = HeaderSeal(KEY)
    sealed = SEALED + seal.close("authorization", "Bearer x")
    for headers in ({"cookie": sealed}, {"authorization": sealed[:-4] + "AAA="}, {"authorization": SEALED + "?"}):
        assert seal.open_all(headers) == headers
    assert HeaderSeal(OTHER_KEY).open_all({"authorization": sealed}) == {"authorization": sealed}
    assert sealed_headers({"x-topic": sealed}) == {}, "a sender may send this text"
    assert headers_of_refusal({"authorization": sealed}, (), seal.close) == {"authorization": NOT_STORED}


def test_many_headers_do_not_displace_the_sealed_one() -> None:
    headers = {**{f"x-{number}": "1" for number in range(80)}, "authorization": "Bearer x"}
    stored = headers_of_refusal(headers, {"authorization"}, HeaderSeal(KEY).close)
    assert stored["authorization"].startswith(SEALED)
    assert len(stored) <= 65
