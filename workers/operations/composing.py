"""Composing: makes a delivery as a store would send it, or a tampered one, and sends it to the store's own URL."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from receiver.config import Config
from receiver.contract.compose import Request, compose, event_id_in, in_store_shape
from receiver.contract.diagnosis.terminal_text import harmless
from receiver.contract.errors import ConfigError
from receiver.contract.signing.grammar import Scheme, Secret
from receiver.contract.signing.sources import with_query
from receiver.contract.stores import Store
from receiver.contract.topics import WILDCARDS, translate
from receiver.process.process_files import restart_at_bind, web_addresses
from workers.operations.release import stores_with_secrets
from workers.storeapi.samples import sample

if TYPE_CHECKING:
    import httpx2

ANSWER_SECONDS = 10.0
ONE_HOUR = 3600
ONE_DAY = 86400
_OWN_ID = re.compile("msg_([0-9a-f]{8})[0-9a-f]{6}")
"""A generated id begins with its time."""

Tamper = Literal["signature", "body", "time"]


class SendAnswer(NamedTuple):
    status: int
    word: str
    """"accepted" or "duplicate", or the title of the problem."""
    detail: str
    event_id: str
    """Empty if it was refused."""
    ms: float


def new_delivery_id() -> str:
    return f"msg_{int(time.time()):08x}{secrets.token_hex(3)}"


def require_topic(topic: str) -> None:
    if not topic or not topic.isprintable() or " " in topic or any(letter in topic for letter in WILDCARDS):
        raise ConfigError(f"{harmless(topic[:64])!r} is not a topic; use one such as order.created")


def sample_data(scheme: Scheme, topic: str) -> Any:
    """A sample with the field names of a store's scheme."""
    return in_store_shape(scheme, topic, sample(translate(topic, scheme.topics)))


def change(data: Any, changes: Iterable[str]) -> None:
    """Change fields of the data, each given as `a.b=VALUE`."""
    for one in changes:
        path, sign, value = one.partition("=")
        if not sign:
            raise ConfigError(f"--set {one} is not a.b=VALUE, such as customer.name=Ada")
        *above, last = path.split(".")
        place = data
        for step in above:
            place = place.setdefault(step, {}) if isinstance(place, dict) else {}
        if not isinstance(place, dict):
            raise ConfigError(f"--set {one}: {path} is not inside an object")
        place[last] = _value(value)


def _value(text: str) -> Any:
    """The value if the text is JSON (42, true, null), else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def signer(config: Config, name: str) -> Store:
    """The store with the one secret to sign with: its first active one, configured or learned."""
    store = stores_with_secrets(config)[name]
    live = [secret for secret in store.secrets if secret.is_active(time.time())]
    if not live:
        raise ConfigError(f"{name} has no active secret on this host; `storehooks subscriptions apply` creates one")
    return replace(store, secrets=(live[0],))


def compose_request(
    config: Config, name: str, topic: str, data: Any, delivery_id: str, tamper: Tamper | None = None
) -> Request:
    """A signed delivery; with `tamper` one that is changed after it was signed, so that it is refused."""
    now = time.time() - (ONE_HOUR if tamper == "time" else 0)
    store = signer(config, name)
    if tamper == "time" and not (store.scheme.timestamp and store.scheme.tolerance):
        raise ConfigError(f"{store.scheme.name} signs no timestamp; tamper with the body")
    if tamper == "signature":
        store = replace(store, secrets=(Secret(secrets.token_bytes(32)),))
    occurred = _occurred(delivery_id, now)
    try:
        request = compose(store, topic=topic, delivery_id=delivery_id, data=data, now=now, occurred=occurred)
    except TypeError as error:  # of orjson: half of a character, a number of more than 64 bits, many levels
        raise ConfigError(f"the data cannot be sent as JSON: {error}") from None
    if tamper == "body":
        return Request(request.headers, request.body[:-1] + b" " + request.body[-1:])
    return request


def _occurred(delivery_id: str, now: float) -> float:
    """When the event occurred: the same time for the same id, since with another time it would be another event."""
    ours = _OWN_ID.fullmatch(delivery_id)
    return int(ours[1], 16) if ours else now // ONE_DAY * ONE_DAY


def send_request(config: Config, name: str, request: Request) -> SendAnswer:
    """Send a delivery to the public URL of its store, and to no other."""
    import httpx2  # takes a while to load

    from workers.storeapi.transport.network import call_options

    url, started = config.public_url_of(name), time.monotonic()
    try:
        target, headers = with_query(url, request.headers)
        options = call_options(config.network, target)
        answer = httpx2.post(target, headers=headers, content=request.body, timeout=ANSWER_SECONDS, **options)
    except UnicodeError:
        raise ConfigError("the delivery id or the topic is sent in a header; use only ASCII characters in it") from None
    except (httpx2.HTTPError, OSError) as error:  # OSError: of ca_file
        raise ConfigError(f"{url} does not answer: {error}; {_where_web_is(config)}") from None
    ms = (time.monotonic() - started) * 1000
    body = _object_in(answer)
    if not answer.is_success:
        return SendAnswer(answer.status_code, str(body.get("title", "")), str(body.get("detail", "")), "", ms)
    try:
        return SendAnswer(answer.status_code, str(body.get("status")), "", event_id_in(body), ms)
    except (LookupError, TypeError):
        raise ConfigError(
            f"{url} answered {answer.status_code}, but not as storehooks does; correct [receiver] public_url"
        ) from None


def _object_in(answer: httpx2.Response) -> dict[str, Any]:
    """The JSON object of an answer; empty if it has none."""
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _where_web_is(config: Config) -> str:
    """What to do if the receiver does not answer. Its own environment may make it listen elsewhere, such as PORT."""
    addresses = web_addresses(config.data_dir)
    if not addresses:
        return "`storehooks dev` starts the receiver"
    if config.receiver.bind in addresses:
        return "the web process runs, so see its log for the cause"
    again = restart_at_bind(addresses[0], config.receiver.bind)
    return f"the web process listens at {addresses[0]}: correct [receiver] public_url, or {again}"
