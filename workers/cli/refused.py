"""refused: deliveries with an invalid signature, stored for a while; release accepts those that are valid by now."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

import click

from receiver.config import Config
from receiver.contract.diagnosis.formatting import counted, span
from receiver.contract.diagnosis.terminal_text import printable
from receiver.contract.errors import ConfigError, NotFound, StorehooksError
from receiver.inbox import Inbox
from receiver.spool import Refusal, Refusals, is_busy
from workers.cli import output
from workers.cli.auditing import record, record_if_reachable
from workers.cli.capture_file import write
from workers.cli.listing import RowList, follow_option
from workers.cli.options import (
    Noun,
    choose_store,
    connect_server,
    json_option,
    load_config,
    refused_deliveries,
    yes_option,
)
from workers.cli.send_hint import send_command
from workers.cli.verify import find_refusal, find_refusal_id
from workers.operations.arrivals import RefusalArrivals
from workers.operations.release import (
    ReleaseCheck,
    Released,
    count_selected,
    select_refusals,
    verified,
    with_open_headers,
)
from workers.operations.release import release as accept_valid

LISTING = RowList(
    cells={"has_body": lambda value: "yes" if value else output.state("no")},
    drop=("hash", "length", "address"),
    shorten=("store",),
)
_DELETED_AT_ONCE = 100
"""A full disk has space for the write-ahead log of a few rows, and not for that of all. Where these do not fit, each is
deleted alone."""


@click.group(cls=Noun)
def refused() -> None:
    """List, show, release and drop refused deliveries."""


@refused.command("list")
@click.option("--store", help="Only deliveries of this store.")
@click.option("--limit", default=50, show_default=True, help="Maximum number of deliveries.")
@follow_option
@json_option
def list_refused(store: str | None, limit: int, follow: bool, json_: bool) -> None:
    """List refused deliveries of this host, newest first. With --follow the newest is the last."""
    config = load_config()
    refusals = refused_deliveries(config)
    if follow:
        arrivals = RefusalArrivals(config.data_dir, store=store)
        listed = [one for one in refusals.newest(store=store, limit=limit) if one.id <= arrivals.cursor]
        LISTING.follow(map(_row, reversed(listed)), lambda: map(_row, arrivals.new()), json_=json_)
        return
    found = refusals.newest(store=store, limit=limit)
    LISTING.show([_row(one) for one in found], json_=json_)
    if json_:
        return
    if not found:
        output.line(_nothing(config, store), indent=2)
        if config.receiver.refused:
            output.next_command(
                *(f"{command} --tamper body  send one that is refused" for command in send_command(config))
            )
        return
    output.echo()
    stored = f"{refusals.count():,} stored on this host, {refusals.count_with_body():,} of them with a body"
    output.line(f"{stored}; each for {span(config.receiver.refused.max_age)} at most.", indent=2)
    first = next((one.id for one in found if one.has_body), found[0].id)
    output.next_command(
        f"storehooks verify --refused {first}  why it was refused",
        "storehooks refused release  accept those that are valid by now",
        "storehooks refused drop --all  delete them",
    )


@refused.command("show")
@click.argument("refusal_id", metavar="last|ID")
@click.option("--raw", is_flag=True, help="Print the raw request, as read by `verify --request` and `scheme detect`.")
@click.option("--force", is_flag=True, help="With --raw: print control characters as they are, also on a terminal.")
@json_option
def show_refused(refusal_id: str, raw: bool, force: bool, json_: bool) -> None:
    """Show one refused delivery: reason, headers and body."""
    config = load_config()
    refusal = find_refusal(refused_deliveries(config), refusal_id)
    body = refusal.body or b""
    if raw:
        output.raw(write(dict(with_open_headers(config, refusal).headers), body), force=force)
        return
    if json_:
        output.as_json({**_row(refusal), "headers": refusal.headers, "body": body.decode("utf-8", "replace")})
        return
    output.line(output.state("refused", refusal.reason))
    output.field("delivery", str(refusal.id), wide=10)
    output.field("store", refusal.name, wide=10)
    output.field(
        "refused", f"{output.clock(refusal.moment)} with {refusal.answer}, from {refusal.address or 'unknown'}", wide=10
    )
    output.field("body", f"{refusal.length:,} bytes, sha256 {refusal.hash}", wide=10)
    output.echo()
    rows = [(name, printable(value)) for name, value in sorted(refusal.headers.items())]
    output.table(("HEADER", "VALUE"), rows, wrap="VALUE")
    output.echo()
    output.payload(body)
    output.next_command(
        f"storehooks verify --refused {refusal.id}  why it was refused, step by step",
        f"storehooks refused release {refusal.id}  accept it, if it is valid by now",
    )


@refused.command("release")
@click.argument("given", metavar="[last|ID]...", nargs=-1)
@click.option("--store", help="Only deliveries of this store.")
@click.option("--dry-run", is_flag=True, help="Show what would be accepted, and change nothing.")
@yes_option
@json_option
def release(given: tuple[str, ...], store: str | None, dry_run: bool, yes: bool, json_: bool) -> None:
    """Verify refused deliveries again, and accept those that are valid.

    They are checked with the current config, as of the time they arrived.
    """
    config = load_config()
    name = choose_store(config, store) if store else None
    refusals = refused_deliveries(config)
    ids = tuple(find_refusal_id(refusals, one, name) for one in given)
    if not dry_run:
        what = counted(len(ids), "delivery", "deliveries") if ids else f"deliveries{f' of {name}' if name else ''}"
        nothing = not refusals.count_with_body()
        output.confirm(f"verify refused {what} again and accept those that are valid", yes=yes or nothing)
    released = _dry_run(config, name, ids) if dry_run else _release(config, name, ids)
    if json_:
        output.as_json(released)
    else:
        of_store = [f"--store {name}"] if name else []
        verify = " ".join(["storehooks verify", *of_store, "--refused last"])
        then = " ".join(["storehooks refused release", *map(str, ids), *of_store]) if dry_run else ""
        _show_released(released, verify, then)
    if released.still_refused or released.full:
        raise click.exceptions.Exit(1)


@refused.command("drop")
@click.argument("given", metavar="[last|ID]...", nargs=-1)
@click.option("--store", help="All deliveries of this store; also a name that is not configured.")
@click.option("--all", "all_", is_flag=True, help="All refused deliveries of this host.")
@yes_option
def drop(given: tuple[str, ...], store: str | None, all_: bool, yes: bool) -> None:
    """Delete refused deliveries, for example after an attack or a test.

    They cannot be released then, and `storehooks doctor` no longer reports them. The counts of `storehooks stats` stay.
    """
    if sum(map(bool, (given, store, all_))) != 1:
        raise ConfigError("give ids, or --store NAME, or --all; `storehooks refused` lists them")
    config = load_config()
    refusals = refused_deliveries(config)
    chosen = {find_refusal_id(refusals, one) for one in given}
    chosen = chosen or {one.id for one in refusals.newest(store=store, limit=sys.maxsize)}
    if not chosen:
        raise NotFound(f"no refused delivery{f' of {store}' if store else ''} is stored on this host")
    number = counted(len(chosen), "refused delivery", "refused deliveries")
    output.confirm(f"delete {number}{f' of {store}' if store else ''}", yes=yes, note="they cannot be released then")
    ids = sorted(chosen)
    # Redis may refuse writes because its disk is full, and this frees space.
    record_if_reachable(config, "drop refused", count=len(ids), store=store, refused=ids[:100] if given else ())
    _delete(refusals, ids)
    output.echo(f"{number} deleted")


def _delete(refusals: Refusals, ids: Sequence[int]) -> None:
    done, step = 0, _DELETED_AT_ONCE
    while done < len(ids):
        try:
            refusals.delete(ids[done : done + step])
            done += step
            step = min(2 * step, _DELETED_AT_ONCE)
        except sqlite3.Error as error:
            busy = is_busy(error)
            if step == 1 or busy:
                fix = "run the command again" if busy else "free some space on its disk, and run the command again"
                text = f"only {done:,} of {len(ids):,} refused deliveries are deleted"
                raise StorehooksError(f"{text}: {error}; {fix}") from error
            step = 1


def _release(config: Config, store: str | None, ids: tuple[int, ...]) -> Released:
    inbox, refusals = Inbox(connect_server(config)), refused_deliveries(config)
    check = ReleaseCheck(config)
    count = count_selected(refusals, check, store=store, ids=ids)
    record(inbox.client, "release", count=count, store=store, refused=ids)
    with output.progress("verifying", refusals.count_with_body()) as bar:
        batches = select_refusals(refusals, check, store=store, ids=ids, progress=bar.advance)
        return accept_valid(config, inbox, refusals, check, batches, ids)


def _dry_run(config: Config, store: str | None, ids: tuple[int, ...]) -> Released:
    check, released = ReleaseCheck(config), Released()
    for batch in select_refusals(refused_deliveries(config), check, store=store, ids=ids):
        released.accepted += sum(1 + len(one.rest) for _, one in verified(batch, check, released, ids) if one)
    return released


def _show_released(released: Released, verify: str, then: str) -> None:
    """What was released, or what the command `then` would release."""
    if not released.accepted and not released.duplicates and not released.full and not released.still_refused:
        output.echo("no refused deliveries to release")
        return
    at_most, action = ("at most ", "would be accepted") if then else ("", "accepted")
    events = "event" if released.accepted == 1 else "events"
    accepted = output.figure(released.accepted, "accepted")
    output.line(at_most, accepted, f" {events} {action}, with the original time of arrival")
    if released.duplicates:
        duplicates = output.state("duplicate", counted(released.duplicates, "duplicate"))
        output.line(duplicates, ": accepted already, by an earlier release or delivery")
    if released.full:
        output.line(
            output.figure(released.full, "open"), " not released: the store has too many open events; try later"
        )
    for reason, number in released.still_refused.most_common():
        deliveries = "delivery" if number == 1 else "deliveries"
        output.line(output.figure(number, "refused"), f" {deliveries} still refused: {reason}")
    output.next_command(
        *([f"{then}  accept what is valid"] if then and released.accepted else []),
        *([f"{verify}  why it is refused"] if released.still_refused else []),
        *([] if then or released.still_refused else ["storehooks events  the newest events"]),
    )


def _nothing(config: Config, store: str | None) -> str:
    if not config.receiver.refused:
        return 'refused deliveries are not stored: the config has [receiver] refused = "off"'
    return f"no refused deliveries{f' of {store}' if store else ''} on this host"


def _row(one: Refusal) -> dict[str, Any]:
    names = ("reason", "status", "length", "address", "has_body", "hash")
    return {"id": one.id, "at": one.moment, "store": one.name, **{name: getattr(one, name) for name in names}}
