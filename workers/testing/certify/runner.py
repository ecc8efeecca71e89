"""Trials: runs the plan on the rig, scenario by scenario, and gathers findings. Real server, workers and sandbox."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from receiver.config import Config
from receiver.contract.compose import compose
from receiver.contract.errors import PluginError
from receiver.contract.intake import receive
from receiver.inbox import Administration, keys
from receiver.inbox.outcomes import ENDED, EventStatus, RunStatus
from receiver.inbox.queries.events import EventRecord, RunRecord
from workers.plugins.plugin_settings import settings_of
from workers.testing import SandboxStore
from workers.testing.certify import end_state
from workers.testing.certify.scenarios import HOURS_LATE, Scenario, ScenarioStep, restarts, scenarios, scene, sequence
from workers.testing.certify.wrapped_plugin import CONTROL
from workers.testing.local_system import STORE, LocalSystem, wait_until

SETTLES_WITHIN = 60.0
SHOWN = 3
_FORGET = (f"{keys.STATE}*", f"{keys.ONCE}*")


@dataclass(frozen=True)
class Target:
    """What is certified: a plugin that was found and judged elsewhere."""

    which: str
    name: str
    version: str
    topics: tuple[str, ...]
    handlers: tuple[str, ...]


@dataclass(frozen=True)
class ScenarioFinding:
    scenario: str
    what: str
    examples: tuple[str, ...] = ()


@dataclass
class Results:
    """What the trials found, and what they measured."""

    target: Target
    seed: int
    events: int = 0
    passed: dict[str, str] = field(default_factory=dict)
    """Each scenario that was run, and what it was."""
    apply: tuple[str, ...] = ()
    """Each that there is for this plugin."""
    findings: list[ScenarioFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    memory_mb: float = 0.0
    ms_per_event: float = 0.0
    ms_longest: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class End:
    """How a scenario ended: what is left, and the runs of each step."""

    lines: end_state.Lines
    runs: tuple[tuple[ScenarioStep, RunRecord], ...]


class CertificationRun:
    """One plugin, one seed, one rig."""

    def __init__(
        self,
        config: Config,
        target: Target,
        *,
        seed: int,
        only: Sequence[str] = (),
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._only = only
        self._told = told
        self._steps = sequence(target.topics, seed)
        self.results = Results(target, seed, len(self._steps))
        if not self._steps:
            raise PluginError(f"{target.name} wants no topic of which there are samples; it cannot be certified")

    def run(self) -> Results:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="storehooks-certify-") as folder:
            self._prepare(Path(folder))
            try:
                self._all()
            finally:
                self._system.stop()
        self.results.seconds = time.monotonic() - started
        return self.results

    def _prepare(self, folder: Path) -> None:
        name = self.results.target.name
        self._folder = folder
        self._reloads = 0
        self._base = time.time() - len(self._steps) * 4
        settings = {name: settings_of(self._config, name, "")}
        self._system = LocalSystem(
            folder / "system", plugins=["workers.testing.certify.wrapped_plugin"], settings=settings, child_processes=2
        )
        self._store = SandboxStore(self._system)

    # The scenarios

    def _all(self) -> None:
        clean = Scenario("clean", "each event once, in order", tuple(self._steps), kind="basis")
        self._control(clean)
        self._system.start("server", "sandbox")
        self._system.start("workers", environ={CONTROL: str(self._folder / "control.json")})
        basis = self._play(clean)
        uses_api = bool(self._store.writes())
        self._measure()
        self._judge_runs(clean, basis)
        planned = scenarios(self._steps, self.results.seed, uses_api=uses_api)
        self.results.apply = tuple(scenario.name for scenario in planned)
        for scenario in planned:
            if not self._only or scenario.name in self._only:
                end = self._play(scenario)
                self._judge_runs(scenario, end, basis)
                if scenario.kind == "same":
                    self._compare(scenario, end, basis)
        self._measure(memory_only=True)

    def _play(self, scenario: Scenario) -> End:
        """Set the scene, deliver the steps, and see what is left."""
        self._told(scenario.name)
        self._set_the_scene(scenario)
        before = self._store.records_by_kind()
        ids = [self._deliver(scenario, step) for step in scenario.steps]
        records = [self._closed(event_id, step) for event_id, step in zip(ids, scenario.steps, strict=True)]
        lines = end_state.end_state(self._store.records_by_kind(), before, self._files(scenario), self._system.client)
        self.results.passed[scenario.name] = scenario.what
        runs = tuple((step, run) for step, record in zip(scenario.steps, records, strict=True) for run in record.runs)
        return End(lines, runs)

    def _set_the_scene(self, scenario: Scenario) -> None:
        self._store.reset()
        for kind, records in scene(self._steps).items():
            self._store.place(kind, *records)
        if scenario.drop:
            self._store.misbehave(drop=scenario.drop)
        for pattern in _FORGET:
            for key in self._system.client.scan_iter(pattern):
                self._system.client.delete(key)
        if scenario.kind != "basis":
            self._control(scenario)
            self._reload_plugin()

    def _control(self, scenario: Scenario) -> None:
        """What the plugin's wrapper reads when a child process is born: its folder, and who is to die."""
        files = self._files(scenario)
        files.mkdir(parents=True, exist_ok=True)
        told = {
            "config": str(self._config.path.absolute()) if self._config.path else "",
            "plugin": _found_from_anywhere(self.results.target.which),
            "folder": str(self._folder),
            "files": str(files),
            "seed": self.results.seed,
            "kill": scenario.kill,
            "restarts": restarts(scenario.steps, self.results.seed),
            "retries": scenario.retries,
        }
        (self._folder / "control.json").write_text(json.dumps(told))
        for mark in self._folder.glob("died-*"):
            mark.unlink()

    def _files(self, scenario: Scenario) -> Path:
        return self._folder / "files" / scenario.name

    def _reload_plugin(self) -> None:
        """HUP: new child processes load the plugin anew, in the new folder; no run is given to an old one any more."""
        self._reloads += 1
        self._system.signal("workers", signal.SIGHUP)
        wait_until(self._reloaded, what=f"the plugin is loaded again; {self._system.log_tail('workers')[-500:]}")

    def _reloaded(self) -> bool:
        said = (self._system.folder / "workers.log").read_text(errors="replace")
        return said.count("reloaded") >= self._reloads

    # One event

    def _deliver(self, scenario: Scenario, step: ScenarioStep) -> str:
        """Put one event into the inbox, as the receiver would, and wait as long as the scenario says."""
        store = self._system.config.known_stores[STORE]
        happened = self._base + step.at - (HOURS_LATE * 3600 if scenario.late else 0)
        own = f"{step.delivery}_{scenario.name}"
        request = compose(store, topic=step.topic, delivery_id=own, data=step.data, now=happened)
        delivery = receive(request.headers, request.body, store=store, now=happened, source="certify")
        event = replace(delivery.event, received_at=datetime.now(UTC), delivery_id=step.delivery)
        (accepted,) = self._system.inbox.accept([replace(delivery, event=event)])
        if scenario.again:
            self._closed(accepted.id, step)
            record = self._record(accepted.id)
            items = [keys.run_item(accepted.id, run.handler) for run in record.runs]
            Administration(self._system.client).reopen(items, {})
        if scenario.wait:
            self._closed(accepted.id, step)
        else:
            wait_until(
                lambda: all(map(_was_tried, self._record(accepted.id).runs)) and self._record(accepted.id).runs,
                what=f"{step.about} was tried",
                within=SETTLES_WITHIN,
            )
        return accepted.id

    def _closed(self, event_id: str, step: ScenarioStep) -> EventRecord:
        return wait_until(
            lambda: record if (record := self._record(event_id)).summary.status != EventStatus.OPEN else None,
            what=f"{step.about} ended; {self._system.log_tail('workers')[-500:]}",
            within=SETTLES_WITHIN,
        )

    def _record(self, event_id: str) -> EventRecord:
        record = self._system.events.event(event_id)
        assert record is not None
        return record

    # Judging

    def _judge_runs(self, scenario: Scenario, end: End, basis: End | None = None) -> None:
        """Runs that failed, and would not have without what is wrong here."""
        known = (
            {(step.about, run.handler) for step, run in basis.runs if run.status == RunStatus.FAILED}
            if basis
            else set()
        )
        failed = [(step, run) for step, run in end.runs if run.status == RunStatus.FAILED]
        doubtful = [one for one in failed if "is in doubt" in (one[1].error or "")]
        if doubtful:
            self.results.notes.append(
                f'{scenario.name}: {len(doubtful)} runs were left to a person, as in_doubt="fail" asks'
            )
        fresh = [one for one in failed if one not in doubtful and (one[0].about, one[1].handler) not in known]
        if scenario.kind == "ends":
            fresh = [(step, run) for step, run in fresh if not (run.error or "").startswith(("Fail:", "Retry:"))]
        if fresh:
            told = {f"{run.handler}, {_circumstances(scenario, step)}: {run.error}" for step, run in fresh}
            what = "it raises where it should say Fail or Drop: trying again cannot help"
            self._find(scenario, what if scenario.kind == "ends" else "runs failed", sorted(told))

    def _compare(self, scenario: Scenario, end: End, basis: End) -> None:
        # What was left to a person is not done, and that is as it should be. Then only what was done twice is told.
        in_doubt = any("is in doubt" in (run.error or "") for _, run in end.runs)
        if found := (end_state.repeats if in_doubt else end_state.differences)(end.lines, basis.lines):
            what = "two equal runs end differently, so nothing can be told" if scenario.name == "repeated" else ""
            self._find(scenario, what or "the end differs from that of the clean run", found)

    def _find(self, scenario: Scenario, what: str, examples: Sequence[str]) -> None:
        shown = examples if len(examples) <= SHOWN else [*examples[:SHOWN], f"... {len(examples) - SHOWN} more"]
        self.results.findings.append(ScenarioFinding(scenario.name, what, tuple(shown)))

    def _measure(self, *, memory_only: bool = False) -> None:
        lines = [json.loads(line) for line in _journal(self._folder / "journal")]
        self.results.memory_mb = round(max([line["kb"] for line in lines], default=0) / 1024, 1)
        if not memory_only:
            times = [line["ms"] for line in lines]
            self.results.ms_per_event = round(sum(times) / max(1, len(times)), 3)
            self.results.ms_longest = max(times, default=0.0)


def _found_from_anywhere(which: str) -> str:
    """A file by its whole path: workers run in another folder."""
    return str(Path(which).absolute()) if which.endswith(".py") or "/" in which else which


def _was_tried(run: RunRecord) -> bool:
    return run.attempts > 0 or run.status in ENDED


def _circumstances(scenario: Scenario, step: ScenarioStep) -> str:
    field_name = step.delivery.partition("_without_")[2]
    return f"{step.topic} without {field_name}" if scenario.kind == "ends" else step.about


def _journal(path: Path) -> Iterable[str]:
    return path.read_text().splitlines() if path.exists() else ()


def target_of(which: str, version: str, name: str, handlers: Sequence[Mapping[str, Any]]) -> Target:
    """What certification needs to know of a plugin that was loaded elsewhere."""
    topics = tuple(dict.fromkeys(topic for one in handlers for topic in one["topics"]))
    return Target(which, name, version, topics, tuple(one["handler"] for one in handlers))
