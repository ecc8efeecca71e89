"""api: call the store's API. `--list` lists the operations, `probe` confirms them by safe GETs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click
from redis import Redis

from receiver.config import Config
from receiver.config.values import is_loopback
from receiver.contract.errors import ConfigError, ServerUnusable
from receiver.contract.records import Record
from workers.cli import output
from workers.cli.api_import import ImportOptions, import_file
from workers.cli.auditing import record_if_reachable
from workers.cli.listing import RowList
from workers.cli.options import Command, choose_store, connect_server, load_config, yes_option
from workers.storeapi import exact_json
from workers.storeapi.catalogue import Catalogue, Operation, configured_catalogue
from workers.storeapi.confirmations import Confirmations, state_text
from workers.storeapi.errors import ApiError
from workers.storeapi.pages import Pages

PROBE = "probe"
FULL_PATHS = 110
"""The terminal width that the list of operations needs for whole paths."""
MAX_COLUMNS = 6
"""The maximum number of columns in a table of records."""


@click.command(cls=Command)
@click.argument("group", required=False)
@click.argument("operation", required=False)
@click.argument("values", nargs=-1)
@click.option("--list", "list_", is_flag=True, help="List all operations: documented, assumed or confirmed.")
@click.option(
    "--param", "-p", "params", multiple=True, metavar="NAME=VALUE", help="A parameter or a field. Can be repeated."
)
@click.option(
    "--data",
    "data_file",
    type=click.Path(exists=True, dir_okay=False),
    help="The body as JSON, or rows to import as CSV.",
)
@click.option("--key", "key", metavar="COLUMN", help="Import: update the record with the same value, or add it.")
@click.option("--again", is_flag=True, help="Import: also a file that was imported before.")
@click.option("--dry-run", is_flag=True, help="Import: show what would be sent, and the first errors.")
@click.option("--store", help="The store. Optional if only one store is configured.")
@click.option("--all", "all_", is_flag=True, help="All pages of a listing, not only the first.")
@yes_option
@click.option("--json", "json_", is_flag=True, help="Print JSON, also on a terminal.")
def api(
    group: str | None,
    operation: str | None,
    values: tuple[str, ...],
    list_: bool,
    params: tuple[str, ...],
    data_file: str | None,
    key: str | None,
    again: bool,
    dry_run: bool,
    store: str | None,
    all_: bool,
    yes: bool,
    json_: bool,
) -> None:
    """Call the store's API.

    It asks for confirmation before a call that is not a GET, unless the store is on this machine.

    \b
    storehooks api --list             list the operations
    storehooks api probe              check which operations the store has; only safe GETs
    storehooks api orders update_status 1001 --param status=paid
    storehooks api products bulk_import --data goods.csv --key sku
    """
    config = load_config()
    if list_ or group is None:
        list_operations(config, store, json_)
        return
    name = choose_store(config, store)
    try:
        if group == PROBE and operation is None:
            probe(config, name, json_)
            return
        importing = ImportOptions(key or "", again, dry_run)
        call(config, name, group, operation, values, _fields(params), data_file, importing, all_, yes, json_)
    except ApiError as error:
        output.error(error)
        raise click.exceptions.Exit(1) from None


# The list


def list_operations(config: Config, store: str | None, json_: bool) -> None:
    name = choose_store(config, store) if store else (next(iter(config.stores)) if len(config.stores) == 1 else None)
    catalogue = configured_catalogue(config, name)
    known = Confirmations(_redis_if_available(config) if name else None, name or "")
    rows = [_row(one, state_text(one, known.confirmed_on(one), name or "")) for one in catalogue]
    prefix = os.path.commonpath([row["path"] for row in rows]).rstrip("/") if output.width() < FULL_PATHS else ""
    listing = RowList(
        cells={
            "path": lambda path: f"…{path.removeprefix(prefix)}" if prefix else path,
            "state": lambda state: output.state(state.split()[0], state),
        },
        drop=("documented",),
        shorten=("path",),
    )
    listing.show(rows, json_=json_)
    if json_:
        return
    output.echo(f"\n{_count(catalogue)}" + (f"\n… stands for {prefix}" if prefix else ""))
    with_api = [one for one in ([name] if name else sorted(config.stores)) if config.stores[one].base_url][:1]
    which = [f" --store {one}" if len(config.stores) > 1 else "" for one in with_api]
    output.next_command(*(f"storehooks api probe{one}  confirm operations by safe GETs" for one in which))


def _row(operation: Operation, state: str) -> dict[str, Any]:
    names = ("group", "name", "method", "path", "documented")
    return {**{name: getattr(operation, name) for name in names}, "state": state}


def _count(catalogue: Catalogue) -> str:
    added = sum(one.state == "added" for one in catalogue)
    more = f", and {added} added by config" if added else ""
    return f"{len(catalogue.operations) - added} operations{more}; assumed ones are not in the API's documentation"


def _redis_if_available(config: Config) -> Redis | None:
    """The Redis server, or None: these commands work without one."""
    try:
        return connect_server(config)
    except ServerUnusable:
        return None


# The call


def call(
    config: Config,
    store: str,
    group: str,
    operation: str | None,
    values: tuple[str, ...],
    fields: dict[str, Any],
    data_file: str | None,
    importing: ImportOptions,
    all_: bool,
    yes: bool,
    json_: bool,
) -> None:
    from workers.storeapi import client_for_store

    catalogue = configured_catalogue(config, store)
    if operation is None:
        names = [one.name for one in catalogue if one.group == group]
        raise ConfigError(
            f"choose an operation of {group}: {', '.join(names)}"
            if names
            else f"no group {group}; see `storehooks api --list`"
        )
    wanted = catalogue.get(group, operation)
    is_import = bool(data_file and wanted.rows and Path(data_file).suffix.lower() != ".json")
    if any(importing) and not is_import:
        raise ConfigError("--key, --again and --dry-run are for the import of a CSV or JSON Lines file with --data")
    client = client_for_store(config, store, _redis_if_available(config))
    only_reads = wanted.method == "GET" or importing.dry_run or is_loopback(config.stores[store].base_url)
    output.confirm(f"call {wanted.full_name} of {store}", yes=yes or only_reads, note=f"{wanted.method} {wanted.path}")
    if wanted.method != "GET" and not importing.dry_run:
        record_if_reachable(config, "call api", store=store, operation=wanted.full_name, of=values, file=data_file)
    if data_file and is_import:
        import_file(client, group, Path(data_file), importing, json_)
        return
    if data_file:
        fields["body"] = _body(data_file)
    show_answer(client.call(group, wanted.name, *values, **fields), all_, json_ or not sys.stdout.isatty())


def _fields(params: Iterable[str]) -> dict[str, Any]:
    fields = {}
    for param in params:
        name, sign, value = param.partition("=")
        if not sign:
            raise ConfigError(f"--param {param} is not NAME=VALUE, such as status=paid")
        fields[name] = _value(value)
    return fields


def _value(text: str) -> Any:
    """An object, a list, true, false, null and whole numbers are read as JSON. Amounts of money stay text."""
    if text[:1] in "{[" or text in ("true", "false", "null") or (text.isascii() and text.isdigit()):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _body(file: str) -> Any:
    try:
        return exact_json.loads(Path(file).read_bytes())
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None


# The answer


def show_answer(answer: Any, all_: bool, as_json: bool) -> None:
    if answer is None:
        if not as_json:
            output.echo("done")
    elif isinstance(answer, Pages):
        records: Iterable[Record] = answer if all_ else answer.first_page()
        (_stream_json if as_json else _show_table)(iter(records))
        if not as_json and isinstance(records, list) and answer.total is not None:
            more = "; --all shows all of them" if answer.total > len(records) else ""
            output.echo(f"\n{answer.total:,} in total{more}")
    elif as_json:
        output.echo(_json(answer))
    else:
        output.payload(_json(answer).encode())


def _stream_json(records: Iterator[Record]) -> None:
    """A JSON list, printed record by record, so that it need not fit into memory."""
    output.echo("[", nl=False)
    for number, record in enumerate(records):
        output.echo(("," if number else "") + "\n  " + _json(record), nl=False)
    output.echo("\n]")


def _show_table(records: Iterator[Record]) -> None:
    """The columns are the fields of the first record."""
    first = next(records, None)
    if first is None:
        output.echo("no records")
        return
    names = [name for name in first if not isinstance(first[name], dict | list)][:MAX_COLUMNS]
    rows = ([_short(record.get(name)) for name in names] for record in chain([first], records))
    headings = [name.upper() for name in names]
    output.table(headings, rows, drop=headings[:1:-1], shorten=headings[1:])


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _json(value: Any) -> str:
    return exact_json.dumps(value).decode()


# The probe


def probe(config: Config, store: str, json_: bool) -> None:
    """Try the operations that only read, and propose corrections of the catalogue. Nothing is written."""
    from workers.storeapi import client_for_store
    from workers.storeapi.probing import Prober

    prober = Prober(client_for_store(config, store, _redis_if_available(config)), config)
    found = prober.run()
    if json_:
        results = [{"operation": one.full_name, "result": result} for one, result in found]
        output.as_json({"operations": results, "proposed": prober.toml()})
    else:
        rows = [(one.full_name, one.path, output.state(_level(result), result)) for one, result in found]
        output.table(("OPERATION", "PATH", "RESULT"), rows, drop=("PATH",), wrap="RESULT")
        if prober.corrections:
            output.echo("\nThe store differs from the catalogue. Proposed for the config; nothing was written:\n")
            output.echo(prober.toml())
        output.next_command("storehooks api --list  all operations and their state")
    if any(_level(result) == "fail" for _, result in found):
        raise click.exceptions.Exit(1)


def _level(result: str) -> str:
    return "ok" if result == "confirmed" else "no" if result.startswith("not tried") else "fail"
