"""refused: deliveries with a wrong signature, kept for a while, and let in once they fit."""

from __future__ import annotations

import sys
from typing import Any

import click

from receiver.config import Config
from receiver.contract.diagnosis.explain import printable
from receiver.contract.errors import DeliveryRefused
from receiver.inbox import Inbox
from receiver.spool import Refusal
from workers.cli import output
from workers.cli.capture_file import write
from workers.cli.options import (
    Noun,
    choose_store,
    connect_server,
    load_config,
    refused_deliveries,
    stores_with_secrets,
    with_config,
)
from workers.cli.verify import find_refusal
from workers.operations.release import ReleaseCheck, Released, chosen
from workers.operations.release import release as let_in


@click.group(cls=Noun)
@with_config
def refused() -> None:
    """Refused deliveries of this host: list, show, release."""


@refused.command("list")
@click.option("--store", help="Only of this store.")
@click.option("--limit", default=50, show_default=True, help="At most so many.")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def list_refused(store: str | None = None, limit: int = 50, json_: bool = False) -> None:
    """The newest refusals, newest first: a line each, with or without its body."""
    config = load_config()
    refusals = refused_deliveries(config)
    found = refusals.newest(store=store, limit=limit)
    if json_:
        output.as_json([_as_json(one) for one in found])
        return
    if not found:
        click.echo(_nothing(config, store))
        output.next_command("storehooks send order.created --tamper body      see one refused")
        return
    rows = [
        (one.id, one.moment, one.name, one.reason, one.length, one.address, "kept" if one.has_body else "line only")
        for one in found
    ]
    output.table(
        ("ID", "TIME", "STORE", "REASON", "BYTES", "FROM", "BODY"), rows, drop=("BYTES", "FROM"), shorten=("STORE",)
    )
    click.echo()
    click.echo(f"{refusals.count():,} refused on this host, {refusals.count_with_body():,} of them with their body.")
    output.next_command(
        f"storehooks verify --refused {_first_kept(found)}  why", "storehooks refused release  let in what fits by now"
    )


@refused.command("show")
@click.argument("refusal_id", metavar="last|ID")
@click.option("--raw", is_flag=True, help="As `verify --request` and `scheme detect` read it.")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def show_refused(refusal_id: str, raw: bool, json_: bool) -> None:
    """One refused delivery: its line, headers and body."""
    refusal = find_refusal(refused_deliveries(load_config()), refusal_id)
    body = refusal.body or b""
    if raw:
        sys.stdout.buffer.write(write(dict(refusal.headers), body))
        return
    if json_:
        output.as_json({**_as_json(refusal), "headers": refusal.headers, "body": body.decode("utf-8", "replace")})
        return
    click.echo(f"{refusal.name}   {refusal.reason}   refused {output.clock(refusal.moment)} with 401   {refusal.id}")
    click.echo(f"from {output.harmless(refusal.address)}, {refusal.length:,} bytes, sha256 {refusal.hash}")
    click.echo()
    output.table(
        ("HEADER", "VALUE"), [(name, printable(value)) for name, value in sorted(refusal.headers.items())], wrap=True
    )
    click.echo()
    click.echo(output.harmless(body.decode("utf-8", "replace"))[:2000])
    output.next_command(f"storehooks verify --refused {refusal.id}      why it was refused")


@refused.command("release")
@click.argument("refusal_ids", metavar="[ID]...", nargs=-1, type=int)
@click.option("--store", help="Only of this store.")
@click.option("--dry-run", is_flag=True, help="Say what would be let in, and change nothing.")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def release(refusal_ids: tuple[int, ...], store: str | None, dry_run: bool, json_: bool) -> None:
    """Judge refused deliveries again, under today's config and as of their arrival; let in what fits."""
    config = load_config()
    name = choose_store(config, store) if store else None
    told = _dry_run(config, name, refusal_ids) if dry_run else _release(config, name, refusal_ids)
    if json_:
        output.as_json(_released_json(told))
    else:
        _tell(told, dry_run)
    if told.still_refused or told.full:
        raise click.exceptions.Exit(1)


def _first_kept(found: list[Refusal]) -> int:
    return next((one.id for one in found if one.has_body), found[0].id)


def _release(config: Config, store: str | None, ids: tuple[int, ...]) -> Released:
    inbox, refusals, judge = (
        Inbox(connect_server(config)),
        refused_deliveries(config),
        ReleaseCheck(config, stores_with_secrets(config)),
    )
    with click.progressbar(
        length=refusals.count_with_body(), label="judging", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        return let_in(inbox, refusals, judge, chosen(refusals, judge, store=store, ids=ids, looked_at=bar.update))


def _dry_run(config: Config, store: str | None, ids: tuple[int, ...]) -> Released:
    judge, told = ReleaseCheck(config, stores_with_secrets(config)), Released()
    for batch in chosen(refused_deliveries(config), judge, store=store, ids=ids):
        for refusal in batch:
            try:
                judge.judge(refusal)
                told.accepted += 1
            except DeliveryRefused as reason:
                told.still_refused[reason.reason] += 1
    return told


def _tell(told: Released, dry_run: bool) -> None:
    if not told.accepted and not told.duplicates and not told.full and not told.still_refused:
        click.echo("nothing refused is kept here that was meant")
        return
    word = "would be let in" if dry_run else "accepted"
    click.echo(f"{word} {told.accepted:,}, each with its own time of arrival" if told.accepted else f"{word} 0")
    if told.duplicates:
        click.echo(f"duplicates {told.duplicates:,}: they had come again by themselves, and were forgotten here")
    if told.full:
        click.echo(f"full {told.full:,}: the store has too many open events; they stay here, release them later")
    for reason, many in told.still_refused.most_common():
        click.echo(f"still refused {many:,}: {reason}")
    if told.still_refused:
        output.next_command("storehooks verify --refused last      why")
    else:
        output.next_command("storehooks events")


def _released_json(told: Released) -> dict[str, Any]:
    return {
        "accepted": told.accepted,
        "duplicates": told.duplicates,
        "full": told.full,
        "still_refused": dict(told.still_refused),
    }


def _nothing(config: Config, store: str | None) -> str:
    if not config.receiver.refused:
        return 'refused deliveries are not kept: [receiver] refused = "off"'
    return f"nothing was refused{f' of {store}' if store else ''} on this host, or it is gone by age"


def _as_json(one: Refusal) -> dict[str, Any]:
    return {
        "id": one.id,
        "at": one.moment,
        "store": one.name,
        "reason": one.reason,
        "length": one.length,
        "hash": one.hash,
        "address": one.address,
        "kept": one.has_body,
    }
