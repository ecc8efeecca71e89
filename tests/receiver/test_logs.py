"""Logs: an exception is logged with its type and place, never with its message; repeats are throttled or counted."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading

import orjson
import pytest

from receiver import logs
from tests.support.harness import eventually
from tests.support.logged_lines import capture_logs

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
for name in ("httpx", "httpx2", "httpcore.http11", "urllib3.connectionpool"):
    logging.getLogger(name).info("GET https://shop.example/customers?email=ada@example.com&token=whsec_1")
"""
THREAD = """
import threading
from receiver import logs

logs.setup("web")
thread = threading.Thread(target=lambda: logs.get("ours").info("fine"))
thread.start()
thread.join()
"""


EVIL_CODE = """
import logging
from receiver import logs

logs.setup("test")
evil = "\\x1b[2J \\x9b31m \\u202ereversed \\x00 \\r end"
logs.get("ours").error("ours " + evil, why=evil, names=[evil])
logging.getLogger("gunicorn.error").error("theirs %s", evil)
"""


def test_a_log_line_cannot_control_a_terminal() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "wb") as terminal:
        subprocess.run([sys.executable, "-c", EVIL_CODE], stderr=terminal, check=True)
    shown = re.sub(r"\x1b\[\d*m", "", os.read(ours, 1 << 16).decode().replace("\r\n", "\n"))
    os.close(ours)
    assert not set("\x1b\x9b\u202e\x00\r") & set(shown), shown
    assert len(re.findall(r"\\(?:x|u00)1b\[2J", shown)) == 4
    assert shown.count("\\u202ereversed") == 4


def test_an_exception_is_logged_without_its_message() -> None:
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True)
    *lines, last = [orjson.loads(line) for line in ended.stderr.splitlines()]
    assert b"whsec" not in ended.stderr
    assert [(line["event"], line["exception"]) for line in lines] == [("it failed", "ValueError")] * 4
    assert all(line["at"][-1].endswith(" fails") for line in lines)
    assert set(last) == {"event", "level", "timestamp", "process"}


def test_a_line_of_any_thread_names_its_process() -> None:
    ended = subprocess.run([sys.executable, "-c", THREAD], capture_output=True, check=True)
    assert orjson.loads(ended.stderr)["process"] == "web"


def test_the_same_event_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled, now = logs.ThrottledLog(logs.get("ours")), 1000.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    with capture_logs() as lines:
        for seconds in (0, 30, 59, 61):
            now = 1000.0 + seconds
            throttled.error("disk full")
            throttled.error("waiting")
    assert [line["event"] for line in lines] == ["disk full", "waiting"] * 2


def test_the_same_event_is_logged_for_each_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a second store with the same problem would have no line as long as the first one has it."""
    throttled = logs.ThrottledLog(logs.get("ours"))
    monkeypatch.setattr(logs.time, "monotonic", lambda: 1000.0)
    with capture_logs() as lines:
        for store in ("north", "south", "north"):
            throttled.error("rows stay", store=store, why="E")
    assert [line["store"] for line in lines] == ["north", "south"]


def test_an_outage_is_logged_when_it_begins_once_a_minute_and_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    outage = logs.OutageLog(logs.get("ours"), begins="away", ends="back")
    with capture_logs() as lines:
        outage.worked()
        for tenths in range(1500):
            now = 1000.0 + tenths / 10
            outage.failed(why="ConnectionError")
        outage.worked()
        outage.worked()
    assert [(line["event"], line["log_level"], line.get("seconds")) for line in lines] == [
        ("away", "warning", None),
        ("away", "warning", 60),
        ("away", "warning", 120),
        ("back", "info", 149.9),
    ]


def test_an_outage_that_comes_and_goes_is_not_logged_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    outage = logs.OutageLog(logs.get("ours"), begins="away", ends="back")
    with capture_logs() as lines:
        for second in range(60):
            now = 1000.0 + second
            outage.failed()
            now += 0.5
            outage.worked()
    assert [line["event"] for line in lines] == ["away", "back"] * 6


def test_a_success_that_proves_little_ends_an_outage_only_after_a_quiet_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    outage = logs.OutageLog(logs.get("ours"), begins="away", ends="back")
    with capture_logs() as lines:
        outage.failed()
        for second in range(1, 3600):
            now = 1000.0 + second
            if second == 5:
                outage.failed()
            outage.worked(quiet=10)
    assert [(line["event"], line.get("seconds")) for line in lines] == [("away", None), ("back", 5.0)]


def test_what_happens_often_is_counted_and_logged_by_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "COUNT_SECONDS", 3600.0)
    counted = logs.CountedLog(logs.get("ours"))
    with capture_logs() as lines:
        for _ in range(1000):
            counted.add("refused", store="north", reason="too-old")
        counted.add("refused", store="?", reason="unknown-store")
        counted.flush()
        counted.flush()
    assert [(line["store"], line["reason"], line["count"]) for line in lines] == [
        ("north", "too-old", 1000),
        ("?", "unknown-store", 1),
    ]


def test_a_failure_whose_retry_works_at_once_is_no_outage_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    outage = logs.OutageLog(logs.get("ours"), begins="away", ends="back", level="error", at_failure=2)
    with capture_logs() as lines:
        for _ in range(3):
            now += 10.0
            outage.failed()
            outage.worked()
        outage.failed()
        now += 0.25
        outage.failed()
        outage.worked()
    assert [(line["event"], line["log_level"], line.get("seconds")) for line in lines] == [
        ("away", "error", None),
        ("back", "info", 0.2),
    ]


def test_what_has_no_line_is_counted_at_the_level_of_the_lines() -> None:
    log = logs.get("ours")
    counted = logs.CountedLog(log, timer=False)
    limited = logs.LimitedLog(log, counted, level="error", more="more failures")
    with capture_logs() as lines:
        for number in range(logs.LINES_A_SECOND + 2):
            limited.add("failure", {"store": "north"}, number=number)
        counted.flush()
    assert [line["number"] for line in lines[:-1]] == list(range(logs.LINES_A_SECOND))
    assert lines[-1] == {"event": "more failures", "log_level": "error", "store": "north", "count": 2}


def test_counts_are_written_once_a_thread_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one that could not be, a process counted for ever and wrote nothing."""
    monkeypatch.setattr(logs, "COUNT_SECONDS", 0.01)
    counted, start, tried = logs.CountedLog(logs.get("ours")), threading.Thread.start, []

    def refuse_once(thread: threading.Thread) -> None:
        tried.append(thread)
        if len(tried) == 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    with capture_logs() as lines:
        for _ in range(3):
            counted.add("refused", store="north")
        eventually(lambda: lines, what="the counts are written")
    assert sum(line["count"] for line in lines) == 3
