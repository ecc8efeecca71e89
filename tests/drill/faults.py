"""The faults, one function for each row. A fault ends when what it broke has been repaired by itself or by systemd."""

from __future__ import annotations

import os
import signal
import time

from tests.drill.counting import read_effects
from tests.drill.fleet import CURRENT
from tests.drill.installations import Installation
from tests.support.harness import Server, children_of, eventually
from tests.support.sentinels import follows, leads

RESTART_SECONDS = 2.0
"""The stand-in for systemd restarts a service that was killed after this time, and once `doctor` has looked."""
AWAY_SECONDS = 10.0
"""How long Redis cannot be used."""
LATE_SECONDS = 0.3
"""By how much each reply of a delayed Redis is late; `[redis] timeout` is 0.5 s."""
HOST_STOPPED_SECONDS = 30.0
LOOK_BEFORE_END = 8.0
"""`doctor` looks this long before the end: a host is silent only after a while."""
HUPS = 12
BETWEEN_HUPS = 0.5
NEWEST_RUNS = 300


def kill_web(at: Installation) -> None:
    host = at.fleet.hosts[0]
    assert host.web
    host.web.kill()
    at.ask_doctor()
    time.sleep(RESTART_SECONDS)
    at.wait_for_doctor()
    host.start_web()
    eventually(host.answers, 30)


def kill_web_child(at: Installation) -> None:
    host = at.fleet.hosts[0]
    assert host.web
    (child, *_) = children_of(host.web.pid)
    os.kill(child, signal.SIGKILL)
    at.ask_doctor()
    eventually(lambda: [pid for pid in children_of(host.web.pid) if pid != child], 30)
    eventually(host.answers, 30)


def kill_worker(at: Installation) -> None:
    _kill_below_supervisor(at, "sh-worker")


def kill_housekeeper(at: Installation) -> None:
    _kill_below_supervisor(at, "sh-housekeeper")


def _kill_below_supervisor(at: Installation, name: str) -> None:
    host = at.fleet.hosts[0]
    before = host.below(host.workers, name)
    os.kill(before[0], signal.SIGKILL)
    at.ask_doctor()
    eventually(lambda: len(set(host.below(host.workers, name)) - {before[0]}) == len(before), 30)


def kill_supervisor(at: Installation) -> None:
    host = at.fleet.hosts[0]
    assert host.workers
    host.workers.kill()
    at.ask_doctor()
    time.sleep(RESTART_SECONDS)
    at.wait_for_doctor()
    host.start_workers()


def kill_server(at: Installation) -> None:
    assert at.server
    at.server.kill()
    at.ask_doctor()
    time.sleep(RESTART_SECONDS)
    at.wait_for_doctor()
    at.server.start()


def stop_host(at: Installation) -> None:
    """All processes of a host stand still, as on a machine that swaps, and go on later."""
    host = at.fleet.hosts[1]
    host.signal_all(signal.SIGSTOP)
    time.sleep(HOST_STOPPED_SECONDS - LOOK_BEFORE_END)
    at.ask_doctor()
    time.sleep(LOOK_BEFORE_END)
    at.wait_for_doctor()
    host.signal_all(signal.SIGCONT)


def black_hole(at: Installation) -> None:
    assert at.proxy
    at.proxy.hold()
    at.ask_doctor()
    time.sleep(AWAY_SECONDS)
    at.wait_for_doctor()
    at.proxy.release()


def refuse(at: Installation) -> None:
    assert at.proxy
    at.proxy.cut_all()
    at.ask_doctor()
    time.sleep(AWAY_SECONDS)
    at.wait_for_doctor()
    at.proxy.accept_again()


def delay(at: Installation) -> None:
    assert at.proxy
    at.proxy.delay = LATE_SECONDS
    at.ask_doctor()
    time.sleep(AWAY_SECONDS)
    at.wait_for_doctor()
    at.proxy.delay = 0.0


def reload_often(at: Installation) -> None:
    for number in range(HUPS):
        host = at.fleet.hosts[number % len(at.fleet.hosts)]
        assert host.web
        before = set(children_of(host.web.pid))
        for process in host.processes():
            process.send(signal.SIGHUP)
        if number == HUPS // 2:
            at.ask_doctor()
        eventually(
            lambda host=host, before=before: not before & set(children_of(host.web.pid)),
            60,
            what="web has replaced its processes",
        )
        time.sleep(BETWEEN_HUPS)


def restart_one_by_one(at: Installation) -> None:
    for host in at.fleet.hosts:
        at.ask_doctor()
        host.restart_workers()
        host.restart_web()


def upgrade_one_by_one(at: Installation) -> None:
    """The workers first, as docs/how-to/deploy.md says."""
    for host in at.fleet.hosts:
        host.programs = CURRENT
    restart_one_by_one(at)


def upgrade_plugin(at: Installation) -> None:
    at.fleet.write_plugin("2")
    for host in at.fleet.hosts:
        assert host.workers
        host.workers.send(signal.SIGHUP)
        at.ask_doctor()
        time.sleep(RESTART_SECONDS)
    eventually(lambda: _newest_versions(at) == {"2"}, 60, what="all runs are of the new version")


def _newest_versions(at: Installation) -> set[str]:
    """The versions of the runs of the last second, about."""
    lines = at.fleet.effects.read_text().rsplit("\n", NEWEST_RUNS + 1)[1:-1]
    return {one.version for one in read_effects("\n".join(lines))}


def fill_memory(at: Installation) -> None:
    assert at.server
    client = at.server.client
    client.config_set("maxmemory", client.info("memory")["used_memory"])
    time.sleep(RESTART_SECONDS)
    at.ask_doctor()
    time.sleep(AWAY_SECONDS)
    at.wait_for_doctor()
    client.config_set("maxmemory", 0)


# Failovers, of a primary and a replica with three sentinels


def kill_primary(at: Installation) -> None:
    assert at.sentinels
    at.sentinels.primary.kill()
    at.ask_doctor()
    eventually(lambda: leads(at.sentinels.replica), 60, what="the replica is promoted")
    time.sleep(RESTART_SECONDS)
    at.sentinels.primary.start()
    _wait_for_replica(at.sentinels.primary)


def replace_live_primary(at: Installation) -> None:
    """SENTINEL FAILOVER. The old primary accepts writes until the sentinels demote it, about ten seconds later."""
    assert at.sentinels
    at.sentinels.fail_over()
    at.ask_doctor()
    eventually(lambda: leads(at.sentinels.replica), 60, what="the replica is promoted")
    _wait_for_replica(at.sentinels.primary)


def _wait_for_replica(server: Server) -> None:
    eventually(lambda: follows(server), 60, what="the old primary is a replica in sync")
