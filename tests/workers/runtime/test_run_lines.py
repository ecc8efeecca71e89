"""Every line of the log that a run writes names it; and the trace of a delivery reaches its handler."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.forward_target import Target
from tests.support.harness import System, eventually
from workers.testing.events import make_event
from workers.testing.recording_context import make_context

PLUGIN = """
import logging, threading
from workers import Router

router = Router("shop")

@router.on("order.created", retries=(0.01,))
def greet(event, ctx):
    ctx.log.warning("said by the handler")
    thread = threading.Thread(target=logging.getLogger("library").warning, args=("said by a library",))
    thread.start()
    thread.join()
    if ctx.attempt == 1:
        raise KeyError("first")
    return ctx.trace

@router.failed
def failed(event, ctx, error):
    pass
"""
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_every_line_of_a_run_names_event_store_handler_run_and_attempt(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN)
    system.start("web", "worker", "housekeeper")
    request = system.request()
    request.headers["traceparent"] = TRACE
    event_id = system.post(request).json()["id"]
    assert system.settled(event_id, 30) == "settled"
    named = {"event_id": event_id, "store": "north", "handler": "shop.greet", "run": f"{event_id}|shop.greet"}

    def of(event: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in system.log("worker").splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == event]

    eventually(lambda: len(of("attempt failed; it will be retried")) == 1, what="the failed attempt is logged")
    for event, attempts in {
        "said by the handler": [1, 2],
        "said by a library": [1, 2],
        "attempt failed; it will be retried": [1],
    }.items():
        found = of(event)
        assert [line["attempt"] for line in found] == attempts, event
        assert all(named.items() <= line.items() for line in found), found
    assert "run" not in of("worker started")[0]
    assert system.run_of(event_id, "shop.greet").result == TRACE


OTEL = """
from opentelemetry import trace
from workers import Router

router = Router("shop")

@router.on("order.created")
def greet(event, ctx):
    with trace.get_tracer("shop").start_as_current_span("mail"):
        return ctx.trace

@router.on("order.created")
def other(event, ctx):
    return ctx.trace
"""


def spans_of(target: Target) -> list[Any]:
    """The spans that a collector got."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found = []
    for one in list(target.received):
        body = gzip.decompress(one.body) if one.headers.get("content-encoding") == "gzip" else one.body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            found += [span for scope in resource.scope_spans for span in scope.spans]
    return found


@pytest.mark.full
def test_one_trace_leads_from_the_request_to_the_handlers_own_span(make_system: Callable[..., System]) -> None:
    pytest.importorskip("opentelemetry.sdk")
    collector = Target()
    system = make_system(plugin=OTEL)
    system.start("web")
    worker = system.start("worker", env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})[0]
    request = system.request()
    request.headers["traceparent"] = TRACE
    event_id = system.post(request).json()["id"]
    system.settled(event_id, 30)
    eventually(lambda: "mail" in [one.name for one in spans_of(collector)], 30, what="the spans are exported")
    worker.stop()
    spans = spans_of(collector)
    assert {one.trace_id.hex() for one in spans} == {TRACE.split("-")[1]}
    assert {one.name for one in spans} == {"receive", "wait", "run", "mail"}
    (receive,) = {one.span_id for one in spans if one.name == "receive"}
    assert {one.parent_span_id.hex() for one in spans if one.name == "receive"} == {TRACE.split("-")[2]}
    assert {one.parent_span_id for one in spans if one.name in ("wait", "run")} == {receive}
    runs = {one.span_id for one in spans if one.name == "run"}
    (mail,) = [one for one in spans if one.name == "mail"]
    assert len(runs) == 2
    assert mail.parent_span_id in runs
    results = {system.run_of(event_id, f"shop.{name}").result for name in ("greet", "other")}
    assert results == {f"00-{TRACE.split('-')[1]}-{one.hex()}-01" for one in runs}
    order = {one.name: (one.start_time_unix_nano, one.end_time_unix_nano) for one in spans}
    assert order["receive"][0] <= order["receive"][1] <= order["wait"][1] <= order["run"][1]
    assert {path.path for path in collector.received} == {"/v1/traces"}
    texts = b"".join(one.body for one in collector.received)
    assert b"42.00" not in texts, "no content"
    collector.server_close()


def test_without_an_endpoint_no_exporter_is_imported(make_system: Callable[..., System]) -> None:
    plugin = OTEL.replace("from opentelemetry import trace\n", "import sys\n").replace(
        'with trace.get_tracer("shop").start_as_current_span("mail"):\n        return ctx.trace',
        'return str("opentelemetry.exporter" in sys.modules)',
    )
    system = make_system(plugin=plugin)
    event_id = system.accept()
    system.start("worker")
    system.settled(event_id, 30)
    assert system.run_of(event_id, "shop.greet").result == "False"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (TRACE, TRACE),
        ("", ""),
        (TRACE.upper(), ""),
        (TRACE + "\n", ""),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", ""),
        ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", ""),
        ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", ""),
        ("anything else", ""),
    ],
)
def test_only_a_valid_trace_is_given_to_a_handler(given: str, expected: str) -> None:
    event = make_event("order.created", headers={"traceparent": given})
    assert make_context(event).trace == expected
    assert make_context(make_event("order.created")).trace == ""
