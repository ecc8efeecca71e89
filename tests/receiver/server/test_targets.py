"""Which requests are deliveries: the loop finds them as Flask would, in every form that a target may have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.app import create_app
from receiver.server.deliveries import store_and_query
from receiver.server.flask_bridge import environ
from receiver.server.request_reader import HttpRequest, RequestReader

PIPELINE: Any = SimpleNamespace(admission=None, storage=None)
APP = create_app(PIPELINE, max_body=1000)
PIECES = ["/", "//", "webhooks", "/webhooks", "/webhooks/", "%77ebhooks", "north", "North", "%2F", "%2f", "%6Eorth"]
PIECES += ["%00", "%0A", "%ff", "%c3%bc", "%", "%zz", "?", "?a=b", "&", "#", "#x", ";", ":", "@", "..", "|", "x" * 70]
BEGINS = ["", "/", "/webhooks", "http://a", "HTTPS://a.example:443", "http://", "http:///", "x://a@b", "//a/webhooks"]
DELIVERIES = {
    "/webhooks": ("", ""),
    "http://a/webhooks": ("", ""),
    "https://hooks.example:443/webhooks/north?a=b#c": ("north", "a=b"),
    "/webhooks#x": ("", ""),
    "/%77ebhooks/%6eorth": ("north", ""),
    "//webhooks/North": ("North", ""),
}


def found_by_flask(target: str) -> tuple[str, str] | None:
    request = HttpRequest("POST", target, 1, {"host": "a"}, b"", True)
    with APP.request_context(environ(request, "192.0.2.1")) as context:
        rule, query = context.request.url_rule, context.request.query_string.decode()
        is_delivery = rule is not None and rule.rule.startswith("/webhooks")
        return ((context.request.view_args or {}).get("store", ""), query) if is_delivery else None


@pytest.mark.parametrize("target", DELIVERIES)
def test_a_delivery_is_served_by_the_loop_in_any_form(target: str) -> None:
    """In a thread of Flask's, costly bodies of 16 connections delayed others for four seconds."""
    assert store_and_query(target) == DELIVERIES[target] == found_by_flask(target)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(BEGINS), st.lists(st.sampled_from(PIECES), max_size=5))
def test_the_loop_finds_what_flask_finds(begin: str, pieces: list[str]) -> None:
    target = begin + "".join(pieces)
    reader = RequestReader(1000)
    reader.read(b"POST %b HTTP/1.1\r\nHost: a\r\n\r\n" % target.encode())
    if reader.request:
        assert store_and_query(target) == found_by_flask(target)
