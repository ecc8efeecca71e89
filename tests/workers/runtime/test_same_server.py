"""After a HUP that changed [redis], processes that are started later use the server of the start."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from receiver import config
from receiver.config.reloading import redis_variables
from tests.support.harness import Server, System, eventually, own_server
from tests.workers.runtime.test_supervisor import PLUGIN, named, set_workers, workers


def test_a_program_started_with_the_variables_has_the_same_server(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[redis]\nsentinels = ["127.0.0.1:1", "127.0.0.1:2"]\nsentinel_password = "hidden"\nack = "fsync"\n'
        'timeout = "250ms"\ndata_dir = "mine"\n'
    )
    started = config.load(file, {})
    file.write_text('[redis]\nurl = "redis://127.0.0.1:3"\ndata_dir = "other"\n')
    assert config.load(file, {}).redis != started.redis
    later = config.load(file, redis_variables(started) | {"REDIS_URL": "redis://127.0.0.1:4"})
    assert later.redis == started.redis
    assert later.data_dir == tmp_path / "mine"


def test_a_config_file_that_is_named_by_a_relative_path_gives_the_same_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`storehooks dev` beside its config.toml: no process that it started accepted the variable."""
    (tmp_path / "config.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    started = config.load(Path("config.toml"), {})
    assert config.load(Path("config.toml"), redis_variables(started)).data_dir == tmp_path / "data" == started.data_dir


@pytest.mark.full
def test_events_before_and_after_a_hup_with_another_server_are_all_handled(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path
) -> None:
    system = make_system(url=own_redis.url, plugin=PLUGIN, child_processes=1)
    (supervisor,) = system.start("supervisor")
    eventually(lambda: "worker started" in system.log("supervisor"))
    events = [system.accept(data={"id": number}) for number in range(5)]
    (tmp_path / "other").mkdir()
    with own_server(tmp_path / "other") as other:
        text = system.config_file.read_text()
        assert text.count(own_redis.url) == 1
        system.config_file.write_text(text.replace(own_redis.url, other.url))
        set_workers(system, processes=2)
        (first,), (housekeeper,) = workers(supervisor), named(supervisor, "housekeeper")
        supervisor.send(signal.SIGHUP)
        eventually(lambda: system.log("supervisor").count("worker started") == 2, 30)
        os.kill(first, signal.SIGKILL)
        os.kill(housekeeper, signal.SIGKILL)
        eventually(lambda: system.log("supervisor").count("worker started") == 3, 30)
        eventually(lambda: named(supervisor, "housekeeper") not in ([], [housekeeper]), 30)
        system.config_file.write_text(text)  # only what the test itself does next reads it
        events += [system.accept(data={"id": number}) for number in range(5, 10)]
        assert [system.settled(event) for event in events] == ["settled"] * 10
        assert other.client.dbsize() == 0, "no process has used the other server"
