"""The services as a container runs them: no config file, another user, and only the data directory can be written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.harness import SECRET, Process, System, eventually
from tests.support.programs import ROOT, storehooks

PLUGIN = """
import os
from workers import Router
router = Router("shop")
@router.on("*")
def who(event, ctx):
    return f"user {os.getuid()}"
"""
CONTAINER = """
set -e
data=$1; shift
mount --bind "$data" "$data"
awk '{print $5}' /proc/self/mountinfo | while read -r place; do
  case "$place" in "$data"|/proc*|/sys*) ;; *) mount -o remount,bind,ro "$place" || true;; esac
done
exec unshare --map-user=1000 --map-group=1000 -- "$@"
"""


def in_container(data: Path, *command: str) -> list[str]:
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", CONTAINER, "sh", str(data), *command]


def can_contain(tmp_path: Path) -> bool:
    """Whether this machine lets us make such a place: everything read-only, and another user."""
    data = tmp_path / "try"
    data.mkdir()
    script = f'[ "$(id -u)" = 1000 ] && touch {data}/x && ! touch {tmp_path}/x && ! touch /tmp/x && ! touch /dev/shm/x'
    try:
        return subprocess.run(in_container(data, "sh", "-c", script), capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.full
def test_web_and_worker_run_with_variables_only_as_another_user_on_a_read_only_disk(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    if not can_contain(tmp_path):
        pytest.skip("mount namespaces are not permitted here")
    system = make_system(plugin=PLUGIN)
    redis, data = system.config.redis.url, tmp_path / "state"
    data.mkdir(mode=0o700)
    environ = {
        "PYTHONPATH": str(ROOT),
        "HOME": "/nonexistent",
        "STATE_DIRECTORY": str(data),
        "STOREHOOKS_REDIS__URL": redis,
        "STOREHOOKS_RECEIVER__BIND": f"127.0.0.1:{system.port}",
        "STOREHOOKS_RECEIVER__REFUSED": "24h, 16MB",
        "STOREHOOKS_WORKERS__PLUGINS": f'["{system.plugin}"]',
        "STOREHOOKS_STORES__NORTH__SIGNING_SECRETS": f'["{SECRET}"]',
    }
    for name in ("web", "worker"):
        command = in_container(data, sys.executable, "-m", "workers.cli", name)
        log = system.folder / f"{name}.log"
        system.processes.append(Process(command, log=log, env=environ, cwd=Path("/")))
    eventually(system.web_answers, 60, what=f"web answers; {system.log('web')[-800:]}")
    assert f'"path": "{data}", "set_by": "$STATE_DIRECTORY"' in system.log("web")

    event_id = system.deliver()
    assert system.settled(event_id, within=60) == "settled", system.log("worker")
    shown = storehooks("events", "show", event_id, "--json", env=environ, cwd=tmp_path).stdout
    assert '"result": "user 1000"' in shown
    assert system.http.get("/readyz?strict=1").status_code == 200
    assert system.http.post("/webhooks/north", content=b"{}").status_code == 401
    eventually((data / "refused.sqlite3").exists, what="a refused delivery is stored")
    assert storehooks("worker", "--check", env=environ, cwd=tmp_path).returncode == 0
    for process in reversed(system.processes):
        assert process.stop(40) == 0
