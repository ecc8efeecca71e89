"""What root creates in the data directory of another user belongs to that user, and no link leads root elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from receiver.inbox.keyring.host_files import KeyringFiles, KeyringUnwritable
from receiver.owned_files import create_file, make_folder, open_or_create
from tests.support.harness import System
from tests.support.past_events import past_event
from tests.support.programs import ROOT
from tests.support.sandbox_shop import Shop, running_shop
from workers.history.sqlite_history import SqliteHistory

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    return folder


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with running_shop(tmp_path) as shop:
        os.chown(shop.system.config.data_dir, NOBODY, NOBODY)
        yield shop


def of_root(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.lstat().st_uid != NOBODY]


def run(system: System, *arguments: str) -> None:
    done = system.run_cli(*arguments)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)


def test_commands_of_root_leave_no_file_that_a_service_cannot_write(shop: Shop) -> None:
    """After `subscriptions rotate` of root the service could learn no secret any more."""
    system, data = shop.system, shop.system.config.data_dir
    for path in data.iterdir():
        os.chown(path, NOBODY, NOBODY)  # the sandbox's own
    shop.declare("order.paid")
    run(system, "subscriptions", "apply", "--yes")
    run(system, "subscriptions", "rotate", "--store", "demo", "--yes")
    assert (data / "keyring-pending.lock").exists()
    export = str(system.folder / "export")
    run(system, "export", export)
    system.client.flushall()
    run(system, "import", export, "--yes")
    for listing in ("doctor", "events", "refused", "hosts", "audit"):
        system.run_cli(listing)
    assert of_root(data) == []


def test_processes_of_root_leave_no_file_that_another_user_cannot_write(system: System) -> None:
    data = system.config.data_dir
    os.chown(data, NOBODY, NOBODY)
    system.start("web", "supervisor")
    assert system.post(system.request()).status_code == 200
    request = system.request()
    request.headers["webhook-signature"] = "v1,bad"
    assert system.post(request).status_code == 401
    assert (data / "run").exists()
    assert of_root(data) == []


def test_the_history_of_root_can_be_written_by_another_user(data: Path) -> None:
    history = SqliteHistory(data / "history")
    history.check()
    history.write([past_event()])
    assert len(list((data / "history").iterdir())) == 2
    assert of_root(data) == []


def test_root_follows_no_link_and_gives_nothing_away_that_was_there(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    (data / "link").symlink_to(other)
    (data / "dangling").symlink_to(tmp_path / "missing")
    for name in ("link", "dangling"):
        with pytest.raises(FileExistsError):
            create_file(data / name)
        with pytest.raises(OSError, match="symbolic links"):
            open_or_create(data / name)
    os.link(other, data / "hard link")
    os.close(open_or_create(data / "hard link"))
    (data / "folder").symlink_to(tmp_path)
    make_folder(data / "folder")
    assert (other.stat().st_uid, tmp_path.stat().st_uid, other.read_text()) == (0, 0, "kept")
    assert not (tmp_path / "missing").exists()


def test_a_linked_lock_of_the_keyring_is_refused(data: Path, tmp_path: Path) -> None:
    (data / "keyring-pending.lock").symlink_to(tmp_path / "missing")
    with pytest.raises(KeyringUnwritable, match=r"keyring-pending\.lock"):
        KeyringFiles(data).add_pending([("north", "mark", b"{}")])
    assert not (tmp_path / "missing").exists()


def test_pending_secrets_that_may_not_be_read_are_not_replaced() -> None:
    """An earlier version left them to root. They counted as none, and the next write was in their place."""
    with TemporaryDirectory() as name:
        data = Path(name)
        os.chown(data, NOBODY, NOBODY)
        KeyringFiles(data).add_pending([("north", "mark", b"{}")])
        os.chown(data / "keyring-pending.json", 0, 0)
        before = (data / "keyring-pending.json").read_bytes()
        child = os.fork()
        if not child:
            try:
                os.setuid(NOBODY)
                KeyringFiles(data).require_writable()
            except KeyringUnwritable as error:
                os._exit(0 if "chown -h" in str(error) and "keyring-pending.json" in str(error) else 2)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert (data / "keyring-pending.json").read_bytes() == before


def test_an_owner_that_cannot_be_given_is_left(data: Path) -> None:
    """In a namespace, a folder may have an owner or a group that does not exist there."""
    (data / "run").mkdir()
    os.chown(data / "run", 0, 1234)
    program = "from pathlib import Path; from receiver.owned_files import *; print(open_or_create(Path('run/a')))"
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", program]
    os.chown(data, 0, 0)
    done = subprocess.run(command, cwd=data, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.returncode == 0, done.stderr
    assert (data / "run/a").stat().st_uid == 0
