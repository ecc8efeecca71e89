"""Redis before 8.6 replays its append-only file with the rights of the user `default`, and drops what scripts wrote.

`doctor` says so before a restart, and the rights and the rescue of docs/operating/redis.md are right.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from receiver.inbox import connect
from receiver.inbox.redis import embedded_server
from tests.support.harness import Server, System, free_port
from tests.support.programs import ROOT
from workers.operations.doctor.local_facts import server_facts

RIGHTS = re.findall(r"ACL SETUSER storehooks (.+)", (ROOT / "docs/operating/redis.md").read_text())[0]
NO_RIGHTS, ALL_RIGHTS = "off", "off ~* &* +@all"
REDIS = pytest.param(
    shutil.which("redis-server") or "",
    True,
    marks=[pytest.mark.full, pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is missing")],
)
BUNDLED = pytest.param(str(embedded_server.binary()), False)


@pytest.mark.parametrize(("program", "affected"), [REDIS, BUNDLED], ids=["redis-server", "bundled"])
def test_doctor_tells_before_a_restart_loses_what_scripts_wrote(
    make_system: Callable[..., System], tmp_path: Path, program: str, affected: bool
) -> None:
    folder, port = tmp_path / "server", free_port()
    folder.mkdir()
    users = folder / "users.acl"

    def set_default(rights: str) -> None:
        users.write_text(f"user default {rights}\nuser storehooks {RIGHTS} +acl|dryrun\n")

    set_default(NO_RIGHTS)
    server = Server(folder, extra=("--port", str(port), "--aclfile", str(users)), program=program)
    url = f"redis://storehooks:PASSWORD@127.0.0.1:{port}/0"
    server.client = connect(url, timeout=2.0)
    server.start()
    try:
        system = make_system(url=url)
        (web,) = system.start("web")
        system.deliver()
        web.stop()
        report = system.run_cli("doctor").stdout
        assert ("FAIL  server" in report) == affected, report
        assert ("replays its append-only file as the user default" in " ".join(report.split())) == affected, report

        server.kill()
        server.start()
        assert system.ledger.counters().total["accepted"] == (0 if affected else 1)

        server.kill()
        set_default(ALL_RIGHTS)
        server.start()
        assert system.ledger.counters().total["accepted"] == 1
        assert "ok    server" in system.run_cli("doctor").stdout
    finally:
        server.stop()
        server.client.close()


@pytest.mark.parametrize(
    ("default", "more", "denied"),
    [
        ("on nopass ~* &* +@all -@dangerous", "+acl|dryrun", ""),
        ("on nopass ~sh:* ~rq:* +@write", "+acl|dryrun", ""),
        ("on nopass ~* +@read", "+acl|dryrun", "no permissions to run the 'del' command"),
        ("on nopass ~sh:* +@all", "+acl|dryrun", "no permissions to access the 'rq:queues' key"),
        ("on nopass -@all +ping", "", ""),  # our user may not ask
    ],
)
def test_what_the_default_user_may_not_do(own_redis: Server, default: str, more: str, denied: str) -> None:
    own_redis.client.execute_command("ACL", "SETUSER", "storehooks", *RIGHTS.split(), *more.split())
    own_redis.client.execute_command("ACL", "SETUSER", "default", "reset", *default.split())
    asking = connect(own_redis.url.replace("unix://", "unix://storehooks:PASSWORD@"), timeout=2.0)
    said = server_facts(asking).default_denied
    assert denied in said
    assert bool(said) == bool(denied)
    asking.close()
