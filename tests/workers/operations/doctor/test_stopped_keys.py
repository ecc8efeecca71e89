"""Order keys that a failure has stopped (on_failure="stop") are named, with the commands that let them go on."""

from __future__ import annotations

import json

from receiver.inbox import Declaration, FailureQueries, Outcome
from receiver.inbox.outcomes import OutcomeKind
from tests.receiver.inbox.test_order import PUSH, STOPPING, accept, claim, route, to_route
from tests.support.harness import System


def finish(system: System, kind: OutcomeKind, group: str, delay: float = 0.0) -> None:
    runs = claim(system, 9)
    assert runs
    system.inbox.finish([Outcome(run, kind, {"error": "E: no", "group": group}, delay=delay) for run in runs])


def order_findings(system: System) -> list[dict[str, object]]:
    found = json.loads(system.run_cli("doctor", "--json").stdout)["findings"]
    return [one for one in found if one["check"] == "order"]


def test_stopped_keys_are_named_until_their_failures_are_replayed_or_dropped(system: System) -> None:
    failures = FailureQueries(system.client)
    system.client.sadd("sh:ordered", f"{PUSH}@1")
    for resource in ("7", "8", ""):  # behind the one without a resource nothing can wait
        accept(system, f"first{resource}", resource)
    route(system, *to_route(system).values(), how=STOPPING)
    finish(system, OutcomeKind.FAILED, "abc")
    for name, resource in (("second", "7"), ("third", "7"), ("other", "9")):
        accept(system, name, resource)
    route(system, *to_route(system).values(), how=STOPPING)
    finish(system, OutcomeKind.RETRY, "abc", delay=60.0)  # a retry stops nothing for good

    (stopped,) = failures.stopped_keys(failures.every_group())
    assert (stopped.handler, stopped.group, stopped.waiting) == (PUSH, "abc", 2)
    assert sorted(stopped.keys) == ["north:order:7", "north:order:8"]
    (finding,) = order_findings(system)
    assert finding["level"] == "fail"
    assert finding["text"] == f'2 order keys of {PUSH} stopped at a failure (on_failure="stop"); 2 runs wait behind it'
    assert finding["more"] == ["north:order:7, north:order:8"]
    again, drop = "storehooks failures replay --group abc", "storehooks failures drop --group abc --reason TEXT"
    assert finding["fix"] == f"correct the cause, then: {again}; or give up on it: {drop}"

    system.inbox.declare([Declaration("shop.greet", "1", ("*",), ("*",))])  # the only handler of a running worker
    (finding,) = order_findings(system)
    assert finding["fix"] == f"no worker has {PUSH}, so give up on it: {drop}; or load it again, then: {again}"

    dropped = system.run_cli("failures", "drop", "--group", "abc", "--reason", "a test", "--yes")
    assert dropped.returncode == 0, dropped.stderr
    assert order_findings(system) == []


def test_a_failure_that_lets_its_key_continue_stops_none(system: System) -> None:
    system.client.sadd("sh:ordered", f"{PUSH}@1")
    accept(system, "first")
    accept(system, "second")
    route(system, *to_route(system).values())
    finish(system, OutcomeKind.FAILED, "abc")
    failures = FailureQueries(system.client)
    assert failures.stopped_keys(failures.every_group()) == []
