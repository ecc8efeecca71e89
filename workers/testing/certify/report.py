"""The results of certification as text and JSON. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from receiver.contract.diagnosis.formatting import counted
from workers.testing.certify.runner import HandlerOrder, Results
from workers.testing.certify.scenarios import BASELINES, IDEMPOTENCE, ORDER

LATE = "the code must handle late events"


def is_idempotent(results: Results) -> bool | None:
    return _passes(results, IDEMPOTENCE)


def is_order_safe(results: Results) -> bool | None:
    return _passes(results, ORDER)


def as_json(results: Results) -> dict[str, Any]:
    return {
        "plugin": results.target.name,
        "version": results.target.version,
        "handlers": list(results.target.handlers),
        "seed": results.seed,
        "events": results.events,
        "idempotent": is_idempotent(results),
        "order_safe": is_order_safe(results),
        "order": [asdict(one) for one in results.order],
        "memory_mb": results.memory_mb,
        "ms_per_event": results.ms_per_event,
        "ms_longest": results.ms_longest,
        "scenarios": list(results.completed),
        "findings": [
            {**asdict(finding), "reproduce": reproduce(results, finding.scenario)} for finding in results.findings
        ],
        "notes": results.notes,
        "seconds": round(results.seconds, 1),
    }


def reproduce(results: Results, scenario: str) -> str:
    command = f"storehooks handlers certify {results.target.source} --seed {results.seed} --only {scenario}"
    return f"{command} --config {shlex.quote(results.config_file)}" if results.config_file else command


def lines(results: Results) -> Iterator[str]:
    target = results.target
    figures = f"{counted(len(target.handlers), 'handler')}, {counted(results.events, 'event')}, seed {results.seed}"
    yield f"{target.name} {target.version}: {figures}, in {results.seconds:.0f} s"
    yield ""
    for name, description in results.completed.items():
        findings = [finding for finding in results.findings if finding.scenario == name]
        yield f"{'FAIL' if findings else 'ok  '}  {name:<15} {description}"
        for finding in findings:
            yield f"      {'':<15} {finding.what}:"
            yield from (f"      {'':<15}   {example}" for example in finding.examples)
            yield f"      {'':<15} reproduce: {reproduce(results, name)}"
    yield ""
    yield from (f"note  {note}" for note in results.notes)
    yield f"idempotent      {_answer(is_idempotent(results))}"
    yield f"order-safe      {_answer(is_order_safe(results))}"
    yield from (f"{'':<15} {one.handler}: no; {_advice(one)}" for one in results.order if not one.order_safe)
    yield f"peak memory     {results.memory_mb:.0f} MB"
    yield f"time per event  {results.ms_per_event:.1f} ms on average, {results.ms_longest:.1f} ms at most"


def _advice(order: HandlerOrder) -> str:
    if order.suffices:
        return f"add {order.proposal} to its @router.on: tested, it is order-safe then"
    if order.proposal.startswith("order_by"):
        first = 'add order_by="resource" to its @router.on, if the store itself sends in order'
        return f'{first}. With stale="skip" it was tested, and is not order-safe: the code must handle late events'
    return f"with {order.proposal} it was tested, and is not order-safe either" if order.proposal else LATE


def _passes(results: Results, names: tuple[str, ...]) -> bool | None:
    """Whether these scenarios have no findings. None if some were not run, or if a baseline scenario failed."""
    failed = {finding.scenario for finding in results.findings}
    if failed & set(names) and "repeated" not in failed:
        return False
    applicable = set(names) & set(results.applicable)
    all_run = applicable and {*BASELINES, *applicable} <= results.completed.keys()
    return True if all_run and not failed & {*BASELINES, *names} else None


def _answer(passes: bool | None) -> str:
    return {True: "yes", False: "no", None: "unknown"}[passes]
