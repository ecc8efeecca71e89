"""console: run the operator's web app, or print a link to a running one."""

from __future__ import annotations

import click

from workers.cli import output
from workers.cli.options import Command, connect_server, load_config
from workers.cli.run import replace_process


@click.command(cls=Command)
@click.option("--link", is_flag=True, help="Only print a link that opens a running console once.")
def console(link: bool) -> None:
    """Run the operator's web app.

    With a password ([console] password), it prints its address. Without one, it listens on a loopback address only, and
    prints a link that works once.
    """
    from workers.console.access import has_password, new_link

    if not link:
        replace_process("workers.console")
    config = load_config()
    if has_password(config.console):
        output.echo(f"{config.console.address}   log in with the password")
        return
    output.echo(new_link(config.console, connect_server(config)))
