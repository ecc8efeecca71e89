"""Subscription plans and their results, printed for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from receiver.config import Config
from receiver.contract.diagnosis.formatting import counted, span
from workers.cli import output
from workers.subscriptions.apply import ChangeResult
from workers.subscriptions.plan import Handlers, Plan

if TYPE_CHECKING:
    from rich.text import Text

_SIGNS = {"create": "+ create", "enable": "~ enable", "update": "~ update", "delete": "- delete"}
_STYLES = {"+": "green", "~": "yellow", "-": "red"}


def show_plans(plans: list[Plan], handlers: Handlers, *, summary: bool = True) -> None:
    number = len({one.handler for one in handlers.present})
    none = "no worker has reported a handler yet; only"
    source = f"topics of {counted(number, 'handler')} and" if handlers.known else none
    output.echo(f"wanted: {source} [stores.*] subscribe\n")
    wide = max(len(one.store) for one in plans)
    for one in plans:
        _show_store(one, wide)
    if summary:
        _show_summary(plans)


def _show_store(plan: Plan, wide: int) -> None:
    name = output.text(f"{plan.store:<{wide}}   ", "bold")
    if plan.unknown:
        first, *rest = plan.unknown.splitlines()
        output.line(name, output.state("unknown"), f": {first}", indent=wide + 3)
        for line in rest:
            output.line(" " * (wide + 3), line, indent=wide + 3)
        return
    assert plan.wanted is not None
    output.line(name, plan.summary)
    show_changes([(sign(c.action), c.topic, f'"{c.theirs}"', c.reason) for c in plan.changes], indent=2)
    for text in (*plan.foreign_texts, *plan.held_back.splitlines()):
        output.line("    ", text, indent=6)
    for missing in plan.wanted.unoffered:
        output.line(f"    {missing.pattern}, {missing.why}: the store offers no such topic", indent=6)
    if plan.wanted.note:
        output.line("    ", plan.wanted.note, indent=6)


def show_changes(rows: Sequence[tuple[Any, ...]], *, indent: int = 0) -> None:
    """Rows without headings. The last column wraps."""
    if rows:
        headings = [str(number) for number in range(len(rows[0]))]
        output.table(headings, rows, wrap=headings[-1], indent=indent, header=False)


def _show_summary(plans: list[Plan]) -> None:
    unknown = sum(1 for one in plans if one.unknown)
    changed = sum(1 for one in plans if one.changes)
    held_back = [len(one.earlier) for one in plans if one.earlier]
    parts = [f"{count_changes(plans)} at {counted(changed, 'store')}"] if changed else []
    if held_back:
        parts.append(f"{counted(sum(held_back), 'subscription')} held back at {counted(len(held_back), 'store')}")
    parts = parts or ["nothing to do"]
    parts += [f"{counted(unknown, 'store')} unknown"] if unknown else []
    output.echo(f"\n{', '.join(parts)}.")


def scheduled_check(config: Config) -> str:
    """What the scheduled check does with a plan that is not applied."""
    if not config.subscriptions.check:
        return "The scheduled check is off: [subscriptions] check."
    wait = span(config.subscriptions.prune_after)
    return f"The scheduled check makes + and ~ by itself, and - when the topic lost its last handler {wait} ago."


def show_results(results: dict[str, list[ChangeResult] | str]) -> int:
    """Print each change that was made, or why it was not. Returns how many failed."""
    output.echo()
    rows: list[tuple[Any, ...]] = []
    failed = 0
    for store, done in results.items():
        if isinstance(done, str):
            failed += 1
            output.line(output.text(store, "bold"), ": ", done, indent=2)
            continue
        failed += sum(1 for one in done if one.error)
        rows += [
            (store, sign("rotate" if d.change.rotate else d.change.action), d.change.topic, _result(d)) for d in done
        ]
    show_changes(rows)
    made = [one for done in results.values() if not isinstance(done, str) for one in done]
    for block in dict.fromkeys(one.error.partition("\n")[2] for one in made):  # lines for the config
        for one in block.splitlines():
            output.line(one, whole=True)
    return failed


def sign(action: str) -> Text:
    """An action with its sign, in its colour."""
    shown = _SIGNS.get(action, f"~ {action}")
    return output.text(shown, _STYLES[shown[0]])


def _result(done: ChangeResult) -> Text:
    if done.error:
        return output.state("failed", f"FAILED: {done.error.splitlines()[0]}")
    return output.state("done", f"done, secret {done.fingerprint}" if done.fingerprint else "done")


def count_changes(plans: list[Plan], no_delete: bool = False) -> str:
    return counted(sum(len(one.without_deletions if no_delete else one.changes) for one in plans), "change")
