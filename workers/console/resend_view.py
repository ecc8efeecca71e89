"""An event taken out of the console: edited and sent again as a new event, as a curl command, as a file."""

from __future__ import annotations

from urllib.parse import urlencode

from flask import Blueprint, Response, abort, current_app, redirect, render_template, request, url_for
from markupsafe import Markup, escape
from werkzeug.wrappers import Response as AnyResponse

from receiver.contract.errors import ConfigError, NotFound
from receiver.contract.event import Event
from receiver.inbox import Inbox
from workers.console.events_view import the_event
from workers.console.page_data import all_events, begin_action, console, end_action
from workers.console.visible_text import as_sentence, visible_json
from workers.operations.curl_command import curl_command
from workers.operations.edited_events import indented, resend, text_of
from workers.operations.event_export import write

pages = Blueprint("resend", __name__)
MAX_EDITED = 100_000
"""Bytes of a body that can be edited."""
REST_OF_FORM = 1_000
"""Bytes of a form for what is not the body."""


@pages.post("/events/<event_id>/edit")
def edit(event_id: str) -> str:
    """The body with its personal fields, so this is audited like showing them."""
    event = _with_body(event_id)
    if len(event.body) > MAX_EDITED:
        abort(400, f"The body has {len(event.body):,} bytes. The console edits at most {MAX_EDITED:,}.")
    text = _editable(event.body)
    begin_action("edit", event=event.id)
    return _form(event, text)


@pages.post("/events/<event_id>/resend")
def send_edited(event_id: str) -> AnyResponse | tuple[str, int]:
    event, text = _with_body(event_id), request.form.get("body", "")
    body = text.replace("\r\n", "\n").encode("utf-8", "surrogatepass")
    entry = begin_action("edit and resend", event=event.id, bytes=len(body))
    try:
        first, *rest = resend(console().config, Inbox(console().client), event, body)
    except ConfigError as error:
        end_action(entry, f"not sent: {error}")
        return _form(event, text, as_sentence(f"{error}")), 400
    made = f"the {1 + len(rest):,} new events of the batch begin with {first}" if rest else f"the new event is {first}"
    ended = end_action(entry, f"{made}, made from {event.id}")
    return redirect(url_for("events.event", event_id=first, done=ended), 303)


@pages.post("/events/<event_id>/curl")
def curl(event_id: str) -> str:
    event = _with_body(event_id)
    command = curl_command(console().config, event)
    begin_action("copy as curl", event=event.id)
    scheme = console().config.known_stores[event.store].scheme
    return render_template(
        "curl.html", event=event, text=as_is(command.text), is_duplicate=command.is_duplicate, scheme=scheme
    )


@pages.post("/events/<event_id>/export")
def export(event_id: str) -> Response:
    event = _with_body(event_id)
    begin_action("export", event=event.id)
    name = f'attachment; filename="{event.id}.json"'
    content = write(console().config, all_events(console().client), event.id)
    return Response(content, headers={"Content-Disposition": name}, mimetype="application/json")


def _editable(body: bytes) -> str:
    """A body as text that a form sends back with the same meaning. Indented, if the form can be as large as that."""
    text, is_json = text_of(body)
    if not is_json and visible_json(text) != text:
        raise ConfigError("The body is not JSON and has characters that a form would hide or change; download it")
    for one in (visible_json(indented(text)), visible_json(text)) if is_json else (text,):
        sent = urlencode({"body": one.replace("\n", "\r\n")}, errors="surrogatepass")
        if len(sent) + REST_OF_FORM <= current_app.config["MAX_CONTENT_LENGTH"]:
            return one
    raise ConfigError("The body is too large to be sent back by a form; download it")


def as_is(text: str) -> Markup:
    """Text of ours, or for an input field: escaped, but neither cut nor with visible marks for hidden characters."""
    return escape(text)


def _form(event: Event, text: str, sentence: str = "") -> str:
    return render_template("edit.html", event=event, text=as_is(text), sentence=sentence)


def _with_body(event_id: str) -> Event:
    record = the_event(event_id)
    event = all_events(console().client).as_event(record.summary.id)
    if event is None:
        raise NotFound(f"The body of this event was {'erased' if record.erased_at else 'removed by age'}.")
    return event
