"""api: the store's API by hand. `--list` shows what there is, GROUP OPERATION does it, `probe` tries what is safe."""

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
from receiver.contract.errors import ConfigError, ServerUnusable
from receiver.contract.records import Record
from workers.cli import output
from workers.cli.options import choose_store, connect_server, load_config, with_config
from workers.storeapi import exact_json
from workers.storeapi.catalogue import Catalogue, Operation, configured_catalogue
from workers.storeapi.confirmations import Confirmations, state_text
from workers.storeapi.errors import ApiError, ResourceNotFound
from workers.storeapi.pages import Pages

PROBE = "probe"
FULL_PATHS = 110
"""Columns of a terminal that the list of operations needs with whole paths."""
WIDEST = 6
"""How many columns a table of unknown records has at most."""


@click.command()
@click.argument("group", required=False)
@click.argument("operation", required=False)
@click.argument("values", nargs=-1)
@click.option("--list", "list_", is_flag=True, help="Every operation, and whether it is documented or assumed.")
@click.option("--param", "-p", "params", multiple=True, metavar="NAME=VALUE", help="A parameter or a field.")
@click.option("--data", "data_file", type=click.Path(exists=True, dir_okay=False), help="The body: JSON; rows: CSV.")
@click.option("--store", help="Which store; with one it need not be said.")
@click.option("--all", "all_", is_flag=True, help="Every page of a listing, not only the first.")
@click.option("--json", "json_", is_flag=True, help="JSON, also on a terminal.")
@with_config
def api(
    group: str | None,
    operation: str | None,
    values: tuple[str, ...],
    list_: bool,
    params: tuple[str, ...],
    data_file: str | None,
    store: str | None,
    all_: bool,
    json_: bool,
) -> None:
    """Call the store's API: storehooks api orders update_status 1001 --param status=paid

    \b
    storehooks api --list             the operations
    storehooks api probe              which of them answer at the store; only safe GETs
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
        call(config, name, group, operation, values, _fields(params), data_file, all_, json_)
    except ApiError as error:
        output.warn(f"storehooks: {error}")
        raise click.exceptions.Exit(1) from None


# The list


def list_operations(config: Config, store: str | None, json_: bool) -> None:
    name = choose_store(config, store) if store else (next(iter(config.stores)) if len(config.stores) == 1 else None)
    catalogue = configured_catalogue(config, name)
    known = Confirmations(_redis_if_there(config) if name else None, name or "")
    rows = [_row(one, state_text(one, known.confirmed_on(one), name or "")) for one in catalogue]
    if json_:
        output.as_json(rows)
        return
    above = _above(rows) if output.room() < FULL_PATHS else ""
    cells = [_cells(row, above) for row in rows]
    output.table(("OPERATION", "METHOD", "PATH", "STATE"), cells, shorten=("PATH",))
    click.echo(f"\n{_count(catalogue)}" + (f"\n… is {above}" if above else ""))
    output.next_command("storehooks api probe      confirm what can be confirmed by reading")


def _row(operation: Operation, state: str) -> dict[str, Any]:
    return {
        "group": operation.group,
        "name": operation.name,
        "method": operation.method,
        "path": operation.path,
        "documented": operation.documented,
        "state": state,
    }


def _above(rows: list[dict[str, Any]]) -> str:
    """What all paths begin with."""
    return os.path.commonpath([str(row["path"]) for row in rows]).rstrip("/")


def _cells(row: dict[str, Any], above: str) -> tuple[str, ...]:
    path = f"…{row['path'].removeprefix(above)}" if above else row["path"]
    return f"{row['group']}.{row['name']}", row["method"], path, row["state"]


def _count(catalogue: Catalogue) -> str:
    added = sum(one.state == "added" for one in catalogue)
    more = f", and {added} added by config" if added else ""
    return (
        f"{len(catalogue.operations) - added} operations{more}; only what is called documented is in the API's document"
    )


def _redis_if_there(config: Config) -> Redis | None:
    """The server, if it runs: these commands work without one, sharing nothing."""
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
    all_: bool,
    json_: bool,
) -> None:
    from workers.storeapi import client_for_store

    catalogue = configured_catalogue(config, store)
    if operation is None:
        names = [one.name for one in catalogue if one.group == group]
        raise ConfigError(f"which operation of {group}? {', '.join(names) or 'there is no such group'}")
    wanted = catalogue.get(group, operation)
    client = client_for_store(config, store, _redis_if_there(config))
    if data_file and wanted.rows and Path(data_file).suffix.lower() != ".json":
        import_file(client, group, Path(data_file), json_)
        return
    if data_file:
        fields["body"] = _body(data_file)
    show_answer(client.call(group, wanted.name, *values, **fields), all_, json_ or not sys.stdout.isatty())


def _fields(params: Iterable[str]) -> dict[str, Any]:
    fields = {}
    for param in params:
        name, sign, value = param.partition("=")
        if not sign:
            raise ConfigError(f"--param {param}: write --param status=paid")
        fields[name] = _value(value)
    return fields


def _value(text: str) -> Any:
    """JSON where it is an object, a list, true, false or a whole number; an amount of money stays text."""
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


def import_file(client: Any, group: str, path: Path, json_: bool) -> None:
    """A file of rows, with a progress bar; interrupted, the same command goes on where it stopped."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    from workers.storeapi.bulk_import.importer import Importer

    importer = Importer(client, group, path)
    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{group} from {path.name}", total=path.stat().st_size)
        try:
            done = importer.run(lambda now: bar.update(task, completed=now.position))
        except (ApiError, KeyboardInterrupt):
            bar.stop()
            output.warn(f"stopped, and {importer.progress_file} knows where; the same command goes on from there")
            raise
    if json_ or not sys.stdout.isatty():
        output.as_json({"rows": done.rows, "accepted": done.accepted, "refused": done.refused})
    else:
        click.echo(f"{done.rows:,} rows: {done.accepted:,} accepted, {done.refused:,} refused")
    if done.refused:
        output.warn(f"the refused rows, and why: {importer.report_file}")
        raise click.exceptions.Exit(1)


