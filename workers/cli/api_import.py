"""api bulk_import: import a file of rows into a store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from workers.cli import output
from workers.storeapi.errors import ApiError

if TYPE_CHECKING:
    from workers.storeapi import Client
    from workers.storeapi.bulk_import.importer import Importer, ImportProgress


class ImportOptions(NamedTuple):
    key: str = ""
    again: bool = False
    dry_run: bool = False


def import_file(client: Client, group: str, path: Path, options: ImportOptions, json_: bool) -> None:
    """Import a file of rows. If it is interrupted, the same command continues where it stopped."""
    from workers.storeapi.bulk_import.importer import Importer

    importer = Importer(client, group, path, key=options.key, again=options.again)
    as_json = json_ or not sys.stdout.isatty()
    if options.dry_run:
        _check(importer, path, options, as_json)
        return
    with output.progress(f"importing {group}", path.stat().st_size, unit="bytes") as bar:
        try:
            done = importer.run(lambda now: bar.reach(now.position))
        except (ApiError, KeyboardInterrupt):
            bar.stop()
            where = "" if options.key else f" from the position in {importer.progress_file}"
            output.warn(f"stopped; the same command continues{where}")
            raise
    if as_json:
        output.as_json(_counts(done, options))
    else:
        output.echo(_sentence(done, options))
    if done.refused:
        output.warn(f"the refused rows and their errors are in {importer.report_file}")
        raise click.exceptions.Exit(1)


def _check(importer: Importer, path: Path, options: ImportOptions, as_json: bool) -> None:
    with output.progress("reading", path.stat().st_size, unit="bytes") as bar:
        done, errors = importer.check(lambda now: bar.reach(now.position))
    if as_json:
        output.as_json({**_counts(done, options), "dry_run": True, "errors": errors})
    else:
        output.echo(f"dry run, nothing was sent: {_sentence(done, options)}")
        for error in errors:
            output.echo(f"  {error}")
        if done.refused > len(errors):
            output.echo(f"  and {done.refused - len(errors):,} more")
    if done.refused:
        raise click.exceptions.Exit(1)


def _counts(done: ImportProgress, options: ImportOptions) -> dict[str, int]:
    matched = {"updated": done.updated, "unchanged": done.unchanged} if options.key else {}
    return {"rows": done.rows, "accepted": done.accepted, **matched, "refused": done.refused}


def _sentence(done: ImportProgress, options: ImportOptions) -> str:
    counts = _counts(done, options)
    rows = counts.pop("rows")
    return f"{rows:,} rows: {', '.join(f'{count:,} {name}' for name, count in counts.items())}"
