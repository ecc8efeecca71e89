"""hosts: list hosts that receive, with their spools; forget one that is gone; accept that Redis was replaced."""

from __future__ import annotations

import click

from receiver.contract.errors import ConfigError, NotFound
from receiver.inbox import Administration
from receiver.inbox.history_place import place_host
from receiver.inbox.known_data import accept_data, data_notices
from workers.cli import output
from workers.cli.auditing import record
from workers.cli.listing import RowList
from workers.cli.options import Noun, connect_server, connect_to_list_hosts, json_option, load_config, yes_option
from workers.operations.host_spools import Host, accepted, choose_host, find_hosts, write_refusal

LISTING = RowList(
    cells={"state": output.state, "spooled": lambda count: "unknown" if count is None else count}, drop=("oldest",)
)


@click.group(cls=Noun)
def hosts() -> None:
    """List and forget hosts, and accept that Redis was replaced."""


@hosts.command("list")
@json_option
def list_hosts(json_: bool = False) -> None:
    """List hosts: whether they receive, and how many deliveries wait in their spools."""
    config = load_config()
    client = connect_to_list_hosts(config)
    found = find_hosts(config, client)
    LISTING.show([{"name": one.name, **one.as_json()} for one in found], json_=json_)
    if json_:
        return
    if not found:
        output.echo("no host has reported; start `storehooks web`")
        return
    if silent := [one.name for one in found if one.state == "silent" and one.spooled is None]:
        if refusal := write_refusal(client):
            output.line(
                f"the server refuses writes: {refusal}. So no host can report; silent ones may well be receiving."
            )
            output.next_command("storehooks doctor  what to do about it")
            return
        output.next_command(*(f"storehooks hosts forget {name}  if that machine is gone" for name in silent))


@hosts.command("forget")
@click.argument("name")
@yes_option
def forget(name: str, yes: bool) -> None:
    """Forget a host that is gone. What is in its spool is lost with its disk."""
    config = load_config()
    client = connect_server(config)
    found = find_hosts(config, client)
    if name == place_host(client) and name not in [one.name for one in found]:
        left = "its past events are then not shown any more"
        output.confirm(f"forget that {name} has the history", yes=yes, note=left)
        record(client, "forget host", host=name)
        Administration(client).forget_host(name)
        output.echo(f"forgot that {name} has the history")
        return
    host = choose_host(found, name)
    if host.state == "receiving":
        raise ConfigError(f"{host.name} is receiving; stop `storehooks web` there first")
    output.confirm(f"forget {host.name}", yes=yes, note=_left(host))
    record(client, "forget host", host=host.name)
    Administration(client).forget_host(host.name)
    output.echo(f"forgot {host.name}; it is listed again if `storehooks web` starts there")


@hosts.command("accept")
@yes_option
def accept(yes: bool) -> None:
    """Accept that Redis was emptied, replaced or restored, as `storehooks doctor` has reported."""
    client = connect_server(load_config())
    noticed = data_notices(client)
    if not noticed:
        raise NotFound("no host has noticed that Redis was emptied, replaced or restored")
    names = ", ".join(sorted(noticed))
    output.confirm("accept the data that Redis has now", yes=yes, note=f"noticed by {names}")
    record(client, "accept data", hosts=sorted(noticed))
    accept_data(client)
    output.echo(f"{names}: the data that Redis has now is accepted")


def _left(host: Host) -> str:
    """What may be lost."""
    if host.spooled is not None:
        return f"{accepted(host.spooled)} in its spool will not be handled"
    if host.reported is None:
        return f"its spool has {accepted(None)}, and none of them will be handled"
    last = accepted(host.reported)
    return f"its spool had {last} at its last report, may have more since, and none of them will be handled"
