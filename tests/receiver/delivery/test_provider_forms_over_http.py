"""Forms of signing beside a header over the body, over real HTTP: query, form, and signature in the body."""

from __future__ import annotations

import time
from collections.abc import Iterator

import orjson
import pytest

from receiver.contract.compose import Request
from tests.support.harness import System, eventually, own_server

SCHEMES = """
[schemes.pago]
headers = ["X-Signature"]
list_sep = ","
pair_sep = "="
sig_keys = ["v1"]
signed = "id:{query:data.id};request-id:{header:X-Request-Id};ts:{timestamp};"
timestamp = "sig:ts"
allow_unsigned_body = true
[schemes.pago.event]
topic = ["query:type"]
id = ["header:X-Request-Id"]
resource_id = ["query:data.id"]
data = ["body"]

[schemes.sms]
headers = ["X-Sms-Signature"]
algorithm = "hmac-sha1"
encoding = "base64"
signed = "{url}{form_sorted}"
[schemes.sms.event]
topic = ["const:message.received"]
id = ["form:MessageSid"]
resource_id = ["form:MessageSid"]
data = ["form"]

[schemes.mail]
signature = ["json:signature.signature"]
signed = "{timestamp}{json:signature.token}"
timestamp = "json:signature.timestamp"
allow_unsigned_body = true
dedupe = "id"
[schemes.mail.event]
topic = ["json:event-data.event"]
id = ["json:signature.token"]
data = ["json:event-data"]

[schemes.linked]
signature = ["query:hmac"]
signed = "{body}"
[schemes.linked.event]
topic = ["json:type"]
id = ["json:id"]
"""
STORES = ("pago", "sms", "mail", "linked")
KEY = "the secret of a store"
PLUGIN = """
from workers import Router
router = Router("erp")
@router.on("*")
def export(event, ctx): return f"{event.topic} {event.resource_id} {event.data.get('total')}"
"""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    stores = "".join(f'[stores.{name}]\nscheme = "{name}"\nsigning_secrets = ["{KEY}"]\n' for name in STORES)
    late = f'[stores.late]\nscheme = "hex-body"\nsigning_secrets = ["{KEY}"]\n'
    with own_server(tmp_path_factory.mktemp("server")) as server:
        system = System(tmp_path_factory.mktemp("system"), server.url, more=SCHEMES + stores + late, plugin=PLUGIN)
        system.start("web", "worker", "housekeeper")
        yield system
        system.close()


def changed(store: str, request: Request) -> Request:
    """The delivery with another value in a part that is signed."""
    headers, body = dict(request.headers), request.body
    if store == "pago":
        headers["?data.id"] += "0"
    elif store == "mail":
        document = orjson.loads(body)
        document["signature"]["token"] += "0"
        body = orjson.dumps(document)
    else:
        body = body.replace(b"42.00", b"43.00")
    assert (headers, body) != tuple(request)
    return Request(headers, body)


@pytest.mark.parametrize("store", STORES)
def test_a_delivery_is_accepted_repeated_as_a_duplicate_and_refused_if_changed(web: System, store: str) -> None:
    request = web.request(store=store, delivery_id=f"first-{store}", data={"id": f"r-{store}", "total": "42.00"})
    answer = web.post(request, store)
    assert (answer.status_code, answer.json()["status"]) == (200, "accepted")
    assert web.post(request, store).json() == {"id": answer.json()["id"], "status": "duplicate"}
    assert web.post(changed(store, request), store).status_code == 401
    record = web.ledger.event(answer.json()["id"])
    assert record
    assert record.summary.topic == ("message.received" if store == "sms" else "order.created")
    assert record.summary.resource_id == (f"first-{store}" if store == "sms" else f"r-{store}")


@pytest.mark.parametrize("store", STORES)
def test_send_signs_by_each_of_these_schemes_and_its_handler_gets_the_data(web: System, store: str) -> None:
    sent = web.run_cli("send", "order.created", "--store", store, "--set", "total=7.50")
    assert sent.returncode == 0, sent.stdout + sent.stderr
    assert "7.5" in sent.stdout
    assert web.run_cli("send", "order.created", "--store", store, "--tamper", "signature").returncode == 1
    explained = web.run_cli("verify", "--store", store, "--refused", "last")
    assert "signature-mismatch" in explained.stdout


def test_the_flask_app_reads_the_query_too(web: System) -> None:
    request = web.request(store="linked", delivery_id="by-flask")
    assert web.post(request, "l%69nked").json()["status"] == "accepted"
    assert web.post(changed("linked", request), "l%69nked").status_code == 401


def test_a_refused_delivery_with_a_signature_in_the_query_is_released_after_the_fix(web: System) -> None:
    """The scheme did not read the query on arrival. Its fields are stored all the same, but no credential."""
    request = web.request(store="linked", delivery_id="late-1", data={"id": "late", "total": "1.00"})
    sent = Request({**request.headers, "?token": "s3cr3t", "?tab": "x y"}, request.body)
    assert web.post(sent, "late").status_code == 401
    eventually(lambda: web.refusals().newest(store="late"), what="the refusal is written")
    shown = web.run_cli("refused", "show", "last", "--raw")
    assert "s3cr3t" not in shown.stdout
    assert f"?hmac: {request.headers['?hmac']}" in shown.stdout
    assert "?tab: x y" in shown.stdout
    captured = web.folder / "captured.txt"
    captured.write_text(shown.stdout)
    text = web.config_file.read_text()
    web.config_file.write_text(text.replace('scheme = "hex-body"', 'scheme = "linked"'))
    assert web.run_cli("verify", "--store", "late", "--request", str(captured)).returncode == 0
    assert web.run_cli("verify", "--store", "late", "--refused", "last").returncode == 0
    released = web.run_cli("refused", "release", "--store", "late", "--yes")
    assert "1 event accepted" in released.stdout, released.stdout + released.stderr


def test_a_captured_request_line_holds_the_query(web: System) -> None:
    request = web.request(store="linked", delivery_id="captured")
    captured = web.folder / "with_line.txt"
    line = f"POST /webhooks/linked?hmac={request.headers['?hmac']} HTTP/1.1\n\n"
    captured.write_bytes(line.encode() + request.body)
    assert web.run_cli("verify", "--store", "linked", "--request", str(captured)).returncode == 0


def test_reading_costs_of_a_long_query_and_form_are_bounded(web: System) -> None:
    """A flood of fields is judged at once: what is signed in body or query is read before it is verified."""
    request = web.request(store="sms", delivery_id="flood")
    long_query = "&".join("a" for _ in range(1900))
    bodies = [b"&".join([b"a=%41"] * 100_000), b"a=" + b"%41" * 300_000, b"{" * 900_000, b"a=" + b"+" * 900_000]
    for store in STORES:
        for body in bodies:
            started = time.perf_counter()
            answer = web.http.post(f"/webhooks/{store}?{long_query}", headers={"x-sms-signature": "x"}, content=body)
            assert answer.status_code == 401
            assert time.perf_counter() - started < 6
    assert web.post(request, "sms").json()["status"] == "accepted"
