"""A Redis server that does not know a command of ours: no process starts, and the sentence names the command."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from receiver.contract.errors import ServerUnusable
from receiver.inbox import connect
from receiver.inbox.redis import embedded_server
from receiver.inbox.redis.connecting import check
from receiver.inbox.redis.needed_commands import COMMANDS
from tests.support.harness import Process, Server, System, eventually
from tests.support.programs import ROOT


@contextmanager
def renaming_server(folder: Path, *commands: str) -> Iterator[str]:
    """The URL of a server where these commands were renamed away."""
    config, socket_file = folder / "renamed.conf", folder / "renamed.sock"
    renamed = "".join(f'rename-command {command} ""\n' for command in commands)
    config.write_text(f"{renamed}port 0\ndir {folder}\nunixsocket {socket_file}\n")
    process = Process([str(embedded_server.binary()), str(config)], log=folder / "renamed.log")
    try:
        eventually(lambda: _listens(socket_file), what="the server listens")
        yield f"unix://{socket_file}"
    finally:
        process.stop()


def _listens(file: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(str(file)) == 0


@pytest.mark.parametrize("command", ["INFO", "TIME", "FCALL", "SMEMBERS"])
def test_a_command_that_was_renamed_away_is_named(tmp_path: Path, command: str) -> None:
    said = f"does not know the command {command}; remove rename-command"
    with renaming_server(tmp_path, command) as url, pytest.raises(ServerUnusable, match=said):
        check(connect(url, timeout=2.0))


@pytest.mark.parametrize("hidden", [(), ("COMMAND",)])
def test_optional_commands_may_be_renamed_away(tmp_path: Path, hidden: tuple[str, ...]) -> None:
    with renaming_server(tmp_path, "CONFIG", "ACL", "BGSAVE", "BGREWRITEAOF", "MEMORY", *hidden) as url:
        check(connect(url, timeout=2.0), works=True)


@pytest.mark.parametrize("command", ["web", "worker"])
def test_no_process_starts_without_a_command_of_its_scripts_and_doctor_says_so(
    make_system: Callable[..., System], tmp_path: Path, command: str
) -> None:
    """Both started, deliveries were accepted and not handled, and doctor said that neither starts."""
    with renaming_server(tmp_path, "EXPIRE", "PEXPIRE") as url:
        system = make_system(url=url)
        done = system.refuse_to_start(command)
        assert done.returncode == 2
        assert "does not know the commands EXPIRE, PEXPIRE; remove rename-command" in done.stderr
        said = " ".join(system.run_cli("doctor").stdout.split())
        assert "does not know the commands EXPIRE, PEXPIRE" in said
        assert "do not restart them; processes that run already fail where they use them" in said
        assert "no worker is running" not in said


def test_every_command_of_our_scripts_is_tried_at_start(own_redis: Server) -> None:
    known = {name.decode().upper() for name in own_redis.client.execute_command("COMMAND LIST")}
    texts = [file.read_text() for room in ("receiver", "workers") for file in (ROOT / room).rglob("*.lua")]
    used = {word for text in texts for word in re.findall(r"""['"]([A-Z]+)['"]""", text)} & known
    assert len(used) > 40
    assert used - set(COMMANDS) == {"PUBLISH", "RENAME"}, "no event waits for these"
