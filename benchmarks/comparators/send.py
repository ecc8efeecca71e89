"""Fills a comparator's queue: `python -m benchmarks.comparators.send MODULE MANY`, the event as JSON on stdin."""

from __future__ import annotations

import importlib
import json
import sys

if __name__ == "__main__":
    module, many = sys.argv[1:]
    importlib.import_module(f"benchmarks.comparators.{module}").send(json.load(sys.stdin), int(many))
