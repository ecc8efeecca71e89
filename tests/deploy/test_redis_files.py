"""deploy/redis: a server with these files, and an installation as the user that they define."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError

from receiver.inbox import connect
from receiver.inbox.redis import embedded_server
from tests.support.front_proxies import filled_in
from tests.support.harness import System, eventually, free_port
from tests.support.installations import PLUGIN
from tests.support.programs import ROOT, Process

FILES = ROOT / "deploy/redis"
PASSWORD = "a-long-password"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of a server with both files."""
    port = free_port()
    (tmp_path / "redis").mkdir()
    acl = tmp_path / "users.acl"
    acl.write_text(filled_in(FILES / "users.acl", {"CHANGE-ME": PASSWORD}))
    words = {
        "port 6379": f"port {port}",
        "/var/lib/redis": str(tmp_path / "redis"),
        "# aclfile /etc/redis/users.acl": f"aclfile {acl}",
    }
    conf = tmp_path / "redis.conf"
    conf.write_text(filled_in(FILES / "redis.conf", words))
    server = Process([str(embedded_server.binary()), str(conf)], log=tmp_path / "redis.log")
    url = f"redis://storehooks:{PASSWORD}@127.0.0.1:{port}/0"

    def answers() -> bool:
        assert server.alive, server.output()
        return "Ready to accept connections" in server.output()

    try:
        eventually(answers, what="the server is ready")
        yield url
    finally:
        server.stop()


def test_the_user_has_the_rights_that_the_page_names() -> None:
    (page,) = re.findall(r"ACL SETUSER storehooks on >\S+ (.*)", (ROOT / "docs/operating/redis.md").read_text())
    (file,) = re.findall(r"user storehooks on >\S+ (.*)", (FILES / "users.acl").read_text())
    assert set(file.split()) == {*page.split(), "+acl|dryrun", "+bgrewriteaof", "+bgsave"}


@pytest.mark.full
def test_an_installation_runs_as_the_user_of_the_file(tmp_path: Path, url: str) -> None:
    system = System(tmp_path, url, plugin=PLUGIN)
    text = system.config_file.read_text().replace("[receiver]", 'ack = "fsync"\n[receiver]', 1)
    system.config_file.write_text(text)
    system.config_file.chmod(0o600)
    try:
        system.start("web", "worker", "housekeeper")
        for store in ("north", "south"):
            assert system.settled(system.deliver(store=store), 30) == "settled"
        done = system.run_cli("doctor")
        assert done.returncode == 0, done.stdout
        assert "WARN" not in done.stdout, done.stdout
    finally:
        system.close()


@pytest.mark.full
def test_no_other_user_can_log_in_and_ours_may_do_no_more(url: str) -> None:
    with pytest.raises(AuthenticationError):
        Redis.from_url(re.sub(r"storehooks:.*@", "", url)).ping()
    ours = connect(url, timeout=2.0)
    assert ours.ping()
    with pytest.raises(NoPermissionError):
        ours.set("another program's key", "1")
    with pytest.raises(NoPermissionError):
        ours.flushall()
    ours.close()
