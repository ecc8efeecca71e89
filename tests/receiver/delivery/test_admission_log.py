"""The log of admission: what a person must act on has the level error, also where it is only counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from receiver import logs
from receiver.delivery.admission import Admission
from receiver.delivery.bounded_spool import BoundedSpool
from receiver.delivery.refusal_log import RefusalLog
from receiver.delivery.secret_cache import SecretCache
from receiver.delivery.storage import NotStored, Stored
from receiver.inbox.counter_buffer import CounterBuffer
from tests.support.harness import System
from tests.support.logged_lines import capture_logs


@pytest.fixture
def admission(system: System) -> Admission:
    cache = SecretCache(system.config, system.client)
    return Admission(system.config.known_stores, b"key", cache, CounterBuffer(system.client), RefusalLog(Path(), None))


def test_a_delivery_that_nothing_can_store_is_an_error_and_a_full_store_a_warning(
    system: System, admission: Admission
) -> None:
    delivery = system.delivery()
    with capture_logs() as lines:
        admission.answer(delivery, NotStored("neither the inbox nor the spool can take it"))
        admission.answer(delivery, Stored("full", delivery.event.id))
        admission._counted.flush()
    assert [line["log_level"] for line in lines if line["event"] == "deliveries answered 503"] == ["error", "warning"]


def test_unreadable_deliveries_without_a_line_are_counted_as_errors(system: System, admission: Admission) -> None:
    delivery = replace(system.delivery(), unreadable="its body is not JSON")
    with capture_logs() as lines:
        for _ in range(logs.LINES_A_SECOND * 3):
            admission.answer(delivery, Stored("accepted", delivery.event.id))
        admission._counted.flush()
    assert sum(line.get("count", 1) for line in lines) == logs.LINES_A_SECOND * 3
    assert lines[-1]["event"] == "more unreadable deliveries, without a line each"
    assert {line["log_level"] for line in lines} == {"error"}


def test_a_spool_that_takes_no_delivery_is_an_error(system: System) -> None:
    with capture_logs() as lines:
        BoundedSpool(system.config).outage.failed(why="disk I/O error")
    assert [(line["event"], line["log_level"]) for line in lines] == [("the spool cannot take deliveries", "error")]
