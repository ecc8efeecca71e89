"""Runs the scenarios on a local system with real server, workers and sandbox, and collects the findings."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from receiver.config import Config
from receiver.contract.compose import compose
from receiver.contract.errors import PluginError
from receiver.contract.intake import receive
from receiver.inbox import Administration, Declaration, keys
from receiver.inbox.effect_store import clear_effects
from receiver.inbox.outcomes import ENDED, EventStatus, RunStatus
from receiver.inbox.queries.events import EventRecord, RunRecord
from workers.plugins.plugin_settings import settings_of
from workers.testing import SandboxStore
from workers.testing.certify import end_state
from workers.testing.certify.scenarios import (
    HOURS_LATE,
    Scenario,
    ScenarioStep,
    final_records,
    restarts,
    scenarios,
    sequence,
)
from workers.testing.certify.wrapped_plugin import CONTROL, KILLED_MARK, MEASUREMENTS
from workers.testing.local_system import STORE, LocalSystem, wait_until

SETTLES_WITHIN = 60.0
MAX_EXAMPLES = 3


@dataclass(frozen=True)
class Target:
    """The plugin to certify. It was loaded and validated elsewhere."""

    source: str
    """Its name, file or module, as the user gave it."""
    name: str
    version: str
    topics: tuple[str, ...]
    handlers: tuple[str, ...]
    proposals: Mapping[str, str] = field(default_factory=dict)
    """By handler: which of order_by="resource" and stale="skip" it does not have."""


@dataclass(frozen=True)
class ScenarioFinding:
    scenario: str
    what: str
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class HandlerOrder:
    """Whether one handler ends in the same state in any order of events. If not, the options to propose."""

    handler: str
    order_safe: bool
    proposal: str = ""
    suffices: bool = False
    """With these options it is order-safe."""


@dataclass
class Results:
    target: Target
    seed: int
    events: int = 0
    completed: dict[str, str] = field(default_factory=dict)
    """The scenarios that were run, each with its description."""
    applicable: tuple[str, ...] = ()
    """The scenarios that exist for this plugin."""
    findings: list[ScenarioFinding] = field(default_factory=list)
    order: list[HandlerOrder] = field(default_factory=list)
    """Empty if `shuffled` was not run, or proves nothing."""
    notes: list[str] = field(default_factory=list)
    memory_mb: float = 0.0
    ms_per_event: float = 0.0
    ms_longest: float = 0.0
    seconds: float = 0.0
    config_file: str = ""
    """The value of --config, which the command that reproduces a finding needs too."""


@dataclass(frozen=True)
class ScenarioEnd:
    """The end state of a scenario, and the runs of each step."""

    lines: end_state.Lines
    runs: tuple[tuple[ScenarioStep, RunRecord], ...]


class CertificationRun:
    """Certifies one plugin with one seed on one local system."""

    def __init__(
        self,
        config: Config,
        target: Target,
        *,
        seed: int,
        only: Sequence[str] = (),
        on_scenario: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._only = only
        self._on_scenario = on_scenario
        self._steps = sequence(target.topics, seed)
        self.results = Results(target, seed, len(self._steps))
        if not self._steps:
            raise PluginError(f"{target.name} cannot be certified: there are no samples of its topics")

    def run(self) -> Results:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="storehooks-certify-") as folder:
            self._prepare(Path(folder))
            try:
                self._run_all()
            finally:
                self._system.stop()
        self.results.seconds = time.monotonic() - started
        return self.results

    def _prepare(self, folder: Path) -> None:
        name = self.results.target.name
        self._folder = folder
        self._reloads = 0
        self._start_time = time.time() - len(self._steps) * 4
        settings = {name: settings_of(self._config, name, "")}
        self._system = LocalSystem(
            folder / "system", plugins=["workers.testing.certify.wrapped_plugin"], settings=settings, child_processes=2
        )
        self._store = SandboxStore(self._system)

    # The scenarios

    def _run_all(self) -> None:
        clean = Scenario("clean", "each event once, in order", tuple(self._steps), kind="baseline")
        self._write_control(clean)
        self._system.start("server", "sandbox")
        self._system.start("workers", environ={CONTROL: str(self._folder / "control.json")})
        baseline = self._run_scenario(clean)
        uses_api = bool(self._store.writes())
        self._measure()
        self._check_runs(clean, baseline)
        planned = scenarios(self._steps, self.results.seed, uses_api=uses_api)
        self.results.applicable = tuple(scenario.name for scenario in planned)
        for scenario in planned:
            if not self._only or scenario.name in self._only:
                end = self._run_scenario(scenario)
                self._check_runs(scenario, end, baseline)
                if scenario.kind == "same":
                    self._compare(scenario, end, baseline)
                if scenario.name == "shuffled":
                    self._examine_handlers(clean, scenario, baseline)
        self._measure(memory_only=True)

    def _examine_handlers(self, clean: Scenario, shuffled: Scenario, baseline: ScenarioEnd) -> None:
        """Find the handlers that depend on the order, and whether options help them. Several are run each alone."""
        found = {finding.scenario for finding in self.results.findings}
        handlers = self.results.target.handlers
        if found & {"clean", "repeated"}:
            return
        for number, name in enumerate(handlers):
            alone = replace(shuffled, name=f"shuffled-{number}", alone=name)
            expected, unsafe = baseline, "shuffled" in found
            if unsafe and len(handlers) > 1:
                expected = self._run_scenario(replace(clean, name=f"clean-{number}", alone=name, kind="same"))
                unsafe = _differs(self._run_scenario(alone), expected)
            proposal = self.results.target.proposals.get(name, "") if unsafe else ""
            tested = replace(alone, name=f"options-{number}", with_options=True)
            suffices = bool(proposal) and not _differs(self._run_scenario(tested), expected)
            self.results.order.append(HandlerOrder(name, not unsafe, proposal, suffices))

    def _run_scenario(self, scenario: Scenario) -> ScenarioEnd:
        """Reset the store and the plugin, deliver the steps, and read the end state."""
        self._on_scenario(scenario.name)
        self._reset_for(scenario)
        before = self._store.records_by_kind()
        ids = [self._deliver(scenario, step) for step in scenario.steps]
        records = [self._wait_until_closed(event_id, step) for event_id, step in zip(ids, scenario.steps, strict=True)]
        lines = end_state.end_state(self._store.records_by_kind(), before, self._files(scenario), self._system.client)
        if not scenario.alone:
            self.results.completed[scenario.name] = scenario.description
        runs = tuple((step, run) for step, record in zip(scenario.steps, records, strict=True) for run in record.runs)
        return ScenarioEnd(lines, runs)

    def _reset_for(self, scenario: Scenario) -> None:
        self._store.reset()
        for kind, records in final_records(self._steps).items():
            self._store.place(kind, *records)
        if scenario.drop:
            self._store.misbehave(drop=scenario.drop)
        clear_effects(self._system.client)
        if scenario.kind != "baseline":
            self._write_control(scenario)
            self._reload_plugin()

    def _write_control(self, scenario: Scenario) -> None:
        """Write the file that the wrapped plugin reads in each child process: its folders, and what is to be killed."""
        files = self._files(scenario)
        files.mkdir(parents=True, exist_ok=True)
        values = {
            "config": str(self._config.path.absolute()) if self._config.path else "",
            "plugin": _absolute(self.results.target.source),
            "folder": str(self._folder),
            "files": str(files),
            "seed": self.results.seed,
            "kill": scenario.kill,
            "restarts": restarts(scenario.steps, self.results.seed),
            "retries": scenario.retries,
            "alone": scenario.alone,
            "with_options": scenario.with_options,
        }
        (self._folder / "control.json").write_text(json.dumps(values))
        for mark in self._folder.glob(f"{KILLED_MARK}*"):
            mark.unlink()

    def _files(self, scenario: Scenario) -> Path:
        return self._folder / "files" / scenario.name

    def _reload_plugin(self) -> None:
        """Send HUP and wait until new child processes have loaded the plugin with the new control file."""
        self._reloads += 1
        self._system.signal("workers", signal.SIGHUP)
        wait_until(self._reloaded, what=f"the plugin is reloaded; {self._system.log_tail('workers')[-500:]}")

    def _reloaded(self) -> bool:
        log = (self._system.folder / "workers.log").read_text(errors="replace")
        return log.count('"event": "reloaded"') >= self._reloads

    # One event

    def _deliver(self, scenario: Scenario, step: ScenarioStep) -> str:
        """Accept one event into the inbox, as the receiver would, and wait as the scenario says."""
        store = self._system.config.known_stores[STORE]
        occurred = self._start_time + step.at - (HOURS_LATE * 3600 if scenario.late else 0)
        delivery_id = f"{step.delivery}_{scenario.name}"
        request = compose(store, topic=step.topic, delivery_id=delivery_id, data=step.data, now=occurred)
        delivery = receive(request.headers, request.body, store=store, now=occurred, source="certify")
        event = replace(delivery.event, received_at=datetime.now(UTC), delivery_id=step.delivery)
        (accepted,) = self._system.inbox.accept([replace(delivery, event=event)])
        if scenario.replay:
            self._wait_until_closed(accepted.id, step)
            record = self._record(accepted.id)
            items = [keys.run_item(accepted.id, run.handler) for run in record.runs]
            Administration(self._system.client).reopen(items, {})
        if scenario.wait:
            self._wait_until_closed(accepted.id, step)
        else:
            wait_until(
                lambda: all(map(_was_attempted, self._record(accepted.id).runs)) and self._record(accepted.id).runs,
                what=f"{step.label} was attempted",
                within=SETTLES_WITHIN,
            )
        return accepted.id

    def _wait_until_closed(self, event_id: str, step: ScenarioStep) -> EventRecord:
        return wait_until(
            lambda: record if (record := self._record(event_id)).summary.status != EventStatus.OPEN else None,
            what=f"{step.label} ended; {self._system.log_tail('workers')[-500:]}",
            within=SETTLES_WITHIN,
        )

    def _record(self, event_id: str) -> EventRecord:
        record = self._system.events.event(event_id)
        assert record is not None
        return record

    # Findings

    def _check_runs(self, scenario: Scenario, end: ScenarioEnd, baseline: ScenarioEnd | None = None) -> None:
        """Report runs that failed in this scenario and not in the clean run."""
        known = (
            {(step.label, run.handler) for step, run in baseline.runs if run.status == RunStatus.FAILED}
            if baseline
            else set()
        )
        failed = [(step, run) for step, run in end.runs if run.status == RunStatus.FAILED]
        doubtful = [one for one in failed if "is in doubt" in (one[1].error or "")]
        if doubtful:
            self.results.notes.append(f'{scenario.name}: {len(doubtful)} runs failed in doubt, as in_doubt="fail" asks')
        new = [one for one in failed if one not in doubtful and (one[0].label, one[1].handler) not in known]
        if scenario.kind == "ends":
            new = [(step, run) for step, run in new if not (run.error or "").startswith(("Fail:", "Retry:"))]
        if new:
            examples = {f"{run.handler}, {_circumstances(scenario, step)}: {run.error}" for step, run in new}
            what = "it raises an exception instead of Fail or Drop: a retry cannot succeed"
            self._add_finding(scenario, what if scenario.kind == "ends" else "runs failed", sorted(examples))

    def _compare(self, scenario: Scenario, end: ScenarioEnd, baseline: ScenarioEnd) -> None:
        # Runs that failed in doubt have left their effect undone, as intended. Then only repeated effects are reported.
        in_doubt = any("is in doubt" in (run.error or "") for _, run in end.runs)
        if different := (end_state.repeats if in_doubt else end_state.differences)(end.lines, baseline.lines):
            what = "the end state differs from that of the clean run"
            if scenario.name == "repeated":
                what = "two equal runs end in different states, so the other scenarios prove nothing"
            self._add_finding(scenario, what, different)

    def _add_finding(self, scenario: Scenario, what: str, examples: Sequence[str]) -> None:
        more = len(examples) - MAX_EXAMPLES
        shown = [*examples[:MAX_EXAMPLES], *([f"... {more} more"] if more > 0 else [])]
        self.results.findings.append(ScenarioFinding(scenario.name, what, tuple(shown)))

    def _measure(self, *, memory_only: bool = False) -> None:
        lines = [json.loads(line) for line in _lines(self._folder / MEASUREMENTS)]
        self.results.memory_mb = round(max([line["kb"] for line in lines], default=0) / 1024, 1)
        if not memory_only:
            times = [line["ms"] for line in lines]
            self.results.ms_per_event = round(sum(times) / max(1, len(times)), 3)
            self.results.ms_longest = max(times, default=0.0)


def _absolute(source: str) -> str:
    """A file by its absolute path, because workers have another working directory."""
    return str(Path(source).absolute()) if source.endswith(".py") or "/" in source else source


def _differs(end: ScenarioEnd, expected: ScenarioEnd) -> bool:
    """Whether the end state is another one, or a run failed."""
    has_failed = any(run.status == RunStatus.FAILED for _, run in end.runs)
    return has_failed or bool(end_state.differences(end.lines, expected.lines))


def _was_attempted(run: RunRecord) -> bool:
    return run.attempts > 0 or run.status in ENDED


def _circumstances(scenario: Scenario, step: ScenarioStep) -> str:
    field_name = step.delivery.partition("_without_")[2]
    return f"{step.topic} without {field_name}" if scenario.kind == "ends" else step.label


def _lines(path: Path) -> Iterable[str]:
    return path.read_text().splitlines() if path.exists() else ()


def target_of(source: str, handlers: Sequence[Declaration]) -> Target:
    topics = tuple(dict.fromkeys(topic for handler in handlers for topic in handler.topics))
    names = tuple(handler.handler for handler in handlers)
    missing = {one.handler: ", ".join(_missing_options(one)) for one in handlers}
    return Target(source, handlers[0].details["plugin"], handlers[0].version, topics, names, missing)


def _missing_options(handler: Declaration) -> Iterator[str]:
    if not handler.details["order_by"]:
        yield 'order_by="resource"'
    if handler.details["stale"] != "skip":
        yield 'stale="skip"'
