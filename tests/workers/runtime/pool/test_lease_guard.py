"""The lease guard, in a process of its own that it may kill."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

BEGIN = """
import time
from receiver.inbox.leases import LEASE_MS
from tests.support.harness import eventually
from workers.runtime.pool.lease_guard import SAFETY, LeaseGuard, SharedLease, lease_clock

lease = SharedLease()
guard = LeaseGuard(lease)

def renew(seconds):
    lease.renewed(lease_clock() - LEASE_MS / 1000 + SAFETY + seconds)

renew(0.2)
"""
LEASE_ENDS = 'with guard: pass\neventually(lambda: lease.has_ended, what="the lease ends")\n'
CASES = {
    "a run goes on after its lease": "with guard: time.sleep(20)",
    "a run begins after its lease": LEASE_ENDS + "with guard: pass",
    "the lease ends between two runs": LEASE_ENDS + "renew(30)\nwith guard: pass\nraise SystemExit(7)",
    "a run goes on after a lease that was renewed after a pause": (
        LEASE_ENDS
        + "eventually(lambda: guard._waits)\nrenew(0.2)\n"
        + "with guard:\n    eventually(lambda: not guard._waits)\n    time.sleep(20)"
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_process_ends_if_and_only_if_an_ordered_run_is_under_way_without_a_lease(case: str) -> None:
    program = BEGIN + CASES[case]
    done = subprocess.run(
        [sys.executable, "-c", program], start_new_session=True, timeout=30, capture_output=True, check=False
    )
    assert done.returncode == (7 if "between" in case else -signal.SIGKILL), done.stderr
