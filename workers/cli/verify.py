"""verify: check the signature of a delivery, and explain the result step by step."""

from __future__ import annotations

import time
from collections import Counter

import click

from receiver.config import Config
from receiver.contract.diagnosis.explain import Explanation, explain
from receiver.contract.diagnosis.search import find_signer
from receiver.contract.errors import ConfigError, NotFound
from receiver.contract.stores import Store
from receiver.spool import Refusal, Refusals
from workers.cli import output
from workers.cli.capture_file import read_captured
from workers.cli.options import Command, choose_store, load_config, refused_deliveries
from workers.operations.release import ReleaseCheck, select_refusals, stores_with_secrets, with_open_headers

MAX_CHECKED = 2_000
"""How many other refused deliveries are checked for the summary."""


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
    found = find_refusal(refusals, wanted, choose_store(config, named) if named else None)
    refusal = with_open_headers(config, found)
    store = ReleaseCheck(config).store_of(refusal) if named is None else stores_with_secrets(config)[named]
    if store is None:
        missing = f"no store {refusal.named}" if refusal.named else "this delivery names no configured store"
        raise NotFound(f"{missing}; add [stores.NAME] to the config, or check it as another one: --store NAME")
    output.line(
        f"{store.name}, refused {output.clock(refusal.moment)} with 401 ({refusal.reason}), from "
        f"{refusal.address or 'an unknown address'}, {refusal.length:,} bytes, scheme {store.scheme.name}",
        indent=2,
    )
    body = refusal.body or b""
    explanation = explain(store, refusal.headers, body, now or refusal.at, others=_others(config, store))
    valid = _show_explanation(config, store, explanation)
    _show_other_refusals(config, refusals, store)
    return valid


def find_refusal(refusals: Refusals, wanted: str, store: str | None = None) -> Refusal:
    """The refused delivery with this id, or the `last` one, with its body."""
    if wanted == "last":
        newest = refusals.newest(store=store, limit=1)
        if not newest:
            raise NotFound(f"no refused delivery{f' of {store}' if store else ''} is stored on this host")
        wanted = str(newest[0].id)
    refusal = refusals.get(int(wanted)) if wanted.isascii() and wanted.isdigit() and len(wanted) < 19 else None
    if refusal is None:
        raise NotFound(f"no refused delivery {wanted[:20]!r} on this host; `storehooks refused` lists them")
    if refusal.body is None:
        raise NotFound(f"the body of refused delivery {refusal.id} was not stored; try a later one")
    return refusal


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
        output.line("  - ", hint.text, indent=4)
        if hint.fix:
            is_setting = " = " in hint.fix and not hint.fix.startswith("set ")  # that names its own table
            where = f"   ({_where(config, store, hint.fix)})" if is_setting else ""
            output.line("    fix: ", hint.fix, where, whole=True)
    if explanation.valid and explanation.caveats:
        output.echo()
        for caveat in explanation.caveats:
            output.line("  note: ", caveat, indent=4)
    return explanation.valid


def _where(config: Config, store: Store, fix: str) -> str:
    """The table of the config that the fix belongs to."""
    of_store = fix.startswith(("scheme = ", "[stores."))
    return (
        f"[stores.{store.name}], {config.place('stores', store.name)}" if of_store else config.scheme_table(store.name)
    )


def _show_other_refusals(config: Config, refusals: Refusals, store: Store) -> None:
    """How many more are stored for this store, which secret signed them, and how many are valid now."""
    check = ReleaseCheck(config)
    count, valid, by = 0, 0, Counter[str]()
    for batch in select_refusals(refusals, check, store=store.name):
        for refusal in batch:
            count += 1
            valid += check.is_valid(refusal)
            headers = with_open_headers(config, refusal).headers
            signer = find_signer(store.scheme, store.secrets, headers, refusal.body or b"", store.url)
            by[signer.fingerprint if signer else ""] += 1
        if count >= MAX_CHECKED:
            break
    if not count:
        return
    number = f"{count:,}{' or more' if count >= MAX_CHECKED else ''}"
    output.echo()
    output.line(f"{number} refused of {store.name}; {valid:,} valid with the current config.")
    for fingerprint, times in by.most_common():
        if fingerprint:
            output.echo(f"{times:,} signed with secret {fingerprint}.")
    why = "accept those that are valid" if valid else "accept them after the fix"
    output.next_command(f"storehooks refused release --store {store.name}  {why}")
