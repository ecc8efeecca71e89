"""Edit and resend, curl, download, composer, rehearsal: what a person does with one event or with a new one."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from receiver.contract.compose import Request
from receiver.contract.errors import ConfigError
from receiver.contract.signing.signatures import sign
from tests.support import batches
from tests.support.console import Browser, RunningConsole, plain, running_console
from tests.support.harness import signed_store
from workers.operations import event_export
from workers.operations.composing import send_request
from workers.operations.edited_events import indented, text_of

PLUGIN = """
from workers import Router
router = Router("erp")

@router.on("order.*", retries=0)
def export(event, ctx):
    ctx.once("mail", lambda: "sent")
    ctx.api.customers.list(email=event.data.get("email"))
    return "exported"
"""


MORE = signed_store("untimed", "woocommerce") + batches.CONFIG


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(
        tmp_path_factory.mktemp("console"), "web", "worker", "housekeeper", plugin=PLUGIN, more=MORE
    ) as found:
        yield found


@pytest.fixture(scope="module")
def operator(console: RunningConsole) -> Browser:
    return console.browser().log_in()


def settled(console: RunningConsole, topic: str = "order.created", **data: object) -> str:
    event_id = console.system.deliver(topic, data={"id": 1001, "total": "42.00", **data})
    console.system.settled(event_id, 30)
    return event_id


def posted(console: RunningConsole, body: bytes) -> str:
    """Deliver a body as it is, with a signature."""
    store, headers = console.system.config.known_stores["north"], console.system.request().headers
    signed = sign(store.scheme, secret=store.secrets[0], headers=headers, body=body, now=time.time(), url=store.url)
    event_id: str = console.system.post(Request({**headers, **signed.headers}, body)).json()["id"]
    return event_id


def textarea(page: str) -> str:
    found = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.S)
    assert found
    return plain_text(found[1])


def plain_text(text: str) -> str:
    from html import unescape

    return unescape(text)


# Edit and resend


def test_an_edited_event_is_a_new_one_that_says_so(console: RunningConsole, operator: Browser) -> None:
    event_id = settled(console, email="ada@example.org")
    operator.get(f"/events/{event_id}")
    form = operator.post(f"/events/{event_id}/edit").text
    body = textarea(form)
    assert "ada@example.org" in body
    assert '\n  "data": {\n    "id": 1001,' in body
    text = operator.press(f"/events/{event_id}/resend", body=body.replace("42.00", "43.00"))
    new_id = operator.page.partition("<code>")[2].partition("<")[0]
    assert f"the new event is {new_id}, made from {event_id}" in text
    assert f"from edited: made by a person from {event_id}" in text
    assert "stored without a signature: a person sent it" in text
    console.system.settled(new_id, 30)
    event = console.system.ledger.as_event(new_id)
    assert event
    assert (event.data["total"], event.topic, event.source) == ("43.00", "order.created", "edited")
    old = console.system.ledger.as_event(event_id)
    assert old
    assert old.data["total"] == "42.00"
    audit = operator.text("/audit")
    assert f"edit event {event_id}" in audit
    assert "43.00" not in audit


def test_what_cannot_be_read_is_not_sent_and_not_lost(console: RunningConsole, operator: Browser) -> None:
    event_id = settled(console)
    operator.get(f"/events/{event_id}")
    before = console.system.ledger.counters().total["accepted"]
    answer = operator.post(f"/events/{event_id}/resend", body='{"type": "order.created", ')
    assert answer.status_code == 400
    assert "It cannot be read: the body is not JSON" in plain(answer.text)
    assert textarea(answer.text) == '{"type": "order.created", '
    assert console.system.ledger.counters().total["accepted"] == before


def test_a_batch_that_was_unreadable_is_sent_with_all_its_events(console: RunningConsole, operator: Browser) -> None:
    """Only the first of them was accepted, and the page said that it was sent."""
    whole = json.dumps(batches.items("edited", 3)).encode()
    event_id = batches.post(console.system, whole[:-1]).json()["ids"][0]
    operator.get(f"/events/{event_id}")
    assert textarea(operator.post(f"/events/{event_id}/edit").text) == whole[:-1].decode()
    text = operator.press(f"/events/{event_id}/resend", body=whole.decode())
    made = [one for one in console.system.ledger.events(store="batches") if one.source == "edited"]
    made.sort(key=lambda one: one.resource_id)
    assert [one.resource_id for one in made] == ["edited_0", "edited_1", "edited_2"]
    first = made[0].id
    assert f"the 3 new events of the batch begin with {first}, made from {event_id}" in text
    assert operator.page.partition("<code>")[2].partition("<")[0] == first
    for place, one in enumerate(made):
        new = console.system.ledger.as_event(one.id)
        assert new
        assert json.loads(new.body) == batches.item(f"edited_{place}")
        assert new.delivery_id == f"edited_{new.id[:12].lower()}"
        assert f"made by a person from {event_id}" in operator.text(f"/events/{new.id}")
    operator.get(f"/events/{first}")
    again = operator.press(f"/events/{first}/resend", body=json.dumps(batches.item("edited_9")))
    assert f"made from {first}" in again


def test_a_batch_with_an_event_that_cannot_be_read_is_not_sent(console: RunningConsole, operator: Browser) -> None:
    event_id = batches.post(console.system, b"[").json()["ids"][0]
    operator.get(f"/events/{event_id}")
    before = console.system.ledger.counters().total["accepted"]
    answer = operator.post(f"/events/{event_id}/resend", body=json.dumps([batches.item("one"), {"id": "two"}]))
    assert answer.status_code == 400
    assert "Event 2 of the batch cannot be read: no topic at json:type" in plain(answer.text)
    assert console.system.ledger.counters().total["accepted"] == before


def test_a_sender_cannot_make_an_event_look_edited(console: RunningConsole, operator: Browser) -> None:
    request = console.system.request()
    request.headers["storehooks-edited-from"] = "x" * 26
    event_id = console.system.post(request).json()["id"]
    assert "made by a person" not in operator.text(f"/events/{event_id}")


def test_an_event_that_is_too_large_to_be_edited(console: RunningConsole, operator: Browser) -> None:
    event_id = settled(console, note="x" * 150_000)
    operator.get(f"/events/{event_id}")
    answer = operator.post(f"/events/{event_id}/edit")
    assert (answer.status_code, "The console edits at most 100,000" in answer.text) == (400, True)


@pytest.mark.parametrize(
    "body",
    [b'{"a":[1,2,{"b":{}}],"c":[],"d":1.10,"e":12345678901234567890,"f":"{[,:]}\\" "}', b"[]", b'[{"a":null},-1e5]'],
)
def test_indented_json_has_the_same_tokens(body: bytes) -> None:
    text = indented(body.decode())
    assert json.loads(text) == json.loads(body)
    assert re.sub(r'("(?:[^"\\]|\\.)*")|\s', r"\1", text) == re.sub(r'("(?:[^"\\]|\\.)*")|\s', r"\1", body.decode())


def test_deep_json_is_not_indented_to_many_times_its_size() -> None:
    deep = "[" * 900 + "1," * 40_000 + "1" + "]" * 900
    assert json.loads(deep)
    assert indented(deep) == deep
    assert text_of(b"[" * 8_000) == ("[" * 8_000, False)


def test_a_body_with_lines_of_another_system_can_be_sent_back(console: RunningConsole, operator: Browser) -> None:
    body = b'{\r\n  "type": "order.created",\r\n  "data": {"id": 1001, "name": "a\xe2\x80\x8eb"}\r\n}'
    event_id = posted(console, body)
    shown = textarea(operator.post(f"/events/{event_id}/edit").text)
    assert shown == '{\n  "type": "order.created",\n  "data": {"id": 1001, "name": "a\\u200eb"}\n}'


def test_a_body_that_is_not_json_is_not_changed(console: RunningConsole, operator: Browser) -> None:
    event_id = posted(console, "name=x&note=a\u200eb\r\n".encode())
    answer = operator.post(f"/events/{event_id}/edit")
    assert (answer.status_code, "is not JSON and has characters" in answer.text) == (400, True)
    event_id = posted(console, b'{"not": "ended')
    assert textarea(operator.post(f"/events/{event_id}/edit").text) == '{"not": "ended'


def test_what_the_edit_form_has_can_be_sent(console: RunningConsole, operator: Browser) -> None:
    event_id = settled(console, items=[number % 10 for number in range(40_000)])
    operator.get(f"/events/{event_id}")
    shown = textarea(operator.post(f"/events/{event_id}/edit").text)
    answer = operator.post(f"/events/{event_id}/resend", body=shown.replace("\n", "\r\n"))
    assert answer.status_code == 303


def test_hidden_characters_are_visible_while_edited(console: RunningConsole, operator: Browser) -> None:
    event_id = settled(console, name="gpj.\u202etxe")
    operator.get(f"/events/{event_id}")
    body = textarea(operator.post(f"/events/{event_id}/edit").text)
    assert "gpj.\\u202etxe" in body
    assert json.loads(body)["data"]["name"] == "gpj.\u202etxe"


# curl and download


@pytest.mark.parametrize("note", ['plain, it\'s "quoted" $HOME `id` \\n', "ümlaut \u202e and\nlines"])
def test_the_curl_command_sends_the_same_delivery(console: RunningConsole, operator: Browser, note: str) -> None:
    event_id = settled(console, note=note)
    operator.get(f"/events/{event_id}")
    page = operator.post(f"/events/{event_id}/curl").text
    done = subprocess.run(["sh", "-c", textarea(page)], capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(done.stdout) == {"id": event_id, "status": "duplicate"}, "verified, and known"
    assert f"copy as curl event {event_id}" in operator.text("/audit")


@pytest.mark.parametrize(("store", "ends"), [("north", ", which is valid for 300 s."), ("untimed", ".")])
def test_a_signature_without_a_time_does_not_end(
    console: RunningConsole, operator: Browser, store: str, ends: str
) -> None:
    """It was "valid for 300 s" with every scheme."""
    event_id = console.system.accept(store=store)
    operator.get(f"/events/{event_id}")
    assert f"with a signature made now{ends}" in plain(operator.post(f"/events/{event_id}/curl").text)


def test_the_event_is_downloaded_as_a_file_that_can_be_run(
    console: RunningConsole, operator: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    event_id = settled(console)
    operator.get(f"/events/{event_id}")
    answer = operator.post(f"/events/{event_id}/export")
    assert answer.headers["content-disposition"] == f'attachment; filename="{event_id}.json"'
    file = tmp_path_factory.mktemp("export") / "event.json"
    file.write_bytes(answer.content)
    export = event_export.read(file)
    assert export
    assert export.event.id == event_id


# The composer


def test_the_composer_sends_a_sample(console: RunningConsole, operator: Browser) -> None:
    page = operator.get("/composer?store=south&topic=product.updated").text
    assert json.loads(textarea(page))["id"]
    text = operator.press("/composer/send", store="south", topic="product.updated", data=textarea(page), id="msg_made")
    assert "Send: answered 200 accepted" in text
    assert "product.updated" in text
    again = operator.press("/composer/send", store="south", topic="product.updated", data=textarea(page), id="msg_made")
    assert "answered 200 duplicate" in again
    assert "send store south, topic product.updated, delivery msg_made" in operator.text("/audit")


@pytest.mark.parametrize("tamper", ["signature", "body", "time"])
def test_a_tampered_one_is_refused(console: RunningConsole, operator: Browser, tamper: str) -> None:
    operator.get("/composer")
    text = operator.press("/composer/send", store="north", topic="order.created", data='{"id": 1}', tamper=tamper)
    assert "Send: answered 401" in text
    assert "Invalid signature." in text
    assert "signature.." not in text
    assert "Refused deliveries of north" in text


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"data": "{"}, "The data is not JSON: Expecting"),
        ({"data": '{"id": "\\ud800"}'}, "The data cannot be sent as JSON: str is not valid UTF-8"),
        ({"data": f'{{"id": {2**70}}}'}, "The data cannot be sent as JSON: Integer exceeds 64-bit range"),
        ({"data": '{"a":' * 300 + "1" + "}" * 300}, "The data cannot be sent as JSON: Recursion limit"),
        ({"topic": "order *"}, "is not a topic"),
        ({"tamper": "everything"}, "tamper is one of"),
    ],
)
def test_a_wrong_form_is_a_sentence(operator: Browser, fields: dict[str, str], sentence: str) -> None:
    operator.get("/composer")
    answer = operator.post("/composer/send", **{"store": "north", "topic": "order.created", "data": "{}", **fields})
    assert (answer.status_code, sentence in plain(answer.text)) == (400, True), plain(answer.text)


def test_a_delivery_id_that_no_header_can_have_is_a_sentence(operator: Browser) -> None:
    operator.get("/composer")
    answer = operator.post("/composer/send", store="north", topic="order.created", data="{}", id="\u2603")
    assert (answer.status_code, "use only ASCII characters" in plain(answer.text)) == (502, True)


@pytest.mark.parametrize("answer", [b"[]", b"{}", b"null", b"<html>", b'{"ids": []}'])
def test_an_answer_of_another_program_is_a_sentence(console: RunningConsole, answer: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        config = console.system.config
        receiver = config.receiver.model_copy(update={"public_url": f"http://127.0.0.1:{server.server_port}"})
        config = config.model_copy(update={"receiver": receiver})
        with pytest.raises(ConfigError, match="answered 200, but not as storehooks does"):
            send_request(config, "north", console.system.request())


def test_it_sends_only_to_stores_of_the_config(operator: Browser) -> None:
    operator.get("/composer")
    for store in ("nowhere", "http://evil.example"):
        answer = operator.post("/composer/send", store=store, topic="order.created", data="{}")
        assert answer.status_code in (400, 404)


# Rehearsal


@pytest.mark.full
def test_a_rehearsal_shows_what_the_handler_did(console: RunningConsole, operator: Browser) -> None:
    event_id = console.system.accept("order.paid", data={"id": 7, "email": "ada@example.org"})
    operator.get(f"/events/{event_id}")
    page = operator.post(f"/events/{event_id}/rehearse", handler="erp.export")
    text = plain(page.text)
    assert page.status_code == 200, text
    assert "done after" in text
    assert "customers.list 0 {1} email hidden, may be personal" in text.partition("Calls of the store's API")[2]
    assert "What this cannot stop" in text
    audit = operator.text("/audit")
    assert f"rehearse event {event_id}, handler erp.export" in audit
    assert "nothing was stored" in audit
    assert operator.post(f"/events/{event_id}/rehearse", handler="no.such").status_code == 404
