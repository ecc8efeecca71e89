"""Fills a peer's queue: `python -m benchmarks.peers.fill_queue MODULE COUNT`, with the event as JSON on stdin."""

from __future__ import annotations

import importlib
import json
import sys

if __name__ == "__main__":
    module, count = sys.argv[1:]
    importlib.import_module(f"benchmarks.peers.{module}").fill(json.load(sys.stdin), int(count))
