"""Before a process starts: the data directory can be written, and no other user can read what is in it."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from receiver.process.start_checks import open_to_others, prepare_data_dir
from tests.support.harness import HEAD, SECRET, Process, System, eventually, free_port, sandbox_config, storehooks
from tests.support.programs import ROOT

PROCESSES = ("web", "worker", "dev", "sandbox")


def readable_by_others(folder: Path) -> dict[str, str]:
    """What other users may do with a folder and everything in it, as far as they may do anything."""
    modes = dict[Path, int]()
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):  # a journal, which its process has deleted meanwhile
            modes[path] = path.lstat().st_mode
    return {str(path): stat.filemode(mode) for path, mode in modes.items() if mode & 0o077}


def start(command: str, config: Path) -> subprocess.CompletedProcess[str]:
    modules = {"web": ["receiver.server.web"], "worker": ["workers"]}
    more = ["--store", "north"] if command == "sandbox" else []
    module = modules.get(command, ["workers.cli", command, *more])
    return subprocess.run(
        [sys.executable, "-m", *module, "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )


@pytest.fixture
def careless_dev(tmp_path: Path) -> Iterator[Callable[[], Process]]:
    """`storehooks dev` where new files are readable and writable for all users, by the umask."""
    started: list[Process] = []
    config = tmp_path / "config.toml"
    (tmp_path / "shop.py").write_text("from workers import Router\nrouter = Router('shop')\n")
    head = HEAD.format(redis="", data=tmp_path / "data", port=free_port())
    more = f'[workers]\nplugins = ["shop.py"]\n[secrets]\nkey = "{"ab" * 32}"\n[console]\nbind = "127.0.0.1:0"\n'
    config.write_text(head + more + sandbox_config(free_port()))

    def run() -> Process:
        command = shlex.join([sys.executable, "-m", "workers.cli", "dev", "--config", str(config)])
        process = Process(["sh", "-c", f"umask 0; exec {command}"], log=tmp_path / "dev.log")
        started.append(process)
        eventually(lambda: storehooks("api", "webhooks", "list", "--config", str(config)).returncode == 0, 20)
        return process

    yield run
    for process in started:
        process.stop()


@pytest.mark.full
def test_whatever_the_umask_no_other_user_can_read_the_data_directory(
    careless_dev: Callable[[], Process], tmp_path: Path
) -> None:
    careless_dev()
    config = ("--config", str(tmp_path / "config.toml"))
    assert storehooks("send", "order.created", "--tamper", "body", *config).returncode == 1
    eventually((tmp_path / "data" / "refused.sqlite3").exists, what="a stored refusal")

    def rotated() -> bool:
        """`dev` may be changing the subscriptions itself."""
        return storehooks("subscriptions", "rotate", "--store", "north", "--yes", *config).returncode == 0

    eventually(rotated, 60)
    names = {path.name for path in (tmp_path / "data").rglob("*")}
    assert {"redis.sock", "appendonlydir", "keyring.json", "sandbox-north.sqlite3", "receiver.log"} <= names
    assert readable_by_others(tmp_path / "data") == {}


@pytest.mark.parametrize("command", ["web", "worker"])
def test_a_data_directory_that_others_can_read_is_closed_to_them_at_start(system: System, command: str) -> None:
    data = system.config.data_dir
    wide = [data / "run", data / "redis", data / "redis" / "appendonlydir"]
    for folder in wide:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    for name in ("spool.sqlite3", "keyring.json", "known_data", "redis/appendonlydir/appendonly.aof.1.incr.aof"):
        (data / name).touch()
        (data / name).chmod(0o644)
    data.chmod(0o777)
    system.start("web" if command == "web" else "supervisor")
    log = "web" if command == "web" else "supervisor"
    eventually(lambda: "other users could read" in system.log(log), 20)
    eventually(lambda: readable_by_others(data) == {}, what="everything is closed to others")


def test_files_that_are_not_ours_and_their_folder_keep_their_modes(system: System) -> None:
    data = system.config.data_dir
    data.chmod(0o755)
    for name in ("notes.txt", "spool.sqlite3"):
        (data / name).touch()
        (data / name).chmod(0o644)
    target = data.parent / "elsewhere"
    target.touch()
    target.chmod(0o644)
    (data / "keyring.json").symlink_to(target)
    system.start("web")
    eventually(lambda: (data / "spool.sqlite3").stat().st_mode & 0o777 == 0o600)
    assert [path.stat().st_mode & 0o777 for path in (data, data / "notes.txt", target)] == [0o755, 0o644, 0o644]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_data_directory_that_is_a_symlink_is_closed_where_it_leads(tmp_path: Path) -> None:
    target, link = tmp_path / "disk", tmp_path / "data"
    target.mkdir()
    target.chmod(0o755)
    link.symlink_to(target)
    assert list(open_to_others(link)) == [target]
    prepare_data_dir(link)
    assert mode_of(target) == 0o700
    assert list(open_to_others(link)) == []


def test_folders_of_a_project_that_have_the_names_of_ours_keep_their_modes(tmp_path: Path) -> None:
    """Only the files with our names in them are closed."""
    theirs = ["spool.py", "logs/app.log", "redis/redis.conf", "run/app.lock", "run/old/worker-0a1b2c3d.lock"]
    ours = ["logs/receiver.log", "redis/appendonlydir/appendonly.aof.1.incr.aof", "run/worker-0a1b2c3d.lock"]
    for name in (*theirs, *ours):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    prepare_data_dir(tmp_path)
    closed = {str(path.relative_to(tmp_path)) for path in (tmp_path, *tmp_path.rglob("*")) if not mode_of(path) & 0o077}
    assert closed == {*ours, "redis/appendonlydir"}
    assert list(open_to_others(tmp_path)) == [tmp_path]


@pytest.mark.parametrize("command", PROCESSES)
def test_a_data_directory_that_cannot_be_created_is_refused(system: System, command: str) -> None:
    data = system.config.data_dir
    data.rmdir()
    data.write_text("a file")
    done = start(command, system.config_file)
    assert done.returncode == 2
    assert f"[redis] data_dir: {data} is not a folder" in done.stderr
    assert "Traceback" not in done.stderr


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory at this folder."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("command", PROCESSES)
def test_a_data_directory_on_a_read_only_disk_is_refused(system: System, command: str) -> None:
    data = system.config.data_dir
    with mounted(data, "ro,size=1m"):
        done = start(command, system.config_file)
    assert done.returncode == 2
    assert f"[redis] data_dir: {data} cannot be written: Read-only file system; make it writable" in done.stderr
    assert "owner" not in done.stderr


def test_a_full_disk_does_not_keep_the_receiver_from_starting(system: System) -> None:
    data = system.config.data_dir
    with mounted(data, "size=64k,nr_inodes=2"):
        (data / "spool.full").write_bytes(bytes(60 << 10))
        system.start("web")
        assert system.post(system.request()).status_code == 200
        system.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another user")
def test_a_data_directory_of_another_user_is_refused(system: System, tmp_path: Path) -> None:
    """The sentence is that of the check; the program itself may not be readable for that user."""
    data = system.config.data_dir
    data.chmod(0o700)
    code = f"""
