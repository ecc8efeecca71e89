"""Logs: an exception is logged with its type and place, never with its message; repeats are throttled."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest
from structlog.testing import capture_logs

from receiver import logs

CODE = """
import logging
from receiver import logs

logs.setup("test")

def fails():
    raise ValueError("whsec_quoted")

for log in (logging.getLogger("gunicorn.error"), logs.get("ours")):
    try:
        fails()
    except ValueError as error:
        log.exception("it failed")
        log.error("it failed", exc_info=error)
logging.getLogger("gunicorn.error").info("fine")
"""


def test_an_exception_is_logged_without_its_message() -> None:
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True)
    *lines, last = [orjson.loads(line) for line in ended.stderr.splitlines()]
    assert b"whsec" not in ended.stderr
    assert [(line["event"], line["exception"]) for line in lines] == [("it failed", "ValueError")] * 4
    assert all(line["at"][-1].endswith(" fails") for line in lines)
    assert set(last) == {"event", "level", "timestamp", "process"}


def test_the_same_event_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled, now = logs.ThrottledLog(logs.get("ours")), 1000.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    with capture_logs() as lines:
        for seconds in (0, 30, 59, 61):
            now = 1000.0 + seconds
            throttled.error("disk full")
            throttled.info("waiting")
    assert [line["event"] for line in lines] == ["disk full", "waiting"] * 2
