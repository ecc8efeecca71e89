"""verify and scheme, run as processes: verdicts are correct, explained, and show no secret."""

from __future__ import annotations

import hmac
import json
import re
import subprocess
import time
import tomllib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from receiver.config import Config, load
from receiver.contract.compose import compose
from receiver.contract.signing.grammar import Secret
from receiver.contract.signing.presets import PRESETS
from receiver.contract.stores import Store
from receiver.spool import open_refusals
from tests.support.harness import System, eventually, own_server, storehooks
from tests.support.programs import ROOT
from workers.cli.capture_file import parse, write

VECTORS = json.loads((ROOT / "tests/receiver/contract/signing/vectors.json").read_text())
NAMES = [vector["name"] for vector in VECTORS]
NEW, OLD = "new secret of the store", "old secret of the store"
CONFIG = f"""
[stores.acme]
scheme = "timed"
signing_secrets = [
  "{NEW}",
  {{value = "{OLD}", not_after = 2026-01-01T03:12:00Z}},
]
[stores.other]
scheme = "timed"
signing_secrets = ["another store's secret"]
[stores.shop]
scheme = "shopify"
domain = "shop.example"
signing_secrets = ["{NEW}"]
[schemes.timed]
headers = ["X-Acme-Signature"]
signed = "{{timestamp}}.{{body}}"
timestamp = "header:X-Acme-Time"
[stores.far]
scheme = "far"
domain = "7001"
signing_secrets = ["{NEW}"]
[schemes.far]
extends = "hex-body"
[schemes.far.event]
topic = ["json:event"]
store = ["json:shop.id"]
[stores.touching]
scheme = "touching"
signing_secrets = ["{NEW}"]
[schemes.touching]
extends = "timed"
signed = "{{header:X-Acme-Id}}{{timestamp}}.{{body}}"
"""


