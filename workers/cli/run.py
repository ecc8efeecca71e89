"""web, worker, console: the processes of production, as the Procfile runs them."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import click

from receiver.config import data_dir_from_environment, load_from_environment
from receiver.contract.errors import ConfigError
from receiver.process.disk_try import HANGS, disk_error
from receiver.process.process_files import held
from workers.cli.options import Command, connect_server, given_config, load_config
from workers.cli.output import echo
from workers.processes import python_command

SILENT_SECONDS = 10.0
"""The supervisor shows life each second, until a process of its own has not responded for 15 s."""


@click.command(cls=Command)
def web() -> None:
    """Run the receiver: the public HTTP endpoint."""
    replace_process("receiver.server.web")


@click.command(cls=Command)
@click.option("--check", is_flag=True, help="Run nothing; exit 1 unless the workers on this host respond.")
def worker(check: bool) -> None:
    """Run the workers and their housekeeper."""
    if check:
        try:
            data_dir = data_dir_from_environment(given_config() or None)
        except ConfigError as error:  # running workers keep the config that they have: a mistake must not end them
            echo(f"not checked, since data_dir is not known: {error}", err=True)
            return
        try:
            fault = workers_fault(data_dir)
        except OSError as error:
            echo(f"not checked: {data_dir} cannot be written: {error.strerror}", err=True)
            return
        echo(fault or "ok", err=bool(fault))
        click.get_current_context().exit(1 if fault else 0)
    else:
        replace_process("workers")


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
        echo(f"{config.console.address}   log in with the password")
        return
    echo(new_link(config.console, connect_server(config)))


def workers_fault(data_dir: Path) -> str:
    """Why the workers of this host do not work; empty if they respond. It asks neither Redis nor the network: while
    Redis is away, a restart would not help. Raises OSError if they cannot show life, because the disk hangs or
    is read-only: then a restart would do harm."""
    found = [file for file in held(data_dir) if file.role == "worker"]
    if not found:
        return f"no worker on this host uses {data_dir}; `storehooks worker` starts one"
    silent = [file for file in found if file.silent_for > SILENT_SECONDS]
    if not silent:
        return ""
    error = disk_error(data_dir)
    if error and error.errno in (HANGS, errno.EROFS):
        raise error
    return f"the worker with process id {silent[0].pid}, or a process that it has started, does not respond; restart it"


def replace_process(module: str) -> None:
    """Replace this process by another one of ours. The receiver is never imported here."""
    config = load_from_environment(given_config() or None)
    sys.stdout.flush()
    os.execv(sys.executable, python_command(module, config=config.path))
