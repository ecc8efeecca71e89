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


class HalfSpeed(Comparison):
    name = "p99"
    description = "ms from the time a request was due to its answer, at half of the receiver's maximum rate"
    systems = (US, "naive")

    def start(self) -> None:
        self._receivers = {name: STARTS[name](self.folder) for name in self.systems}
        self._half = {}
        for name, web in self._receivers.items():
            self.stop_later(web)
            web.run(seconds=0.5)
            best = sorted(web.run(seconds=self.timing.seconds)["rate"] for _ in range(3))[1]
            self._half[name] = best / 2
            web.server.empty()
            self.say(f"{name}: maximum {best:,.0f}/s, measured at {best / 2:,.0f}/s")

    def turn(self, system: str) -> dict[str, float]:
        web = self._receivers[system]
        found = web.run(seconds=self.timing.seconds, rate=self._half[system])
        web.server.empty()
        return found

    def extra(self) -> dict[str, dict[str, float]]:
        self._receivers[US].server.set_appendfsync("always")
        return {f"{US}, fsync always": self.turn(US)}
