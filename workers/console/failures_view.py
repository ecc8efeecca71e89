"""Failures: groups with one cause, and one group with its traceback and runs."""

from __future__ import annotations

from flask import Blueprint, render_template

from receiver.contract.errors import NotFound
from receiver.inbox import Administration, FailureQueries, keys
from receiver.inbox.bulk_actions import BulkActions
from receiver.inbox.queries.cursors import Page
from receiver.inbox.queries.failures import FailureFilter, FailureGroup
from workers.console.bulk_view import failure_filter
from workers.console.drawings import trend
from workers.console.page_data import ROWS, cursor_argument, done, reader

pages = Blueprint("failures", __name__)


@pages.get("/failures")
def page() -> str:
    wanted, queries = failure_filter(), FailureQueries(reader())
    if wanted == FailureFilter():
        found, matching = queries.groups(before=cursor_argument(), limit=ROWS), None
    else:
        matching = queries.matching(wanted)
        found = Page(queries.read_groups([one.id for one in matching[:ROWS]]), None)
    trends = queries.trends([one.id for one in found.entries])
    at_work = BulkActions(reader()).at_work()
    return render_template(
        "failures.html",
        groups=found.entries,
        trends={group: trend(numbers) for group, numbers in trends.items()},
        next=found.next,
        wanted=wanted,
        matching=matching,
        count=sum(one.count for one in matching or ()),
        at_work=at_work,
        done=done(),
    )


@pages.get("/failures/<group_id>")
def group(group_id: str) -> str:
    queries, found = FailureQueries(reader()), the_group(group_id)
    return render_template(
        "failure_group.html",
        group=found,
        example=keys.split_item(found.example)[0],
        traceback=queries.traceback(found.example),
        trend=trend(queries.trends([found.id])[found.id]),
        runs=queries.in_group(found.id, before=cursor_argument(), limit=ROWS),
        is_paused=f"handler:{found.handler}" in Administration(reader()).paused(),
        is_intake=found.handler == keys.INTAKE,
        done=done(),
    )


def the_group(group_id: str) -> FailureGroup:
    found = FailureQueries(reader()).group(group_id) if len(group_id) <= 64 else None
    if found is None:
        raise NotFound(f"There is no failure group {group_id[:64]}. Its runs were replayed, dropped or have succeeded.")
    return found
