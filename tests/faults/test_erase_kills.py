"""`storehooks erase` killed at 50 random points and repeated: nothing of the person is left, all else is as it was."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from receiver.inbox import connect
from tests.support.erasing import system_with_history
from tests.support.harness import System, eventually
from tests.support.marked_person import MARK, OTHER, Placed, everything, traces
from workers.history.configured_history import open_history
from workers.operations.erasure.erasing import Erasing
from workers.operations.erasure.plugin_hooks import PluginHooks
from workers.operations.erasure.subject import Subject
from workers.operations.erasure.survey import Survey

KILLS = 50
SUBJECT = Subject("north", "match", "customer.email", MARK)


def erase(system: System, url: str) -> None:
    config, client = system.config, connect(url, timeout=10.0)
    survey = Survey(config, client, open_history(config, client), SUBJECT)
    survey.run()
    Erasing(survey, PluginHooks(config)).run("a test", open_too=True)


def erase_in_a_process(system: System, url: str, kill_after: float | None) -> bool:
    """Whether it came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            erase(system, url)
        except BaseException as error:  # noqa: BLE001  the parent sees the exit code
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)  # a random point
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return not os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_erasure_that_is_killed_at_random_points_is_completed_by_repeating_it(tmp_path: Path) -> None:
    chance, kills, erasures, longest = random.Random(27), 0, 0, 0.0
    with system_with_history(tmp_path) as (system, history):
        url = system.config.redis.url
        while kills < KILLS or not erasures:
            Placed(system, history, first=1000 * erasures)
            others = {name: value for name, value in everything(system, history).items() if OTHER in repr(value)}
            before, ended = system.ledger.counters().total, False
            while not ended and kills < KILLS:
                began = time.monotonic()
                ended = erase_in_a_process(system, url, chance.uniform(0, 1.1 * longest) if longest else None)
                longest = longest or time.monotonic() - began
                kills += not ended
                assert system.identity_holds()
            if not ended:
                assert erase_in_a_process(system, url, None)
            erasures += 1
            eventually(lambda: not traces([tmp_path], history), what="no trace is left")
            now, after = everything(system, history), system.ledger.counters().total
            assert {name for name, value in others.items() if now.get(name) != value} == set()
            spooled = after["accepted"] - before["accepted"]
            assert (spooled, after["failed"], after["open"]) == (1, before["failed"], before["open"] - 2)
    print(f"\n{kills} kills of {erasures} erasures; one takes {longest:.2f} s")
