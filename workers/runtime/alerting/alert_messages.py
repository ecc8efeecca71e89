"""Alert messages: the request that a target gets, as Standard Webhooks, Slack and Teams want it. No I/O."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import orjson

from receiver import __version__
from receiver.config import Config
from receiver.config.alert_settings import AlertTarget
from receiver.contract.diagnosis.formatting import counted, span
from receiver.contract.signing.grammar import Secret
from receiver.contract.signing.signatures import PRESETS, sign
from receiver.inbox.alert_store import Alert, AlertMessage

STANDARD = PRESETS["standard-webhooks"]
SHOWN = 10
"""Alerts in the text of a message."""
_PAGES = {
    "failing": "/failures?handler={}",
    "oldest_open": "/events?status=open",
    "refused_in_a_row": "/refused?store={}",
    "silent": "/stores/{}",
    "spooled": "/workers",
    "repair_failed": "/stores/{}",
    "memory": "/",
}
TITLES = {
    "failing": "A handler fails",
    "oldest_open": "Events wait too long",
    "refused_in_a_row": "Deliveries are refused",
    "silent": "A store is silent",
    "spooled": "The spool is in use",
    "repair_failed": "Subscriptions are faulty",
    "memory": "Redis is nearly full",
}


def link(config: Config, message: AlertMessage) -> str:
    """The page of the console about it."""
    subject = message.alerts[0].subject if message.number == 1 else ""
    page = _PAGES[message.rule] if subject or "{}" not in _PAGES[message.rule] else "/"
    return config.console.address + page.format(quote(subject, safe=""))


def text_of(message: AlertMessage) -> str:
    """A line for what happened, and one for each alert."""
    recovered = "Recovered: " if message.what == "recovered" else ""
    lines = [f"storehooks: {recovered}{TITLES[message.rule]}", *(_line(message, one) for one in message.alerts[:SHOWN])]
    more = message.number - min(SHOWN, len(message.alerts))
    return "\n".join([*lines, f"and {counted(more, 'more', 'more')}"] if more else lines)


def _line(message: AlertMessage, alert: Alert) -> str:
    subject = f"{alert.subject}: " if alert.subject else ""
    if message.what != "recovered":
        return subject + alert.text
    return f"{subject}it lasted {span((message.at - alert.since).total_seconds())}; before it ended: {alert.text}"


def request(
    config: Config, target: AlertTarget, message: AlertMessage, *, now: float
) -> tuple[dict[str, str | bytes], bytes]:
    """Headers and body."""
    url = link(config, message)
    body = orjson.dumps(_BODIES[target.format](message, url))
    headers: dict[str, str] = {
        "content-type": "application/json",
        "user-agent": f"storehooks/{__version__}",
        "webhook-id": message.id,
    }
    if secret := target.secret.get_secret_value():
        headers |= sign(STANDARD, secret=Secret(STANDARD.key_of(secret)), headers=headers, body=body, now=now).headers
    return dict(headers), body


def _webhook(message: AlertMessage, url: str) -> dict[str, Any]:
    alerts = [{"subject": one.subject or None, "text": one.text, "since": one.since} for one in message.alerts]
    data = {"rule": message.rule, "text": text_of(message), "url": url, "number": message.number, "alerts": alerts}
    return {"type": f"alert.{message.what}", "timestamp": message.at, "data": data}


def _slack(message: AlertMessage, url: str) -> dict[str, Any]:
    """An incoming webhook. Slack reads `&`, `<` and `>` as its own marks."""
    text = text_of(message).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": f"{text}\n<{url}|Open the console>"}


def _teams(message: AlertMessage, url: str) -> dict[str, Any]:
    """The webhook of a workflow, which takes an adaptive card."""
    title, *lines = text_of(message).split("\n")
    blocks = [{"type": "TextBlock", "text": title, "weight": "Bolder", "wrap": True}]
    blocks += [{"type": "TextBlock", "text": line, "wrap": True} for line in lines]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": blocks,
        "actions": [{"type": "Action.OpenUrl", "title": "Open the console", "url": url}],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


_BODIES = {"webhook": _webhook, "slack": _slack, "teams": _teams}
