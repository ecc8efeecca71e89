"""Report: what certification found, for people and for scripts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from workers.formatting import counted
from workers.testing.certify.runner import Results
from workers.testing.certify.scenarios import BASES, IDEMPOTENCE, ORDER


def is_idempotent(results: Results) -> bool | None:
    return _none_in(results, IDEMPOTENCE)


def is_order_safe(results: Results) -> bool | None:
    return _none_in(results, ORDER)


def as_json(results: Results) -> dict[str, Any]:
    return {
        "plugin": results.target.name,
        "version": results.target.version,
        "handlers": list(results.target.handlers),
        "seed": results.seed,
        "events": results.events,
        "idempotent": is_idempotent(results),
        "order_safe": is_order_safe(results),
        "memory_mb": results.memory_mb,
        "ms_per_event": results.ms_per_event,
        "ms_longest": results.ms_longest,
        "scenarios": list(results.passed),
        "findings": [{**asdict(one), "reproduce": reproduce(results, one.scenario)} for one in results.findings],
        "notes": results.notes,
        "seconds": round(results.seconds, 1),
    }


def reproduce(results: Results, scenario: str) -> str:
    only = "" if scenario == "clean" else f" --only {scenario}"
    return f"storehooks handlers certify {results.target.which} --seed {results.seed}{only}"


def lines(results: Results) -> Iterator[str]:
    """The report as text."""
    target = results.target
    figures = f"{counted(len(target.handlers), 'handler')}, {counted(results.events, 'event')}, seed {results.seed}"
    yield f"{target.name} {target.version}: {figures}, in {results.seconds:.0f} s"
    yield ""
    for name, what in results.passed.items():
        found = [one for one in results.findings if one.scenario == name]
        yield f"{'FAIL' if found else 'ok  '}  {name:<15} {what}"
        for one in found:
            yield f"      {'':<15} {one.what}:"
            yield from (f"      {'':<15}   {example}" for example in one.examples)
            yield f"      {'':<15} again: {reproduce(results, name)}"
    yield ""
    yield from (f"note  {note}" for note in results.notes)
    yield f"idempotent      {_word(is_idempotent(results))}"
    yield f"order-safe      {_word(is_order_safe(results))}"
    yield f"worst memory    {results.memory_mb:.0f} MB"
    yield f"time per event  {results.ms_per_event:.1f} ms, at most {results.ms_longest:.1f} ms"


def _none_in(results: Results, names: tuple[str, ...]) -> bool | None:
    """None where it cannot be told: not all was tried, or already equal or clean runs went wrong."""
    found = {one.scenario for one in results.findings}
    if found & set(names) and "repeated" not in found:
        return False
    there = set(names) & set(results.apply)
    all_tried = there and {*BASES, *there} <= results.passed.keys()
    return True if all_tried and not found & {*BASES, *names} else None


def _word(verdict: bool | None) -> str:
    return {True: "yes", False: "no", None: "not known"}[verdict]
