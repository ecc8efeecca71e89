"""Ingest: the signed deliveries of 2 KiB that a receiver answers per second over 64 connections, and its latency."""

from __future__ import annotations

from benchmarks import receivers
from benchmarks.comparison import Comparison
from benchmarks.targets import US

STARTS = {
    US: receivers.storehooks,
    "naive": receivers.naive,
    "fastapi": receivers.fastapi,
    "flask hello": receivers.hello,
    "adnanh": receivers.adnanh,
}
STEADY_MS = 10
STEADY_STEPS = 5
STEADY_PART = 0.95
"""The part of the requests due that must have been answered in time: else the rate was not held."""


class Ingest(Comparison):
    name = "ingest"
    description = "requests/s, 2 KiB signed, 64 connections, closed loop"

    def start(self) -> None:
        if not receivers.adnanh_is_installed():
            self.say("adnanh/webhook is not installed (Debian: apt-get install webhook): skipped")
        self.systems = tuple(name for name in STARTS if name != "adnanh" or receivers.adnanh_is_installed())
        self._receivers = {name: STARTS[name](self.folder) for name in self.systems}
        for name, web in self._receivers.items():
            self.stop_later(web)
            web.run(seconds=0.5)
            self.say(f"{name} is running")

    def turn(self, system: str) -> dict[str, float]:
        web = self._receivers[system]
        found = web.run(seconds=self.timing.seconds)
        web.server.empty()
        return found

    def extra(self) -> dict[str, dict[str, float]]:
        """The same with appendfsync always: every write is on disk before the answer."""
        found = {}
        for name in (US, "naive", "fastapi"):
            self._receivers[name].server.set_appendfsync("always")
            found[f"{name}, fsync always"] = self.turn(name)
            self._receivers[name].server.set_appendfsync("everysec")
        if "adnanh" in self._receivers:
            found["adnanh, no program"] = self._without_a_program()
        return found

    def _without_a_program(self) -> dict[str, float]:
        """Its program does not exist: it verifies and answers, and the delivery is lost."""
        web = receivers.adnanh(self.folder, program="/does-not-exist", name="adnanh-alone")
        try:
            return web.run(seconds=self.timing.seconds)
        finally:
            web.stop()


class _AtRates(Comparison):
    """Ours and naive, each with its maximum rate."""

    systems = (US, "naive")

    def start(self) -> None:
        self._receivers = {name: STARTS[name](self.folder) for name in self.systems}
        self._maximum = {}
        for name, web in self._receivers.items():
            self.stop_later(web)
            web.run(seconds=0.5)
            self._maximum[name] = sorted(self._run(name)["rate"] for _ in range(3))[1]
            self.say(f"{name}: maximum {self._maximum[name]:,.0f}/s")

    def _run(self, system: str, *, rate: float = 0.0, seconds: float = 0.0) -> dict[str, float]:
        web = self._receivers[system]
        found = web.run(seconds=seconds or self.timing.seconds, rate=rate)
        web.server.empty()
        return found


class SameRate(_AtRates):
    name = "p99"
    description = "ms from the time a request was due to its answer, for both at half of naive's maximum rate"

    def turn(self, system: str) -> dict[str, float]:
        return self._run(system, rate=self._maximum["naive"] / 2)

    def extra(self) -> dict[str, dict[str, float]]:
        self._receivers[US].server.set_appendfsync("always")
        return {f"{US}, fsync always": self.turn(US)}


class SteadyRate(_AtRates):
    name = "steady"
    description = f"highest rate at which the 99th percentile of the time to the answer is under {STEADY_MS} ms"
    share = 0.6

    def turn(self, system: str) -> dict[str, float]:
        """Halve the interval between a rate that is held and one that is not."""
        held, not_held = 0.0, self._maximum[system]
        for _ in range(STEADY_STEPS):
            rate = (held + not_held) / 2
            found = self._run(system, rate=rate, seconds=self.timing.seconds / 2)
            if found["p99"] < STEADY_MS and found["rate"] > STEADY_PART * rate:
                held = rate
            else:
                not_held = rate
        if not held:
            raise RuntimeError(f"{system} holds no rate on this machine now")
        return {"rate": held}
