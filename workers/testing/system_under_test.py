"""The real pipeline in a test: start it with plugins, send it signed events, read how each event ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers.testing.events import new_delivery_id, sample_data

if TYPE_CHECKING:
    from receiver.inbox.queries.events import EventRecord, RunRecord
    from workers.testing.local_system import LocalSystem

SETTLES_WITHIN = 20.0


class SentEvent:
    """An event that a test sent, as it was when last read."""

    def __init__(self, record: EventRecord, answer: str) -> None:
        self.record = record
        self.id = record.summary.id
        self.answer = answer
        """accepted or duplicate"""
        self.status = record.summary.status
        """settled or failed; open while a delayed or retried run waits"""

    def run(self, handler: str) -> RunRecord:
        """The run of a handler, by its full name (`loyalty.award`) or its name within the plugin (`award`)."""
        for run in self.record.runs:
            if handler in (run.handler, run.handler.partition(".")[2]):
                return run
        runs = ", ".join(run.handler for run in self.record.runs) or f"none ({self.record.reason})"
        raise AssertionError(f"{handler} was not called for this event; runs: {runs}")


class SystemUnderTest:
    """Receiver, inbox and workers on the embedded server. `start` it with plugins, `send` it events."""

    def __init__(self, folder: Path, *, api: str = "") -> None:
        self._folder = folder
        self._api = api
        self._local_system: LocalSystem | None = None
        self._occurred: dict[str, float] = {}
        """By delivery id, when its event occurred."""

    @property
    def files(self) -> Path:
        """The workers' working directory. Files that handlers write to relative paths are here."""
        return self.local_system.files

    @property
    def local_system(self) -> LocalSystem:
        """The processes; started with the installed plugins if `start` was not called."""
        if self._local_system is None:
            self.start()
        assert self._local_system is not None
        return self._local_system

    def start(
        self, *plugins: str | Path, settings: Mapping[str, Mapping[str, Any]] | None = None, config: str = ""
    ) -> None:
        """Start with these plugins (files or modules); without any, with the installed plugins.

        `settings` is the content of `[plugins]`; `config` is further TOML for the config file.
        """
        from workers.testing.local_system import LocalSystem

        names = [str(Path(plugin).absolute()) if str(plugin).endswith(".py") else str(plugin) for plugin in plugins]
        self._local_system = LocalSystem(
            self._folder, plugins=names, settings=settings, installed=not names, api=self._api, more=config
        )
        self._local_system.start("server")
        self._local_system.start("web", "workers")

    def send(
        self,
        topic: str,
        data: Mapping[str, Any] | None = None,
        *,
        exact: bool = False,
        delivery_id: str = "",
        wait: Sequence[str] = (),
    ) -> SentEvent:
        """Sign an event as the store would, post it to the receiver, and wait until it is settled or has failed.

        With `wait=("open",)` it returns as soon as the event is routed, also while runs wait.
        """
        import httpx2

        from receiver.contract.compose import compose, event_id_in, in_store_shape
        from receiver.contract.signing.sources import with_query
        from receiver.inbox.outcomes import EventStatus
        from workers.testing.local_system import STORE

        store = self.local_system.config.known_stores[STORE]
        resource = in_store_shape(store.scheme, topic, sample_data(topic, data, exact=exact))
        delivery_id = delivery_id or new_delivery_id()
        now = time.time()
        occurred = self._occurred.setdefault(delivery_id, now)  # as in a store: delivered again, it is the same event
        request = compose(store, topic=topic, delivery_id=delivery_id, data=resource, now=now, occurred=occurred)
        url, headers = with_query(store.url, request.headers)
        response = httpx2.post(url, headers=headers, content=request.body, timeout=30, trust_env=False)
        answer = response.raise_for_status().json()

        statuses = wait or (EventStatus.SETTLED, EventStatus.FAILED)
        return SentEvent(self._wait_for(event_id_in(answer), statuses), answer["status"])

    def _wait_for(self, event: str, statuses: Sequence[str]) -> EventRecord:
        from receiver.inbox.outcomes import EventStatus
        from workers.testing.local_system import wait_until

        def routed_record() -> EventRecord | None:
            record = self.local_system.events.event(event)
            if record is None or not (record.runs or record.summary.status != EventStatus.OPEN):
                return None
            return record if EventStatus.OPEN in statuses or record.summary.status in statuses else None

        return wait_until(routed_record, what=f"the event is {' or '.join(statuses)}", within=SETTLES_WITHIN)

    def skip_delays(self, sent: SentEvent) -> SentEvent:
        """Make delayed runs and retries due at once, until the event is settled or has failed."""
        from receiver.inbox import Administration, Housekeeping, keys
        from receiver.inbox.outcomes import EventStatus
        from workers.testing.local_system import wait_until

        def closed_record() -> EventRecord | None:
            record = self.refresh(sent).record
            if record.summary.status != EventStatus.OPEN:
                return record
            waiting = [keys.run_item(sent.id, run.handler) for run in record.runs if run.due_at is not None]
            if waiting:
                Administration(self.local_system.client).make_due(waiting)
                Housekeeping(self.local_system.client).tick()
            return None

        record = wait_until(closed_record, what="the event is settled or has failed", within=SETTLES_WITHIN)
        return SentEvent(record, sent.answer)

    def refresh(self, sent: SentEvent) -> SentEvent:
        """Read the same event again."""
        record = self.local_system.events.event(sent.id)
        assert record is not None
        return SentEvent(record, sent.answer)

    def stop(self) -> None:
        """Stop all processes. The fixture calls this."""
        if self._local_system is not None:
            self._local_system.stop()
