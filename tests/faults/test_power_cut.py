"""Row 14 of the fault matrix: a power cut truncates files to their last fsync. No acknowledged delivery is lost.

Each test also runs with weaker settings, to show that the cut does lose something there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from receiver.spool import EVENTS_FILE, open_events
from tests.support.harness import Process, Server, System, eventually, own_server
from tests.support.load import Load
from tests.support.power_cut import Watched, kill_below

pytestmark = pytest.mark.full

SPOOL_OFF = '[receiver]\nspool = "off"\n'


def aof_of(server: Server) -> Path:
    (found,) = server.data_dir.glob("redis/appendonlydir/*.incr.aof")
    return found


@pytest.mark.parametrize(("fsync", "ack"), [("always", "fsync"), ("everysec", "stored")])
def test_row_14_a_power_cut_loses_nothing_with_ack_fsync(
    make_system: Callable[..., System], tmp_path: Path, fsync: str, ack: str
) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    watched = Watched(folder / "strace.log")
    server = Server(folder, extra=("--appendfsync", fsync), prefix=watched.prefix).start()
    system = make_system(url=server.url)
    text = system.config_file.read_text().replace("[receiver]\n", SPOOL_OFF, 1)
    system.config_file.write_text(text.replace("[redis]\n", f'[redis]\nack = "{ack}"\n', 1))
    system.start("web")
    aof = aof_of(server)
    with Load(system, senders=6, pause=0) as load:
        eventually(lambda: len(load.answered) > 600, 30)
        if fsync == "everysec":
            eventually(lambda: watched.read().written[str(aof)] > watched.safe[str(aof)] + 50_000)
        kill_below(server.process)
        eventually(lambda: load.others, what="deliveries are answered 503")
    removed = watched.cut(aof)
    with own_server(folder, "--appendfsync", fsync):
        lost = load.ids - {event.id for event in system.ledger.events(limit=10**6)}
    print(f"\n{fsync}: {len(lost):,} of {len(load.ids):,} acknowledged lost, {removed:,} bytes removed")
    assert set(load.others) == {503}
    if fsync == "always":
        assert lost == set()
    else:
        assert lost, "the cut loses bytes that were not fsynced"


CHILD = """
import sys, time
from pathlib import Path
from receiver.contract.event import Event
from receiver.contract.intake import Delivery
from receiver.inbox.model import from_ms
from receiver.spool import open_events
events = open_events(Path(sys.argv[1]))
if sys.argv[2]:
    events._db.execute("PRAGMA synchronous = " + sys.argv[2])
for number in range(150):
    event = Event(id=f"event{number}", store="north", topic="order.created", received_at=from_ms(1000), body=b"{}")
    events.add([Delivery(event, "orders/create")])
    print(f"event{number}", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("synchronous", ["", "NORMAL"], ids=["as it is", "weaker"])
def test_row_14_a_power_cut_loses_nothing_in_the_spool(tmp_path: Path, synchronous: str) -> None:
    watched = Watched(tmp_path / "strace.log")
    data, log = tmp_path / "data", tmp_path / "child.log"
    command = [*watched.prefix, sys.executable, "-c", CHILD, str(data), synchronous]
    child = Process(command, log=log)
    eventually(lambda: len(log.read_text().split()) == 150, 20, what=log)
    kill_below(child)
    cut_power(watched, data)
    stored = {row.delivery.event.id for row in open_events(data).oldest(1000)}
    lost = set(log.read_text().split()) - stored
    print(f"\nsynchronous {synchronous}: {len(lost)} of 150 lost")
    assert lost if synchronous else lost == set()


WEB_WITHOUT_CHECKPOINTS = """
import sys
from receiver.delivery.bounded_spool import BoundedSpool
from receiver.server.web import main
BoundedSpool.checkpoint = lambda spool: None  # see cut_power
sys.exit(main())
"""


def test_row_14_a_power_cut_of_the_receivers_host_loses_nothing_in_the_spool(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path
) -> None:
    system = make_system(url=own_redis.url)
    own_redis.kill()
    watched = Watched(tmp_path / "strace.log")
    command = [*watched.prefix, sys.executable, "-c", WEB_WITHOUT_CHECKPOINTS, "--config", str(system.config_file)]
    web = Process(command, log=system.folder / "web.log")
    system.processes.append(web)
    eventually(system.web_answers, 20)
    with Load(system, senders=4) as load:
        eventually(lambda: len(load.answered) > 100, 20)
        kill_below(web)
    cut_power(watched, system.config.data_dir)
    stored = {row.delivery.event.id for row in open_events(system.config.data_dir).oldest(1000)}
    print(f"\n{len(load.ids - stored)} of {len(load.ids)} deliveries that were only in the spool were lost")
    assert load.ids <= stored


def cut_power(watched: Watched, data: Path) -> None:
    """Leave the spool's files as a power cut would. Valid only while the write-ahead log was not restarted."""
    watched.cut(data / f"{EVENTS_FILE}-wal")
    file = str(data / EVENTS_FILE)
    assert watched.written[file] == watched.safe[file], "no checkpoint was in progress"
    (data / f"{EVENTS_FILE}-shm").unlink(missing_ok=True)