import os
from pathlib import Path
from receiver.contract.errors import ConfigError
from receiver.process.start_checks import prepare_data_dir
os.setuid(65534)
try:
    prepare_data_dir(Path({str(data)!r}))
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert f"[redis] data_dir: {data} cannot be written: Permission denied; change its owner" in done.stdout, (
        done.stderr
    )


def test_doctor_names_what_other_users_can_read(system: System) -> None:
    data = system.config.data_dir
    (data / "spool.sqlite3").touch()
    (data / "spool.sqlite3").chmod(0o640)
    data.chmod(0o750)
    done = system.run_cli("doctor", "--json")
    found = [
        one for one in json.loads(done.stdout)["findings"] if "other users" in one["text"] and one["check"] == "disk"
    ]
    fix = f"chmod go= {data} {data}/spool.sqlite3, or set [redis] data_dir"
    assert [one["fix"].startswith(fix) for one in found] == [True]
    assert "spool.sqlite3" in found[0]["text"]
    data.chmod(0o700)
    (data / "spool.sqlite3").chmod(0o600)
    assert "can open" not in system.run_cli("doctor").stdout


# The sandbox


@pytest.mark.parametrize(
    ("auth", "secret", "refused"),
    [
        ('{ url = "/oauth/token", client_id = "sandbox", client_secret = "sandbox-secret" }', SECRET, True),
        ("{}", SECRET, True),
        ('{ url = "/oauth/token", client_id = "app", client_secret = "mine" }', SECRET, False),
        ('{ token = "mine" }', SECRET, False),
    ],
)
def test_the_sandbox_listens_to_the_network_only_with_credentials_of_its_own(
    system: System, auth: str, secret: str, refused: bool
) -> None:
    port = free_port()
    text = system.config_file.read_text().replace("[stores.north]\n", f"[stores.north]\nauth = {auth}\n")
    system.config_file.write_text(text[: text.index("[sandbox]")] + f'[sandbox]\nbind = "0.0.0.0:{port}"\n')
    process = system.start_cli("sandbox", "--store", "north", "--no-shopper")
    if refused:
        assert process.wait(20) == 2
        assert "the credentials of the sandbox are published" in process.output()
        assert "set auth with a client_id and client_secret of your own" in process.output()
    else:
        status = ("sandbox", "status", "--config", str(system.config_file))
        eventually(lambda: storehooks(*status).returncode == 0, 20, what="the sandbox answers")
