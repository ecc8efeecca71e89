"""alerts: which rules are broken, which messages no target has accepted, and a test message."""

from __future__ import annotations

import secrets
import sys
from datetime import UTC, datetime
from typing import Any

import click

from receiver.contract.errors import ConfigError, NotFound
from receiver.inbox.alert_store import Alert, AlertMessage, AlertStore
from workers.cli import output
from workers.cli.listing import RowList
from workers.cli.options import ConfiguredName, Noun, connect_reader, json_option, load_config
from workers.runtime.alerting.alert_messages import TITLES
from workers.runtime.alerting.alert_rules import threshold

LISTING = RowList(cells={"state": output.state, "since": lambda at: output.clock(at) if at else ""}, shorten=("what",))
MESSAGES = RowList(
    cells={"at": output.clock, "next_try": lambda at: output.clock(at) if at else "given up"}, shorten=("error",)
)


@click.group(cls=Noun)
def alerts() -> None:
    """List alerts and their rules; send a test."""


@alerts.command("list")
@json_option
def list_alerts(json_: bool = False) -> None:
    """List each rule with the alerts that fire, and messages that no target has accepted yet."""
    config = load_config()
    store = AlertStore(connect_reader(config))
    firing, messages = store.firing(), [_message_row(one) for one in store.messages()]
    rows = [row for rule in TITLES for row in _rows(rule, threshold(config, rule), firing)]
    if json_:
        output.as_json({"rules": rows, "messages": messages, "targets": sorted(config.alerts.targets)})
        return
    LISTING.show(rows, json_=False)
    if messages:
        output.echo()
        output.line("Messages that were not accepted:", indent=2)
        MESSAGES.show(messages, json_=False)
    if not config.alerts.targets:
        output.echo()
        output.line("No message is sent: the config has no [alerts.targets.NAME].", indent=2)
    else:
        output.next_command("storehooks alerts test failing  send a test message to each target")


def _rows(rule: str, at: str, firing: list[Alert]) -> list[dict[str, Any]]:
    """A row for each alert of a rule; one for a rule without any."""
    state = "off" if at == "off" else "ok"
    found = [one for one in firing if one.rule == rule]
    if not found:
        return [_row(rule, at, state, "", TITLES[rule], None)]
    return [_row(rule, at, "firing", one.subject, one.text, one.since) for one in found]


def _row(rule: str, at: str, state: str, subject: str, what: str, since: datetime | None) -> dict[str, Any]:
    return {"rule": rule, "threshold": at, "state": state, "subject": subject, "what": what, "since": since}


def _message_row(one: AlertMessage) -> dict[str, Any]:
    fields = {"target": one.target, "rule": one.rule, "what": one.what, "at": one.at}
    return {**fields, "tries": one.tries, "error": one.error, "next_try": one.next_at, "id": one.id}


@alerts.command("test")
@click.argument("name", type=ConfiguredName(lambda _: TITLES))
def test(name: str) -> None:
    """Send a test message of the rule NAME to each target."""
    from workers.runtime.alerting.alert_sending import NotSent, send

    config = load_config()
    if name not in TITLES:
        raise NotFound(f"no rule {name}; the rules are {', '.join(TITLES)}")
    if not config.alerts.targets:
        raise ConfigError("no [alerts.targets.NAME] in the config; docs/operating/alerts.md shows one")
    now = datetime.now(UTC)
    alert = Alert(name, "", "this is a test; nothing is wrong", now)
    failed = False
    for target, settings in config.alerts.targets.items():
        message = AlertMessage(f"alert_test_{secrets.token_hex(12)}", target, name, "fired", (alert,), 1, now)
        try:
            send(config, settings, message)
            output.line(f"{target}: accepted")
        except NotSent as error:
            failed = True
            output.line(f"{target}: not accepted: {error}")
    sys.exit(int(failed))
