"""export, import: everything that is stored, as one file, and into another server."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from receiver import __version__
from receiver.contract.diagnosis.formatting import counted, size
from receiver.contract.errors import ConfigError
from receiver.inbox import keys
from workers.cli import output
from workers.cli.auditing import record
from workers.cli.options import MOMENT, MOMENT_FORMS, Command, connect_server, load_config, yes_option

if TYPE_CHECKING:
    from collections import Counter

    from redis import Redis

    from receiver.config import Config
    from receiver.inbox.keyring.keyring import Keyring

secrets_option = click.option("--secrets", is_flag=True, help="With the signing secrets learned from stores.")
passphrase_option = click.option(
    "--passphrase-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The passphrase of the secrets; without it, a terminal asks.",
)
file_argument = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.command("export", cls=Command)
@file_argument
@click.option("--store", help="Only events of this store, and what belongs to it.")
@click.option("--topic", metavar="GLOB", help='Only events of these topics: "order.*".')
@click.option("--since", type=MOMENT, help=f"Only events accepted since then. {MOMENT_FORMS}")
@click.option("--until", type=MOMENT, help="Only events accepted until then.")
@secrets_option
@passphrase_option
def export(
    file: Path,
    store: str | None,
    topic: str | None,
    since: datetime | None,
    until: datetime | None,
    secrets: bool,
    passphrase_file: Path | None,
) -> None:
    """Write events, failures, marks and state to a file.

    Events have their payloads and runs, and marks are those of ctx.once; pauses and counters are written, too. Nothing
    is changed here, and receivers and workers may run. If it is interrupted, the same command goes on with the
    file. With --topic, --since or --until the file has only events.
    """
    from workers.history.configured_history import open_history
    from workers.operations.transfer.export_file import ExportHeader
    from workers.operations.transfer.exporting import DataExporter

    config = load_config()
    client = connect_server(config)
    history = open_history(config, client)
    if store and store not in config.stores:
        output.warn(f"{store} is no store of the config")
    header = ExportHeader(
        data=_data_id(client),
        store=store or "",
        topic=topic or "",
        since=_microseconds(since),
        until=_microseconds(until),
        is_limited=bool(since or until),
        secrets=secrets,
        storehooks=__version__,
    )
    passphrase = _passphrase(passphrase_file, confirm=True) if secrets else ""
    keyring = _keyring(config, client) if secrets else None
    learned = [
        one for name in ([store] if store else config.stores) for one in (keyring.secrets_of(name) if keyring else ())
    ]
    record(client, "export", file=str(file), store=store, topic=topic, secrets=secrets)
    exporter = DataExporter(client, history, file, header)
    total = int(client.zcard(keys.INDEX)) + (history.sizes().events if history else 0)
    with output.progress("exporting", total) as bar:
        try:
            end = exporter.run(learned, passphrase, bar.reach)
        except KeyboardInterrupt:
            bar.stop()
            output.warn("stopped; the same command goes on")
            raise
    more = f", {counted(len(learned), 'secret')}" if secrets else ""
    states = f"{end.open:,} open, {end.failed:,} failed"
    output.echo(f"wrote {file}, {size(file.stat().st_size)}: {counted(end.events, 'event')} ({states}){more}")
    if exporter.damaged:
        output.warn(f"left out: {counted(exporter.damaged, 'damaged event')}; `storehooks doctor` shows them")
        raise click.exceptions.Exit(1)


@click.command("import", cls=Command)
@file_argument
@secrets_option
@passphrase_option
@yes_option
def import_(file: Path, secrets: bool, passphrase_file: Path | None, yes: bool) -> None:
    """Write an export file into this server.

    What it has already is left as it is, so the command can be repeated. Settled events stay settled, failures stay
    failures, and open events run here: end the workers of the old installation before you export. (Rows for a store's
    API are imported by `storehooks api`.)
    """
    from workers.history.configured_history import open_history
    from workers.operations.transfer.importing import DataImporter, read_summary

    config = load_config()
    header, end = read_summary(file)
    if secrets and not header.secrets:
        raise ConfigError(f"{file} has no secrets; export them with --secrets")
    passphrase = _passphrase(passphrase_file, confirm=False) if secrets else ""
    client = connect_server(config)
    note = f"{counted(end.open, 'open event')} will run here: the old installation must not run them any more"
    output.confirm(f"import {counted(end.events, 'event')}", yes=yes, note=note if end.open else "")
    record(client, "import", count=end.events, file=str(file), data=header.data, secrets=secrets)
    keyring = _keyring(config, client) if secrets else None
    importer = DataImporter(client, open_history(config, client), config, keyring=keyring, passphrase=passphrase)
    with output.progress("importing", file.stat().st_size, unit="bytes") as bar:
        try:
            importer.run(file, bar.reach)
        except (ConfigError, KeyboardInterrupt):
            bar.stop()
            output.warn("stopped; the same command goes on with what is missing")
            raise
    _show(importer.results, has_secrets=header.secrets and not secrets)


def _show(results: Counter[str], *, has_secrets: bool) -> None:
    parts = [f"{results['new']:,} new", f"{results['known']:,} here already"]
    parts += [f"{results['old']:,} older than [retention] records"] if results["old"] else []
    parts += [f"{results['damaged']:,} damaged, left out"] if results["damaged"] else []
    output.echo(f"events: {', '.join(parts)}")
    output.echo(
        f"new marks and values of plugins: {results['values']:,}; new pauses: {results['paused']:,}; "
        f"secrets: {results['secrets']:,}"
    )
    if has_secrets:
        output.echo("the file has secrets, which were left out; --secrets imports them")
    if results["damaged"]:
        raise click.exceptions.Exit(1)


def _data_id(client: Redis) -> str:
    from receiver.inbox.transferred_data import Transfer

    return next(iter(Transfer(client).data_ids()), "")


def _keyring(config: Config, client: Redis) -> Keyring:
    from workers.subscriptions.managed_store import keyring_of

    keyring = keyring_of(config, client)
    if keyring.seal is None:
        raise ConfigError("the learned secrets are sealed under [secrets] key, which is not set")
    return keyring


def _passphrase(path: Path | None, *, confirm: bool) -> str:
    from workers.operations.transfer.secret_box import SHORTEST

    if path is not None:
        try:
            given = path.read_text().removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None
    elif output.is_terminal(sys.stdin):
        given = click.prompt("Passphrase of the secrets", hide_input=True, confirmation_prompt=confirm, err=True)
    else:
        raise ConfigError("--secrets needs a passphrase; without a terminal: --passphrase-file FILE")
    if len(given) < SHORTEST:
        raise ConfigError(f"the passphrase must have at least {SHORTEST} characters")
    return str(given)


def _microseconds(moment: datetime | None) -> int:
    return int(moment.timestamp() * 1_000_000) if moment else 0
