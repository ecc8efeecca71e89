"""The statuses of a run are the same in Python and in the scripts, and each one maps to the next."""

from __future__ import annotations

import re

import pytest

from receiver.inbox.outcomes import ENDED, Ending, OutcomeKind, RunState, RunStatus, kind_of, status_of
from tests.support.programs import ROOT

SCRIPTS = {path.name: path.read_text() for path in (ROOT / "receiver/inbox/lua").glob("*.lua")}


def test_every_state_that_a_script_writes_has_a_status() -> None:
    written = {state for text in SCRIPTS.values() for state in re.findall(r"\brun\.state(?:, [^=]+)? = '(\w+)'", text)}
    assert {"ready", "later", "held", "leased"} <= written, (
        "the scripts assign states in another way: correct this test"
    )
    assert written <= set(RunState)
    assert {status_of(state) for state in RunState} == set(RunStatus)


def test_finish_names_every_kind_of_outcome() -> None:
    header = SCRIPTS["finish.lua"].partition("\nlocal ")[0]
    assert [kind for kind in OutcomeKind if not re.search(rf"\b{kind}\b", header)] == []


@pytest.mark.parametrize("ending", Ending)
def test_a_failed_attempt_is_retried_only_while_retries_are_left(ending: Ending) -> None:
    attempt_failed = ending in (Ending.RETRY, Ending.RAISED, Ending.DIED)
    assert (kind_of(ending, retries_left=True) is OutcomeKind.RETRY) == attempt_failed
    if attempt_failed:
        assert kind_of(ending, retries_left=False) is OutcomeKind.FAILED


def test_a_damaged_state_shows_as_waiting_and_has_not_ended() -> None:
    assert status_of("\x00") is RunStatus.WAITING
    assert status_of("\x00") not in ENDED