# The answer


def show_answer(answer: Any, all_: bool, as_json: bool) -> None:
    if answer is None:
        if not as_json:
            click.echo("done")
    elif isinstance(answer, Pages):
        records: Iterable[Record] = answer if all_ else answer.first_page()
        (_stream_json if as_json else _show_table)(iter(records))
        if not as_json and not all_ and answer.total is not None:
            output.next_command(f"{answer.total:,} in all; --all shows them")
    elif as_json:
        click.echo(_json(answer))
    else:
        for name, value in answer.items():
            click.echo(f"{output.harmless(str(name))}  {output.harmless(_short(value))}")


def _stream_json(records: Iterator[Record]) -> None:
    """A JSON list, written as it comes: a hundred thousand records need not fit into memory."""
    click.echo("[", nl=False)
    for number, record in enumerate(records):
        click.echo(("," if number else "") + "\n  " + _json(record), nl=False)
    click.echo("\n]")


def _show_table(records: Iterator[Record]) -> None:
    """Columns by the first record; so many rows at a time that widths can be made to fit."""
    first = next(records, None)
    if first is None:
        click.echo("none")
        return
    names = [name for name in first if not isinstance(first[name], dict | list)][:WIDEST]
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
    """Try every GET that needs no id of its own; ids come from the listings."""
    from workers.storeapi import client_for_store

    client = client_for_store(config, store, _redis_if_there(config))
    found = list(_probed(client))
    if json_:
        output.as_json([{"operation": one.full_name, "result": result} for one, result in found])
    else:
        rows = [(one.full_name, one.path, result) for one, result in found]
        output.table(("OPERATION", "PATH", "RESULT"), rows, drop=("PATH",), wrap=True)
        output.next_command("storehooks api --list      what is confirmed now")
    if any(result.startswith(("no:", "not known")) for _, result in found):
        raise click.exceptions.Exit(1)


def _probed(client: Any) -> Iterator[tuple[Operation, str]]:
    ids: dict[str, Any] = {}
    safe = [one for one in client.catalogue if one.method == "GET"]
    for operation in sorted(safe, key=lambda one: len(one.parameters)):
        if len(operation.parameters) > 1 or (operation.parameters and "import" in operation.name):
            yield operation, "not tried: it needs an id that no listing gives"
        elif operation.parameters and operation.group not in ids:
            yield operation, "not tried: there is no record to try it with"
        else:
            yield operation, _try(client, operation, ids)


def _try(client: Any, operation: Operation, ids: dict[str, Any]) -> str:
    path = [ids[operation.group]] if operation.parameters else []
    try:
        answer = client.call(operation.group, operation.name, *path)
        if isinstance(answer, Pages):
            records = answer.first_page()
            if records and operation.name == "list":
                ids[operation.group] = records[0].id
    except ResourceNotFound as error:
        return f"no: {error.status}; set [stores.{client.store}.catalogue.{operation.full_name}] path"
    except ApiError as error:
        return f"not known: {error.reason.splitlines()[0]}"
    return "confirmed"