def cli(config: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return storehooks(*arguments, "--config", str(config), env=env)


# The vectors


def scheme_toml(name: str, scheme: dict[str, Any]) -> str:
    """JSON values are also valid in TOML."""
    return f"[schemes.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in scheme.items())


def stores_of_the_vectors(shift: float = 0.0) -> str:
    """A store for each vector. `shift` widens the tolerance by the time that has passed since."""
    text = ""
    for number, vector in enumerate(VECTORS):
        scheme = dict(vector["scheme"])
        if shift and "tolerance" in scheme:
            scheme["tolerance"] += int(shift - vector["now"])
        text += scheme_toml(f"v{number}", scheme)
        text += f'[stores.v{number}]\nscheme = "v{number}"\nsigning_secrets = [{json.dumps(vector["secret"])}]\n'
    return text


@pytest.mark.parametrize("number", range(len(VECTORS)), ids=NAMES)
def test_the_command_verifies_every_vector_as_stated(number: int, tmp_path: Path) -> None:
    vector = VECTORS[number]
    config, file = tmp_path / "config.toml", tmp_path / "request"
    config.write_text(stores_of_the_vectors())
    file.write_bytes(write(vector["request_headers"], vector["body"].encode()))
    now = ("--now", str(vector["now"])) if "now" in vector else ()
    done = cli(config, "verify", "--store", f"v{number}", "--request", str(file), *now)
    assert done.returncode == (0 if vector["valid"] else 1), done.stdout + done.stderr
    assert ("NOT VALID" not in done.stdout) == vector["valid"]
    assert vector["secret"] not in done.stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with own_server(tmp_path_factory.mktemp("server")) as server:
        system = System(tmp_path_factory.mktemp("system"), server.url, more=stores_of_the_vectors(time.time()) + CONFIG)
        system.start("web")
        yield system
        system.close()


@pytest.mark.parametrize("number", range(len(VECTORS)), ids=NAMES)
def test_the_receiver_verifies_every_vector_as_stated(served: System, number: int) -> None:
    vector = VECTORS[number]
    answer = served.http.post(f"/webhooks/v{number}", headers=vector["request_headers"], content=vector["body"])
    assert answer.status_code == (200 if vector["valid"] else 401)


# True causes


class Broken:
    """Ten captured deliveries, each invalid in another way."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._stores, self._folder = config.known_stores, folder

    def cases(self) -> Iterator[tuple[str, str, str]]:
        """The store, the file, and the expected explanation."""
        now = time.time()
        headers, body = self._compose("acme", now)
        name = "x-acme-signature"
        text = headers[name]
        yield "acme", self._file({**headers, name: ""}, body), "no-signature"
        yield "acme", self._file({**headers, name: text[:-1]}, body), "malformed-signature"
        yield "acme", self._file(headers, body + b"\n"), "if the body had no trailing newline"
        as_base64 = b64encode(bytes.fromhex(text)).decode()
        yield "acme", self._file({**headers, name: as_base64}, body), 'encoding = "base64"'
        yield "acme", self._file(*self._compose("acme", now, secret=1)), "expired 2026-01-01 03:12 UTC"
        yield "acme", self._file(*self._compose("other", now)), "other"
        yield "acme", self._file(*self._compose("acme", now - 3600)), "too-old: signed 36"
        timeless = {key: value for key, value in headers.items() if key != "x-acme-time"}
        yield "acme", self._file(timeless, body), "no-timestamp"
        yield "acme", self._file(headers, json.dumps(json.loads(body), indent=2).encode()), "re-serialised"
        elsewhere, content = self._compose("shop", now)
        elsewhere["x-shopify-shop-domain"] = "elsewhere.example"
        yield "shop", self._file(elsewhere, content), "wrong-store"

    def _compose(self, store: str, now: float, secret: int = 0) -> tuple[dict[str, str], bytes]:
        known = self._stores[store]
        signing = replace(known, secrets=known.secrets[secret:])
        made = compose(signing, topic="order.created", delivery_id="d1", data={"id": 1, "total": "42.00"}, now=now)
        return made.headers, made.body

    def _file(self, headers: dict[str, str], body: bytes) -> str:
        path = self._folder / f"request-{len(list(self._folder.iterdir()))}"
        path.write_bytes(write(headers, body))
        return str(path)


def test_ten_invalid_deliveries_are_explained_correctly(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    cases = list(Broken(load(path, {}), tmp_path).cases())
    assert len(cases) == 10
    for store, file, says in cases:
        done = cli(path, "verify", "--store", store, "--request", file)
        assert done.returncode == 1, done.stderr
        assert "NOT VALID" in done.stdout
        assert says in done.stdout, f"{says}\n{done.stdout}"
        assert NEW not in done.stdout
        assert OLD not in done.stdout


def test_a_fix_names_the_table_that_it_belongs_to(tmp_path: Path) -> None:
    config, file = tmp_path / "config.toml", tmp_path / "request"
    config.write_text(CONFIG)
    shop = load(config, {}).known_stores["shop"]
    made = compose(shop, topic="order.created", delivery_id="d1", data={"id": 1}, now=time.time())
    file.write_bytes(write(made.headers, made.body))
    shown = " ".join(cli(config, "verify", "--store", "acme", "--request", str(file)).stdout.split())
    assert f'fix: scheme = "shopify" ([stores.acme], {config}:2)' in shown

    headers = {"x-acme-hmac": made.headers.pop("x-shopify-hmac-sha256"), **made.headers}
    file.write_bytes(write(headers, made.body))
    shown = " ".join(cli(config, "verify", "--store", "shop", "--request", str(file)).stdout.split())
    line = 'headers = ["x-acme-hmac"]'
    table = '[schemes.my-shopify] with extends = "shopify", and scheme = "my-shopify" in [stores.shop]'
    assert f"fix: {line} ({table}, {config}:11)" in shown
    changed = config.read_text().replace('scheme = "shopify"', 'scheme = "my-shopify"')
    config.write_text(changed + f'[schemes.my-shopify]\nextends = "shopify"\n{line}\n')
    assert cli(config, "verify", "--store", "shop", "--request", str(file)).returncode == 0


def test_a_refused_delivery_is_explained_with_the_next_command(served: System) -> None:
    store = served.config.known_stores["acme"]
    old = replace(store, secrets=store.secrets[1:])
    for number in range(3):
        made = compose(old, topic="order.created", delivery_id=f"d{number}", data={"id": number}, now=time.time())
        assert served.http.post("/webhooks/acme", headers=made.headers, content=made.body).status_code == 401
    fingerprint = store.secrets[1].fingerprint
    said = f"3 refused of acme; 0 valid with the current config.\n3 signed with secret {fingerprint}.\n"
    eventually(lambda: len(open_refusals(served.folder / "data").newest(store="acme")) == 3)
    shown = served.run_cli("verify", "--refused", "last", "--store", "acme").stdout
    assert said in shown
    assert f"{fingerprint}  {served.config_file}:" in shown
    assert "NOT VALID  secret-expired" in shown
    assert "extend not_after in" in shown
    assert "storehooks refused release --store acme" in shown


def test_refused_deliveries_of_a_scheme_that_needs_a_tolerance_are_counted(served: System) -> None:
    """Its header touches the timestamp, so no tolerance of 0 is allowed."""
    store = served.config.known_stores["touching"]
    body, moment = b'{"type":"order.created"}', str(int(time.time()) - 3600)
    mac = hmac.digest(store.secrets[0].key, f"d1{moment}.".encode() + body, "sha256").hex()
    headers = {"x-acme-signature": mac, "x-acme-id": "d1", "x-acme-time": moment}
    assert served.http.post("/webhooks/touching", headers=headers, content=body).status_code == 401
    eventually(lambda: served.refusals().newest(store="touching"))
    shown = served.run_cli("verify", "--refused", "last", "--store", "touching").stdout
    assert "NOT VALID  too-old" in shown
    assert f"1 signed with secret {store.secrets[0].fingerprint}." in shown


def test_a_refused_delivery_that_names_no_configured_store_is_explained(served: System) -> None:
    headers = {"X-Shopify-Shop-Domain": "elsewhere.example"}
    assert served.http.post("/webhooks", headers=headers, content=b"{  }").status_code == 401
    newest = eventually(lambda: (found := served.refusals().newest(limit=1)) and found[0].length == 4 and found[0])
    shown = " ".join(served.run_cli("verify", "--refused", str(newest.id)).stderr.split())
    assert "this delivery names no configured store; add [stores.NAME] to the config, or check it as another" in shown


def test_a_store_whose_name_is_too_far_inside_the_body_is_named_and_its_delivery_is_released(served: System) -> None:
    """`verify` said that it names no configured store, and no command released it."""
    others = [{"id": number} for number in range(200)]
    body = json.dumps({"event": "order.created", "before": others, "shop": {"id": 7001}, "after": others}).encode()
    key = served.config.known_stores["far"].secrets[0].key
    headers = {"X-Signature": hmac.digest(key, body, "sha256").hex()}
    assert served.http.post("/webhooks", headers=headers, content=body).status_code == 401
    newest = eventually(
        lambda: (found := served.refusals().newest(limit=1)) and found[0].length == len(body) and found[0]
    )
    done = served.run_cli("verify", "--refused", str(newest.id))
    shown = " ".join(done.stdout.split())
    assert (done.returncode, "VALID signed with" in shown) == (0, True), done.stdout + done.stderr
    said = "POST /webhooks scans the begin and the end of a body for names, and did not find that of far"
    assert said in shown
    assert "fix: have far send to its own URL, /webhooks/far" in shown
    assert said not in served.run_cli("verify", "--refused", str(newest.id), "--store", "far").stdout
    assert "1 event accepted" in served.run_cli("refused", "release", "--store", "far", "--yes").stdout
    assert served.http.post("/webhooks/far", headers=headers, content=body).status_code == 200


def test_a_signature_that_looks_like_a_credential_is_named_although_it_is_not_stored(served: System) -> None:
    signature = "5ec" + "0" * 61
    headers = {"Cookie": "a=b", "X-Session-Signature": signature, "X-Api-Version": "2"}
    assert served.http.post("/webhooks/acme", headers=headers, content=b"{}").status_code == 401
    newest = eventually(lambda: (found := served.refusals().newest(limit=1)) and found[0].length == 2 and found[0])

    def shown(*arguments: str) -> str:
        done = served.run_cli(*arguments)
        assert signature not in done.stdout
        return " ".join(done.stdout.split())

    assert "x-session-signature (not stored: it may be a credential)" in shown("refused", "show", str(newest.id))
    verified = shown("verify", "--refused", str(newest.id))
    assert "no stored header contains a signature; headers that may hold credentials" in verified
    assert "are stored without their value: x-session-signature" in verified
    assert 'fix: headers = ["x-session-signature"], if that is the signature' in verified
    assert "proxy that removes" not in verified
    file = served.folder / "raw.txt"
    file.write_text(served.run_cli("refused", "show", str(newest.id), "--raw").stdout)
    secret = served.folder / "secret.txt"
    secret.write_text(NEW)
    detected = shown("scheme", "detect", "--request", str(file), "--secret", f"file:{secret}")
    assert "but: headers that may hold credentials are stored without their value: x-session-signature;" in detected


def test_headers_that_are_not_stored_are_named_although_another_has_the_length_of_a_signature(served: System) -> None:
    headers = {"X-Session-Signature": "5ec" + "0" * 61, "X-Request-Hash": "ab" * 32}
    assert served.http.post("/webhooks/acme", headers=headers, content=b"{ }").status_code == 401
    newest = eventually(lambda: (found := served.refusals().newest(limit=1)) and found[0].length == 3 and found[0])
    shown = " ".join(served.run_cli("verify", "--refused", str(newest.id)).stdout.split())
    assert "no known change makes the signature match" in shown
    assert "headers that may hold credentials are stored without their value: x-session-signature" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["verify", "--store", "acme"], "--request FILE, --refused last"),
        (["verify", "--store", "acme", "--refused", "999999"], "no refused delivery '999999'"),
        (["verify", "--store", "acme", "--request", "Makefile"], "is not a header line"),
        (["scheme", "detect", "--request", "x", "--secret", "hunter2"], "not the secret itself"),
        (["scheme", "detect", "--request", "x", "--secret", "env:NOT_THERE"], "NOT_THERE is not set"),
        (["refused", "show", "999999"], "`storehooks refused` lists them"),
    ],
)
def test_wrong_use_prints_one_sentence_and_exits_2(served: System, arguments: list[str], says: str) -> None:
    if "detect" in arguments:
        (served.folder / "x").write_bytes(b"a: b\n\n{}")
        arguments = [str(served.folder / "x") if one == "x" else one for one in arguments]
    done = served.run_cli(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_captured_request_can_have_any_line_ending_and_a_request_line() -> None:
    expected = ({"a": "b", "c": "d,e"}, b'{"x":\n\n1}', "")
    assert parse(b'A: b\r\nC: d\r\nC: e\r\n\r\n{"x":\n\n1}', "x") == expected
    assert parse(b'POST /webhooks/x HTTP/1.1\nA: b\nC: d\nC: e\n\n{"x":\n\n1}', "x") == expected


def test_the_request_line_of_a_captured_request_has_url_and_query() -> None:
    captured = parse(b"POST /webhooks/x?shop=a%20b HTTP/1.1\nHost: hooks.example.com\n\n{}", "x")
    assert captured.url == "https://hooks.example.com/webhooks/x?shop=a%20b"
    assert captured.headers["?shop"] == "a b"


def test_only_a_line_feed_ends_a_line_of_a_captured_request() -> None:
    """Bytes 0x85 and 0xa0 are parts of characters in UTF-8; read as latin-1, Python calls them line end and space."""
    headers = {"a": "\u0405 voil\u00e0", "b": "c"}
    captured = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    assert parse(f"{captured}\r\n{{}}".encode(), "x").headers == {
        name: value.encode().decode("latin-1") for name, value in headers.items()
    }


# Schemes


def captured_orders(folder: Path, store: str, number: int) -> tuple[Path, list[str]]:
    """A config, and options for captured orders of its store."""
    config = folder / "config.toml"
    config.write_text(CONFIG)
    known, options = load(config, {}).known_stores[store], []
    for one in range(number):
        data = {"id": 71 + one, "total": "42.00"}
        made = compose(known, topic="order.created", delivery_id=f"d{one}", data=data, now=time.time() - one)
        (folder / f"request{one}").write_bytes(write(made.headers, made.body))
        options += ["--request", str(folder / f"request{one}")]
    return config, options


def detected(config: Path, *options: str, secret: str = NEW) -> Any:
    return cli(config, "scheme", "detect", *options, "--secret", "env:SECRET", SECRET=secret)


@pytest.mark.parametrize("number", [1, 2])
def test_the_toml_that_detect_prints_works(tmp_path: Path, number: int) -> None:
    config, options = captured_orders(tmp_path, "acme", number)
    found = detected(config, *options)
    assert found.returncode == 0, found.stderr
    assert NEW not in found.stdout
    config.write_text(found.stdout)
    done = cli(config, "verify", "--request", options[1], SECRET=NEW)
    assert done.returncode == 0, done.stdout + done.stderr
    nothing = detected(config, *options, secret="other")
    assert nothing.returncode == 1
    assert "no scheme matches with this secret. Tried:" in nothing.stdout
    assert "presets" in nothing.stdout
    assert tomllib.loads(nothing.stdout) == {}, "it may be added to a config"
    assert nothing.stderr.index("--url https://") < nothing.stderr.index("the secret is wrong")


def test_detect_shows_what_it_reads_from_each_capture(tmp_path: Path) -> None:
    config, options = captured_orders(tmp_path, "acme", 2)
    shown = " ".join(detected(config, *options).stdout.split())
    assert "topic order.created, the standard topic order.created" in shown
    assert "resource id 71" in shown
    assert "resource id 72" in shown
    as_json = json.loads(detected(config, *options, "--json").stdout)
    assert [one["resource_id"] for one in as_json["captures"]] == ["71", "72"]
    assert {one["data"] for one in as_json["captures"]} == {"json:data, with id, total"}
    assert [one["file"] for one in as_json["captures"]] == options[1::2]
    assert tomllib.loads(as_json["toml"])["stores"]["mystore"]["signing_secrets"] == ["env:SECRET"]


def test_detect_shows_what_it_takes_as_the_data(tmp_path: Path) -> None:
    """With the order under a name of the store's own, `data` is the whole body; nothing said so."""
    config, file = tmp_path / "config.toml", tmp_path / "request"
    config.write_text(CONFIG)
    for name, read in (("thing", "body, with type, thing"), ("payload", "json:payload, with total")):
        body = json.dumps({"type": "order.created", name: {"total": "1.00"}}).encode()
        file.write_bytes(write({"x-sig": hmac.digest(NEW.encode(), body, "sha256").hex()}, body))
        found = detected(config, "--request", str(file))
        assert re.search(rf"^#   data +{read}$", found.stdout, re.MULTILINE), found.stdout


def test_detect_complains_of_what_is_empty_and_fails_without_a_topic(tmp_path: Path) -> None:
    config, file = tmp_path / "config.toml", tmp_path / "request"
    config.write_text(CONFIG)
    body = b'{"amount":7}'
    file.write_bytes(write({"x-sig": hmac.digest(NEW.encode(), body, "sha256").hex()}, body))
    found = detected(config, "--request", str(file))
    assert found.returncode == 1
    assert 'NONE: set topic, or topic = ["const:NAME"]' in found.stdout
    assert "NONE: set resource_id" in found.stdout
    assert tomllib.loads(found.stdout)["schemes"]["mystore"]["headers"] == ["x-sig"]


def test_detect_prints_the_url_where_it_is_signed_and_what_is_ambiguous(tmp_path: Path) -> None:
    config, file = tmp_path / "config.toml", tmp_path / "request"
    config.write_text(CONFIG)
    url, body = "https://hooks.example.com/webhooks/acme", b'{"type":"order.created","data":{"id":7}}'
    mac = hmac.digest(NEW.encode(), url.encode() + body, "sha256").hex()
    file.write_bytes(write({"x-sig": mac, "x-sig-copy": mac}, body))
    found = detected(config, "--request", str(file), "--url", url)
    assert found.returncode == 0
    assert tomllib.loads(found.stdout)["stores"]["mystore"]["url"] == url
    assert "# ambiguous: these captures also match" in found.stdout
    assert '"x-sig-copy"' in found.stdout
    assert detected(config, "--request", str(file)).returncode == 1


@pytest.mark.parametrize("number", [1, 2])
def test_five_orders_of_a_detected_store_are_five_events(server_url: str, tmp_path: Path, number: int) -> None:
    """A store that signs SHOP.TIME.BODY: the constant header is signed, but it is no delivery id."""

    def order(total: int) -> tuple[dict[str, str], bytes]:
        moment, body = str(int(time.time())), b'{"event":"order.updated","data":{"id":7,"total":%d}}' % total
        mac = hmac.digest(NEW.encode(), f"4711.{moment}.".encode() + body, "sha256").hex()
        return {"x-shop-id": "4711", "x-time": moment, "x-sig": mac}, body

    options: list[str] = []
    for total in range(number):
        (tmp_path / f"order{total}").write_bytes(write(*order(total)))
        options += ["--request", str(tmp_path / f"order{total}")]
    (tmp_path / "empty.toml").write_text("")
    found = detected(tmp_path / "empty.toml", *options)
    assert "no delivery id was found" in found.stdout
    system = System(tmp_path, server_url, more=found.stdout.replace("env:SECRET", NEW))
    try:
        system.start("web")
        answers = []
        for total in range(5):
            headers, body = order(100 * number + total)  # not those of another run on this server
            answers.append(system.http.post("/webhooks/mystore", headers=headers, content=body))
        assert [answer.status_code for answer in answers] == [200] * 5
        assert len({answer.text for answer in answers}) == 5
        assert not any("duplicate" in answer.text for answer in answers)
    finally:
        system.close()


def test_detect_names_a_matching_preset(tmp_path: Path) -> None:
    config, options = captured_orders(tmp_path, "shop", 1)
    assert 'scheme = "shopify"' in detected(config, *options).stdout


def test_schemes_are_listed_with_their_stores_and_shown_as_toml(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    rows = {row["scheme"]: row for row in json.loads(cli(config, "scheme", "list", "--json").stdout)}
    assert len(rows) == len(PRESETS) + 3
    assert rows["timed"]["stores"] == ["acme", "other"]
    assert rows["timed"]["from"] == f"{config}:15"
    assert rows["stripe"] == {
        "scheme": "stripe",
        "from": "preset",
        "headers": ["Stripe-Signature"],
        "form": "v1= hex, list",
        "signed": "{timestamp}.{body}",
        "stores": [],
    }
    assert "storehooks scheme detect" in cli(config, "scheme").stdout
    assert "# tolerance = 300, the default" in cli(config, "scheme", "show", "stripe").stdout
    config.write_text(cli(config, "scheme", "show", "shopware").stdout)
    assert load(config, {}).known_schemes["shopware"].signed == "{body}"


def test_a_secret_is_never_shown() -> None:
    store = Store("x", load(ROOT / "config.example.toml", {}).known_schemes["stripe"], (Secret(b"hidden"),))
    assert "hidden" not in repr(store)
