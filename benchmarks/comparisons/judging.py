"""Judging: the time to verify and read one delivery, against its hashes and its JSON with the standard library.

The lowest time of many counts: everything else that the machine does can only add to it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable

from benchmarks import load
from benchmarks.comparison import Comparison
from benchmarks.targets import US
from receiver.contract.intake import receive
from receiver.contract.signing.grammar import Secret
from receiver.contract.signing.signatures import STANDARD_WEBHOOKS
from receiver.contract.stores import Store

CALLS = 50


class Judging(Comparison):
    name = "judging"
    description = (
        "microseconds for one delivery of 2 KiB: verify and read it, against hmac + json.loads + sha256 of its bytes"
    )
    systems = (US, "standard library")

    def start(self) -> None:
        self._body = load.body()
        self._headers = load.headers("msg_1", self._body)
        self._store = Store(load.STORE, STANDARD_WEBHOOKS, (Secret(load.SECRET_BYTES),))
        self._now = float(self._headers["webhook-timestamp"])

    def turn(self, system: str) -> dict[str, float]:
        return {"us": self._lowest(self._judge if system == US else self._hash_and_parse)}

    def _judge(self) -> object:
        return receive(self._headers, self._body, store=self._store, now=self._now)

    def _hash_and_parse(self) -> object:
        mac = hmac.digest(load.SECRET_BYTES, self._body, "sha256")
        return mac, json.loads(self._body), hashlib.sha256(self._body).digest()

    def _lowest(self, call: Callable[[], object]) -> float:
        lowest, end = float("inf"), time.perf_counter() + self.timing.seconds
        while (started := time.perf_counter()) < end:
            for _ in range(CALLS):
                call()
            lowest = min(lowest, time.perf_counter() - started)
        return lowest / CALLS * 1e6
