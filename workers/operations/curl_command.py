"""Curl command: an event as a command that sends it again, with the headers it came with and a signature of now."""

from __future__ import annotations

import base64
import shlex
import time
from typing import NamedTuple

from receiver.config import Config
from receiver.contract.errors import ConfigError, DeliveryRefused
from receiver.contract.event import REDACTED, Event
from receiver.contract.intake import NoEvents, receive
from receiver.contract.signing.signatures import sign
from receiver.contract.signing.sources import with_query
from receiver.contract.stored_headers import ITEM
from workers.operations.composing import signer
from workers.operations.edited_events import EDITED_FROM

MAX_ARGUMENT = 100_000
"""Bytes of a body that is an argument; Linux allows 128 KiB."""
NOT_SENT = frozenset(
    (
        *("host", "content-length", "connection", "accept-encoding", "transfer-encoding", "expect"),
        *(ITEM, REDACTED, EDITED_FROM),
    )
)
"""Headers that curl writes itself, that belong to one connection, or that are only ours."""


class CurlCommand(NamedTuple):
    text: str
    is_duplicate: bool
    """Whether a receiver that has the event finds the same id. Without a delivery id, one is made from the delivery."""


def curl_command(config: Config, event: Event) -> CurlCommand:
    """Raises ConfigError where the store is gone, or its scheme cannot sign this body so that it is valid now."""
    if event.store not in config.known_stores:
        raise ConfigError(f"the store {event.store} is not in the config, so there is no secret to sign with")
    if ITEM in event.headers:
        raise ConfigError("this event came in a batch with others, and the whole delivery is not stored")
    store, now = signer(config, event.store), time.time()
    sent = {name: value for name, value in event.headers.items() if name not in NOT_SENT}
    try:
        signed = sign(store.scheme, secret=store.secrets[0], headers=sent, body=event.body, now=now, url=store.url)
        again = receive({**sent, **signed.headers}, signed.body, store=store, now=now).event
    except (DeliveryRefused, NoEvents, ValueError) as error:  # such as a timestamp in the body, which is old now
        raise ConfigError(f"{store.scheme.name} cannot sign it again: {error}") from None
    url, headers = with_query(config.public_url_of(event.store), {**sent, **signed.headers})
    lines = [f"curl -X POST {shlex.quote(url)}"]
    lines += [f"  -H {shlex.quote(f'{name}: {value}')}" for name, value in sorted(headers.items())]
    # Only such a body can be copied from a page without a change, and is short enough for an argument.
    if len(signed.body) < MAX_ARGUMENT and signed.body.isascii() and signed.body.decode().isprintable():
        text = " \\\n".join([*lines, f"  --data-raw {shlex.quote(signed.body.decode())}"])
    else:
        lines.append("  --data-binary @-")
        text = f"echo {base64.b64encode(signed.body).decode()} | base64 -d | " + " \\\n".join(lines)
    return CurlCommand(text, again.id == event.id)
