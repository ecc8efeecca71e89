"""Captured requests of providers over HTTP: accepted, refused if changed, and read by a worker as the provider says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.support.captures import CAPTURES, Capture, Message
from tests.support.harness import System, eventually, own_server

SUPPORTED = [capture for capture in CAPTURES if not capture.unsupported]
CHANGED = {"mercadopago": ("12345678", "22345678"), "ecwid": ("80aece08", "90aece08"), "adyen": ("order-1", "order-9")}
"""Where the body is not signed: what is signed, and another value."""
THIN = {"nuvemshop"}
"""No id, and a body that is equal after every change: never a duplicate."""
PLUGIN = """
import json
from pathlib import Path
from workers import Router
router = Router("seen")
FIELDS = ("id", "status", "total", "currency", "name", "email", "customer.email")

def read(record, path):
    try:
        for name in path.split("."):
            record = getattr(record, name)
    except Exception:
        return None
    return str(record)

@router.on("*")
def seen(event, ctx):
    values = [event.topic, event.delivery_id, event.resource_id]
    line = {"id": event.id, "event": values, "record": {path: read(event.record, path) for path in FIELDS}}
    with Path(__file__).with_name("seen.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\\n")
"""


class Sent(NamedTuple):
    """The answers to a message, to the same again, and to a changed one."""

    message: Message
    first: httpx2.Response
    again: httpx2.Response
    changed: httpx2.Response

    @property
    def ids(self) -> list[str]:
        answer = self.first.json()
        return list(answer["ids"]) if "ids" in answer else [answer["id"]]


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One web process with a store for each provider."""
    more = "\n".join(capture.toml() for capture in SUPPORTED)
    with own_server(tmp_path_factory.mktemp("server")) as server:
        system = System(tmp_path_factory.mktemp("system"), server.url, more=more, plugin=PLUGIN)
        system.start("web", "worker", "housekeeper")
        yield system
        system.close()


@pytest.fixture(scope="module")
def sent(web: System) -> dict[str, list[Sent]]:
    """Everything is sent first: the worker runs the events meanwhile."""
    return {
        capture.provider: [
            Sent(message, post(web, capture, message), post(web, capture, message), post(web, capture, changed))
            for message in capture.messages
            for changed in (_changed(capture, message),)
        ]
        for capture in SUPPORTED
    }


def _changed(capture: Capture, message: Message) -> Message:
    old, new = CHANGED.get(capture.provider, ("", ""))
    if not old:
        return Message(message.sent, message.query, message.body[:-1] + b"9" + message.body[-1:], [])
    old, new = (old, new) if message is capture.messages[0] else (old.replace("-1", "-2"), new)
    return Message(message.sent, message.query.replace(old, new), message.body.replace(old.encode(), new.encode()), [])


def post(web: System, capture: Capture, message: Message) -> httpx2.Response:
    query = f"?{message.query}" if message.query else ""
    return web.http.post(f"/webhooks/{capture.name}{query}", headers=message.sent, content=message.body)


def lines(web: System) -> dict[str, dict[str, Any]]:
    file = web.folder / "seen.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {line["id"]: line for line in found}


@pytest.mark.parametrize("capture", SUPPORTED, ids=lambda capture: capture.provider)
def test_a_captured_request_is_accepted_once_refused_if_changed_and_read(
    capture: Capture, web: System, sent: dict[str, list[Sent]]
) -> None:
    for one in sent[capture.provider]:
        assert (one.first.status_code, one.first.json()["status"]) == (200, "accepted")
        expected = "accepted" if capture.preset in THIN else "duplicate"
        assert (one.again.status_code, one.again.json()["status"]) == (200, expected)
        assert one.changed.status_code == 401
        ids = one.ids
        seen = eventually(lambda ids=ids: (found := lines(web)) and set(ids) <= set(found) and found, within=60)
        assert [seen[key]["event"] for key in ids] == [
            [event["topic"], event["id"], event["resource_id"]] for event in one.message.events
        ]
        for key, event in zip(ids, one.message.events, strict=True):
            assert event.get("record", {}).items() <= seen[key]["record"].items()
