"""Stores, handlers, workers and the audit trail."""

from __future__ import annotations

from datetime import UTC, datetime

from flask import Blueprint, abort, render_template, request

from receiver.inbox import Administration, EventQueries
from receiver.inbox.audit_trail import AuditTrail
from receiver.inbox.keyring.learned_secrets import with_learned_secrets
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.queries.health import HealthQueries
from receiver.inbox.queries.time_series import SeriesQueries
from receiver.inbox.run_statistics import runs_of
from receiver.inbox.subscription_checks import SubscriptionChecks
from workers.console.drawings import SHAPES, band
from workers.console.page_data import ROWS, console, done, name_argument, reader, refusals
from workers.operations.host_spools import find_hosts
from workers.operations.system_state import handler_rows, store_rows
from workers.operations.topic_names import sent_names
from workers.operations.traffic import HourState, store_hours
from workers.subscriptions.managed_store import keyring_of

pages = Blueprint("system", __name__)
MAX_PAGE = 10_000
MAX_NAMES = 200
MAX_ENTRIES = 500


@pages.get("/stores")
def stores() -> str:
    number = _page_number()
    found = store_rows(console().config, reader(), removed=True, first=number * ROWS, most=ROWS)
    more = number + 1 if found.total > (number + 1) * ROWS else None
    return render_template("stores.html", rows=found.rows, total=found.total, number=number, more=more, done=done())


@pages.get("/stores/<name>")
def store(name: str) -> str:
    config, client = console().config, reader()
    rows = store_rows(config, client, removed=True, only=name).rows
    if not rows:
        abort(404, f"There is no store {name[:64]} in the config, and it has no events.")
    known, checks = config.known_stores.get(name), SubscriptionChecks(client)
    declared = [one for one, _ in EventQueries(client).declared()]
    names = EventQueries(client).event_names(name)
    now, repairs = datetime.now(UTC), checks.repairs(name)
    hours = store_hours(
        SeriesQueries(client).of_stores([name])[name], (datetime.fromtimestamp(one.at, UTC) for one in repairs), now
    )
    with refusals() as found:
        refused = next((one for one in found.by_store() if one.store == name), None)
    return render_template(
        "store.html",
        row=rows[0],
        now=now,
        days=band(hours),
        shapes=SHAPES,
        odd_hours=[one for one in reversed(hours) if one.state not in (HourState.NORMAL, HourState.UNKNOWN)],
        callback=config.public_url_of(name) if known else "",
        place=str(config.place("stores", name) or "") if known else "",
        secrets=with_learned_secrets(known, keyring_of(config, client).secrets_of(name)).secrets if known else (),
        names=list(sent_names(name, known.scheme, names, declared))[:MAX_NAMES] if known else [],
        checked=checks.last_results([name]).get(name),
        repairs=repairs[:10],
        refused=refused,
        done=done(),
    )


@pages.get("/handlers")
def handlers() -> str:
    rows = handler_rows(reader())
    return render_template(
        "handlers.html",
        rows=rows,
        runs=runs_of(reader(), [one.name for one in rows], days=2),
        absent=HandlerQueries(reader()).absent(),
        busy=HandlerQueries(reader()).busy_limits(),
        done=done(),
    )


@pages.get("/workers")
def workers() -> str:
    health = HealthQueries(reader())
    return render_template(
        "workers.html",
        workers=health.workers(),
        housekeeper=health.housekeeper(),
        hosts=find_hosts(console().config, reader()),
        paused=sorted(Administration(reader()).paused()),
    )


@pages.get("/audit")
def audit() -> str:
    return render_template("audit.html", entries=AuditTrail(reader()).newest(MAX_ENTRIES), most=MAX_ENTRIES)


def _page_number() -> int:
    text = name_argument("page", request.args) or "0"
    if not text.isdigit() or int(text[:6]) > MAX_PAGE or len(text) > 6:
        abort(400, "page is a number.")
    return int(text)
