"""Logs: an exception is told by its type and place, never by its message."""

from __future__ import annotations

import subprocess
import sys

import orjson

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
