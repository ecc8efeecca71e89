"""Composer: sends a delivery as a store would, or a tampered one, to the store's own public URL and to no other."""

from __future__ import annotations

import json
from typing import get_args

from flask import Blueprint, redirect, render_template, request, url_for
from markupsafe import escape
from werkzeug.wrappers import Response

from receiver.config.values import is_loopback
from receiver.contract.errors import ConfigError, NotFound
from workers.console.page_data import (
    begin_action,
    choice_argument,
    console,
    done,
    end_action,
    name_argument,
    text_argument,
)
from workers.console.visible_text import as_sentence
from workers.operations.composing import (
    Tamper,
    compose_request,
    new_delivery_id,
    require_topic,
    sample_data,
    send_request,
)
from workers.operations.topic_names import known_topics

pages = Blueprint("composer", __name__)
TAMPERS: tuple[Tamper, ...] = get_args(Tamper)
MAX_STORES = 1_000
FIRST_TOPIC = "order.created"


@pages.get("/composer")
def page() -> str:
    store = name_argument("store") or next(iter(console().config.stores), "")
    return _form(store, text_argument("topic") or FIRST_TOPIC)


@pages.post("/composer/send")
def send() -> Response | tuple[str, int]:
    config, store = console().config, name_argument("store", request.form)
    topic, tamper = text_argument("topic", request.form), choice_argument("tamper", TAMPERS, request.form)
    delivery_id = text_argument("id", request.form) or new_delivery_id()
    _require_store(store)
    text = request.form.get("data", "")
    try:
        require_topic(topic)
        if not is_loopback(config.public_url_of(store)) and not request.form.get("sure"):
            raise ConfigError("that URL is not on this machine; tick the box to send it there")
        data = json.loads(text)
        made = compose_request(config, store, topic, data, delivery_id, tamper)
    except (ConfigError, ValueError, RecursionError) as error:
        sentence = str(error) if isinstance(error, ConfigError) else f"the data is not JSON: {error}"
        return _form(store, topic, text=text, delivery_id=delivery_id, sentence=as_sentence(sentence)), 400
    entry = begin_action("send", store=store, topic=topic, delivery=delivery_id, tampered=tamper)
    try:
        answer = send_request(config, store, made)
    except ConfigError as error:
        end_action(entry, f"not sent: {error}")
        return _form(store, topic, text=text, delivery_id=delivery_id, sentence=str(error)), 502
    more = f": {answer.detail}" if answer.detail else ""
    ended = end_action(entry, f"answered {answer.status} {answer.word} in {answer.ms:.0f} ms{more}")
    if answer.event_id:
        return redirect(url_for("events.event", event_id=answer.event_id, done=ended), 303)
    return redirect(url_for("refused.page", store=store, done=ended), 303)


def _form(store: str, topic: str, *, text: str | None = None, delivery_id: str = "", sentence: str = "") -> str:
    config = console().config
    if store:
        _require_store(store)
    if text is None:
        text = json.dumps(sample_data(config.known_stores[store].scheme, topic), indent=2) if store else ""
    url = config.public_url_of(store) if store else ""
    return render_template(
        "composer.html",
        store=store,
        stores=sorted(config.stores)[:MAX_STORES],
        topic=topic,
        topics=sorted(known_topics([config.known_stores[store].scheme])) if store else [],
        text=escape(text),
        delivery_id=delivery_id,
        tampers=TAMPERS,
        tamper=request.form.get("tamper", ""),
        url=url,
        is_local=is_loopback(url),
        sentence=sentence,
        done=done(),
    )


def _require_store(store: str) -> None:
    if store not in console().config.stores:
        raise NotFound(f"There is no store {store[:64]} in the config.")
