"""Overview: what needs a person, with its cause and a button; the counters and their charts; stores and handlers, the
worst first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from flask import Blueprint, render_template, url_for
from markupsafe import escape

from receiver.inbox import EventQueries
from receiver.inbox.queries.health import HealthQueries
from receiver.inbox.queries.time_series import COUNTERS
from workers.console.drawings import chart_data
from workers.console.findings_process import read_findings
from workers.console.page_data import choice_argument, console, done, reader
from workers.operations.host_spools import find_hosts, total_spooled
from workers.operations.system_state import handler_rows, store_rows
from workers.operations.traffic import SPANS, read_traffic

pages = Blueprint("overview", __name__)
SHOWN = 8
"""Stores, and handlers, on this page."""


@dataclass(frozen=True)
class Button:
    """What to press: a link to a page, or the form of an action."""

    text: str
    url: str
    is_action: bool = False
    fields: tuple[tuple[str, str], ...] = ()


_COMMANDS: tuple[tuple[str, str, str, bool], ...] = (
    (r"verify --store (?P<store>\S+) --refused last", "Explain", "refused.page", False),
    (r"refused release --store (?P<store>\S+)", "Release", "actions.release", True),
    (r"handlers resume (?P<handler>\S+)", "Resume", "actions.resume_handler", True),
    (r"stores resume (?P<store>\S+)", "Resume", "actions.resume_store", True),
    (r"(?:failures|events reread)\b", "Open failures", "failures.page", False),
    (r"handlers retire (?P<name>\S+)", "Open handlers", "system.handlers", False),
)
"""The commands that doctor proposes as a fix, and what the console has for them."""


def buttons_for(fix: str) -> list[Button]:
    found = []
    for pattern, text, endpoint, is_action in _COMMANDS:
        if match := re.search(rf"storehooks {pattern}", fix):
            names = {key: value.rstrip(";,.") for key, value in match.groupdict().items()}
            if endpoint == "actions.release":
                found.append(Button(text, url_for(endpoint), True, tuple(names.items())))
            else:
                found.append(Button(text, url_for(endpoint, **cast(dict[str, Any], names)), is_action))
    return found


@pages.get("/")
def page() -> str:
    config, client = console().config, reader()
    counters, hosts = EventQueries(client).counters(), find_hosts(config, client)
    stores = store_rows(config, client, counters=counters, removed=True, most=SHOWN)
    handlers, findings = handler_rows(client), read_findings(config.data_dir)
    span = choice_argument("range", tuple(SPANS)) or "1h"
    traffic = read_traffic(client, span, [one.name for one in handlers])
    return render_template(
        "overview.html",
        findings=findings,
        needs=[_with_buttons(one) for one in findings.of_level("fail")] if findings else [],
        warnings=[_with_buttons(one) for one in findings.of_level("warn")] if findings else [],
        counters=counters.total,
        spooled=total_spooled(hosts),
        span=span,
        traffic=traffic,
        columns=COUNTERS,
        chart=escape(chart_data(traffic)),
        stores=stores.rows,
        more_stores=stores.total - SHOWN,
        handlers=handlers[:SHOWN],
        more_handlers=len(handlers) - SHOWN,
        workers=HealthQueries(client).workers(),
        done=done(),
    )


def _with_buttons(finding: dict[str, Any]) -> dict[str, Any]:
    return {**finding, "buttons": buttons_for(finding["fix"])}
