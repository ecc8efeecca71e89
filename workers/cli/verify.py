"""verify: check the signature of a delivery, and explain the result step by step."""

from __future__ import annotations

import time

import click

from receiver.config import Config
from receiver.contract.diagnosis.explain import Explanation, explain
from receiver.contract.errors import ConfigError, NotFound
from receiver.contract.stores import Store
from receiver.spool import Refusal, Refusals
from workers.cli import output
from workers.cli.capture_file import read_captured
from workers.cli.options import Command, choose_store, load_config, refused_deliveries
from workers.cli.typed_commands import commands_as_typed
from workers.operations.given_ids import LAST, NEWEST, choose
from workers.operations.refusal_explanation import explain_refusal, other_refusals, place_of_fix
from workers.operations.release import stores_with_secrets


@click.command(cls=Command)
@click.option("--store", help="The store that sent it. Optional if only one store is configured.")
@click.option(
    "--request",
    "file",
    metavar="FILE",
    help="A captured request: header lines, a blank line, the raw body. - reads standard input.",
)
@click.option("--refused", metavar="last|ID", help="A refused delivery of this host.")
@click.option("--now", type=float, metavar="UNIX", help="Check as of this time. Default: now, or its arrival.")
def verify(store: str | None, file: str | None, refused: str | None, now: float | None) -> None:
    """Explain why a delivery's signature is valid or not.

    Exit 0: valid. 1: not valid. Secrets are never shown, only their fingerprints.
    """
    if (file is None) == (refused is None):
        raise ConfigError("give one delivery: --request FILE, --refused last, or --refused ID")
    config = load_config()
    valid = _verify_file(config, store, file, now) if file else _verify_refused(config, store, refused or "", now)
    if not valid:
        raise click.exceptions.Exit(1)


def _verify_file(config: Config, named: str | None, file: str, now: float | None) -> bool:
    store = stores_with_secrets(config)[choose_store(config, named)]
    headers, body, _ = read_captured(file)
    output.line(f"{store.name}, from {file}, {len(body):,} bytes, scheme {store.scheme.name}", indent=2)
    return _show_explanation(
        config, store, explain(store, headers, body, now or time.time(), others=_others(config, store))
    )


def _verify_refused(config: Config, named: str | None, wanted: str, now: float | None) -> bool:
    refusals = refused_deliveries(config)
    name = choose_store(config, named) if named else None
    refusal = find_refusal(refusals, wanted, name)
    found = explain_refusal(config, refusal, store_name=name, now=now)
    output.line(
        f"{found.store.name}, refused {output.clock(refusal.moment)} with {refusal.answer} ({refusal.reason}), from "
        f"{refusal.address or 'an unknown address'}, {refusal.length:,} bytes, scheme {found.store.scheme.name}",
        indent=2,
    )
    valid = _show_explanation(config, found.store, found.explanation)
    _show_other_refusals(config, refusals, found.store)
    return valid


def find_refusal(refusals: Refusals, wanted: str, store: str | None = None) -> Refusal:
    """The refused delivery that is meant, with its body."""
    number = find_refusal_id(refusals, wanted, store)
    refusal = refusals.get(number)
    if refusal is None or refusal.body is None:
        raise NotFound(f"the body of refused delivery {number} was not stored; try a later one")
    return refusal


def find_refusal_id(refusals: Refusals, wanted: str, store: str | None = None) -> int:
    """The id of a refused delivery, which is given whole, shortened, or as `last`."""
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 19 and refusals.get(int(wanted)):
        return int(wanted)
    newest = (str(one.id) for one in refusals.newest(store=store, limit=1 if wanted == LAST else NEWEST))
    missing = (
        f"no refused delivery{f' of {store}' if store else ''} is stored on this host"
        if wanted == LAST
        else f"no refused delivery {wanted[:20]!r} on this host; `storehooks refused` lists them"
    )
    return int(choose(wanted, newest, kind="refused deliveries", missing=missing))


def _others(config: Config, store: Store) -> list[Store]:
    return [other for other in stores_with_secrets(config).values() if other.name != store.name]


def _show_explanation(config: Config, store: Store, explanation: Explanation) -> bool:
    output.echo()
    rows = [
        ("" if at else number, "" if at else step.title, line.text, output.state(line.mark))
        for number, step in enumerate(explanation.steps, 1)
        for at, line in enumerate(step.lines)
    ]
    output.table(("STEP", "TITLE", "FOUND", "RESULT"), rows, wrap="FOUND", indent=2, header=False)
    output.echo()
    verdict = "VALID" if explanation.valid else "NOT VALID"
    output.line(output.state(verdict), "  ", explanation.verdict, indent=len(verdict) + 2)
    for hint in explanation.hints:
        output.line("  - ", commands_as_typed(hint.text), indent=4)
        if hint.fix:
            place = place_of_fix(config, store, hint.fix)
            where = f"   ({place})" if place else ""
            output.line("    fix: ", commands_as_typed(hint.fix), where, whole=True)
    if explanation.valid and explanation.caveats:
        output.echo()
        for caveat in explanation.caveats:
            output.line("  note: ", caveat, indent=4)
    return explanation.valid


def _show_other_refusals(config: Config, refusals: Refusals, store: Store) -> None:
    """How many more are stored for this store, which secret signed them, and how many are valid now."""
    others = other_refusals(config, refusals, store)
    if not others.count:
        return
    output.echo()
    output.line(f"{others.number} refused of {store.name}; {others.valid:,} valid with the current config.")
    for fingerprint, times in others.signers.most_common():
        if fingerprint:
            output.echo(f"{times:,} signed with secret {fingerprint}.")
    why = "accept those that are valid" if others.valid else "accept them after the fix"
    output.next_command(f"storehooks refused release --store {store.name}  {why}")
