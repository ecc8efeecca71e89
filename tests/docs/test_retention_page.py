"""The page about retention: its table names each key and file, and each time as the code has it."""

from __future__ import annotations

import re

import pytest

from receiver.config.settings import ReceiverSettings, RetentionSettings
from receiver.config.values import Bounds, parse_duration, parse_size
from receiver.inbox import alert_store, audit_trail, bulk_actions, console_logins, keys, known_data, run_statistics
from receiver.inbox import subscription_checks as checks
from receiver.inbox.keyring import host_files, keyring
from receiver.inbox.queries.failures import NOTICE
from receiver.inbox.queries.time_series import DAY, HOUR, OF_STORE, WEEK
from receiver.spool.refused_deliveries import REFUSED_FILE
from receiver.spool.spooled_events import EVENTS_FILE
from tests.support.programs import ROOT

PAGE = (ROOT / "docs/operating/retention.md").read_text()
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" |")) for line in PAGE.splitlines() if line.startswith("| ")
][1:]
FILES = (REFUSED_FILE, EVENTS_FILE, host_files.COPY, host_files.PENDING, known_data.FILE)


def row_with(name: str) -> str:
    return next(" | ".join(row) for row in ROWS if f"`{name}`" in row[1])


@pytest.mark.parametrize("name", sorted((*keys.TYPES, *FILES)))
def test_the_table_names_each_key_and_each_file(name: str) -> None:
    assert any(f"`{name}`" in row[1] for row in ROWS), (
        f"docs/operating/retention.md does not say how long {name} is kept"
    )


def test_the_table_names_no_other_key() -> None:
    named = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])} - {*FILES, "api:", "spool-damaged-*"}
    unknown = [
        name for name in named if not re.search(rf"(^    |, ){re.escape(name)}([{{, ]|$)", keys.PAGE, re.MULTILINE)
    ]
    assert unknown == []


def seconds(section: str) -> dict[str, str]:
    """The default of each key of a section that the table names first in its row."""
    return {found[1]: row[3] for row in ROWS if (found := re.match(rf"`\[{section}\] (\w+)`", row[2])) and row[3]}


def test_the_defaults_of_retention_are_those_of_the_code() -> None:
    stated, settings = seconds("retention"), RetentionSettings()
    assert set(stated) == set(RetentionSettings.model_fields)
    assert settings.events_per_store == int(stated.pop("events_per_store"))
    assert {name: parse_duration(value) for name, value in stated.items()} == settings.model_dump(
        exclude={"events_per_store"}
    )


def test_the_defaults_of_the_receiver_are_those_of_the_code() -> None:
    stated, settings = seconds("receiver"), ReceiverSettings()
    age, size = stated.pop("refused").split(", ")
    assert settings.refused == Bounds(parse_duration(age), parse_size(size))
    assert len(stated) == 2
    assert {name: getattr(settings, name) for name in stated} == {k: parse_duration(v) for k, v in stated.items()}
    assert "at most `[receiver] spool_age`" in row_with(EVENTS_FILE)
    assert row_with(EVENTS_FILE).endswith(f"| {settings.spool_age / 86400:g}d")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("audit", f"{audit_trail.MAX_ENTRIES:,} entries"),
        ("bulk", f"the last {bulk_actions.MAX_RECORDS};"),
        ("repairs:", f"its last {checks.MAX_REPAIRS_KEPT} repairs"),
        ("runs:", f"{run_statistics.KEPT_DAYS} days"),
        ("secrets:", f"{keyring.ENDED_KEPT / 86400:g} days after"),
        ("alert_messages", f"{alert_store.KEPT_SECONDS / 86400:g} days"),
        ("session:", f"{console_logins.SESSION_SECONDS / 3600:g} hours"),
        ("link:", f"links {console_logins.LINK_SECONDS / 3600:g} hours"),
        ("login:", f"{console_logins.FAILURES_SECONDS / 60:g} minutes"),
    ],
)
def test_numbers_of_the_table_are_those_of_the_code(name: str, text: str) -> None:
    assert text in row_with(name)


def test_rings_have_the_lengths_that_the_table_says() -> None:
    assert [ring.step * ring.slots for ring in (HOUR, DAY, WEEK)] == [3600, 86400, 7 * 86400]
    assert "an hour, a day, a week and a week" in row_with(OF_STORE)


def test_the_notice_is_as_long_as_the_page_says() -> None:
    assert PAGE.count(f"{NOTICE / 86400:g} days") >= 2
