"""Ingest: how many signed deliveries of 2 KiB a receiver answers in a second over 64 connections, and how soon."""

from __future__ import annotations

from benchmarks import webs
from benchmarks.bout import Bout
from benchmarks.targets import US

STARTS = {US: webs.ours, "naive": webs.naive, "fastapi": webs.fastapi, "flask hello": webs.hello, "adnanh": webs.adnanh}


class Ingest(Bout):
    name = "ingest"
    about = "requests/s, 2 KiB signed, 64 connections, closed loop"

    def start(self) -> None:
        if not webs.adnanh_is_here():
            self.say("adnanh/webhook is not installed (Debian: apt-get install webhook): its line is skipped")
        self.systems = tuple(name for name in STARTS if name != "adnanh" or webs.adnanh_is_here())
        self._webs = {name: STARTS[name](self.folder) for name in self.systems}
        for name, web in self._webs.items():
            self.keep(web)
            web.run(seconds=0.5)
            self.say(f"{name} answers")

    def turn(self, system: str) -> dict[str, float]:
        web = self._webs[system]
        found = web.run(seconds=self.pace.seconds)
        web.server.empty()
        return found

    def extra(self) -> dict[str, dict[str, float]]:
        """The same with every write on disk before it is answered."""
        found = {}
        for name in (US, "naive", "fastapi"):
            self._webs[name].server.sync("always")
            found[f"{name}, fsync always"] = self.turn(name)
            self._webs[name].server.sync("everysec")
        if "adnanh" in self._webs:
            found["adnanh, starts nothing"] = self._without_a_program()
        return found

    def _without_a_program(self) -> dict[str, float]:
        """The program it is to start is not there: it verifies and answers, and the delivery goes nowhere."""
        web = webs.adnanh(self.folder, program="/does-not-exist", name="adnanh-alone")
        try:
            return web.run(seconds=self.pace.seconds)
        finally:
            web.stop()


class HalfSpeed(Bout):
    name = "p99"
    about = "ms from when a request was due to its answer, at half of the receiver's own maximum rate"
    systems = (US, "naive")

    def start(self) -> None:
        self._webs = {name: STARTS[name](self.folder) for name in self.systems}
        self._half = {}
        for name, web in self._webs.items():
            self.keep(web)
            web.run(seconds=0.5)
            best = sorted(web.run(seconds=self.pace.seconds)["rate"] for _ in range(3))[1]
            self._half[name] = best / 2
            web.server.empty()
            self.say(f"{name}: {best:,.0f}/s at most, so at {best / 2:,.0f}/s")

    def turn(self, system: str) -> dict[str, float]:
        web = self._webs[system]
        found = web.run(seconds=self.pace.seconds, rate=self._half[system])
        web.server.empty()
        return found

    def extra(self) -> dict[str, dict[str, float]]:
        self._webs[US].server.sync("always")
        return {f"{US}, fsync always": self.turn(US)}
