"""Spans: receive, wait and run of an event in its trace, exported by OpenTelemetry.

Only with the extra `otel`, and if a variable of OpenTelemetry names an endpoint: else nothing of it is imported. The
child process makes all three when it performs the first attempt of a run. The ids of the first span follow from the
event, so that the runs of several handlers are in one trace.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from redis import Redis
from redis.exceptions import RedisError

from receiver import __version__, logs
from receiver.contract.event import Event
from receiver.inbox import Run, keys
from workers.plugins.context import trace_parent

if TYPE_CHECKING:
    from opentelemetry.context import Context as SpanParent

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
EXPORT_EVERY_MS = 1_000
SHUTDOWN_MS = 1_000

log = logs.get("child")

SpanOfRun = Callable[[Run, Event], AbstractContextManager[str]]
"""The span around a call of a handler. Its value is the `traceparent` for what the handler calls."""


def no_span(_run: Run, _event: Event) -> AbstractContextManager[str]:
    return nullcontext("")


def configured_spans(client: Redis) -> tuple[SpanOfRun, Callable[[], None]]:
    """The spans that the environment asks for, and a function that exports the last ones."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return no_span, lambda: None
    try:
        spans = RunSpans(client)
    except ImportError:
        log.warning("no spans are exported, because the extra otel is not installed")
        return no_span, lambda: None
    return spans.of, spans.flush


class RunSpans:
    def __init__(self, client: Redis) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        class EventIds(RandomIdGenerator):
            """Random ids, but for the span of an event."""

            event_id = ""

            def generate_trace_id(self) -> int:
                return _digest(self.event_id, 16) if self.event_id else super().generate_trace_id()

            def generate_span_id(self) -> int:
                return _digest(f"receive {self.event_id}", 8) if self.event_id else super().generate_span_id()

        self._client, self._trace, self._ids = client, trace, EventIds()
        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "storehooks")})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids)
        exporter = BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=EXPORT_EVERY_MS)
        self._provider.add_span_processor(exporter)
        trace.set_tracer_provider(self._provider)  # a handler's own spans are exported, too
        self._tracer = trace.get_tracer("storehooks", __version__)

    def flush(self) -> None:
        self._provider.force_flush(SHUTDOWN_MS)

    @contextmanager
    def of(self, run: Run, event: Event) -> Iterator[str]:
        parent = self._received(run, event)
        attributes = _attributes(event) | {
            "storehooks.handler": run.handler,
            "storehooks.attempt": str(run.attempts + 1),
        }
        with self._tracer.start_as_current_span("run", context=parent, attributes=attributes) as span:
            context = span.get_span_context()
            yield f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def _received(self, run: Run, event: Event) -> SpanParent:
        """Make the spans before the run, at its first attempt. Returns the first one as the parent of the run."""
        received, now = int(event.received_at.timestamp() * 1e9), time.time_ns()
        accepted = min(max(received, self._accepted_at(event)), now)
        first = self._tracer_parent(trace_parent(event))
        self._ids.event_id = event.id
        kind = self._trace.SpanKind.SERVER
        span = self._tracer.start_span("receive", first, kind, _attributes(event), start_time=received)
        self._ids.event_id = ""
        parent = self._trace.set_span_in_context(span)
        if run.attempts == 0 and run.replays == 0:
            span.end(accepted)
            wait = self._tracer.start_span("wait", parent, attributes=_attributes(event), start_time=accepted)
            wait.end(now)
        return parent

    def _tracer_parent(self, text: str) -> SpanParent | None:
        if not text:
            return None
        _, trace_id, span_id, flags = text.split("-")
        context = self._trace.SpanContext(
            int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=self._trace.TraceFlags(int(flags, 16))
        )
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(context))

    def _accepted_at(self, event: Event) -> int:
        """When it was stored (ns); 0 if that is not known."""
        try:
            return int(self._client.zscore(keys.INDEX, event.id) or 0) * 1000
        except RedisError:
            return 0


def _attributes(event: Event) -> dict[str, str]:
    return {"storehooks.event_id": event.id, "storehooks.store": event.store, "storehooks.topic": event.topic}


def _digest(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1
