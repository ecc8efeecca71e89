"""Callback URLs: tells our own subscriptions from those of others by the URL that they deliver to. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from receiver.config import Config

Ownership = Literal["current", "former", "earlier", "foreign"]


@dataclass(frozen=True)
class CallbackUrls:
    """Our own callback URLs: the current one, former ones, and perhaps those of earlier checks."""

    url: str
    also: tuple[str, ...] = ()
    """Equivalent to `url`: the URL that all stores share."""
    former: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    """Ours at earlier checks, and not in the config any more."""

    def ownership(self, callback: str) -> Ownership:
        given = _normalized(callback)
        if given in map(_normalized, (self.url, *self.also)):
            return "current"
        if given in map(_normalized, self.former):
            return "former"
        return "earlier" if given in map(_normalized, self.earlier) else "foreign"


def callback_urls(
    config: Config, store: str, *, replaced: Iterable[str] = (), earlier: Iterable[str] = ()
) -> CallbackUrls:
    """Our callback URLs for a store. `replaced` are public URLs that `dev` has replaced, `earlier` our callback URLs
    at earlier checks."""
    base, given = config.receiver.public_url.rstrip("/"), config.stores[store].url
    bases = [url.rstrip("/") for url in (*config.receiver.former_urls, *replaced)]
    former = [f"{former_base}/webhooks{end}" for former_base in bases for end in (f"/{store}", "")]
    former += [f"{base}/webhooks/{store}"] if given else []
    return CallbackUrls(config.public_url_of(store), (f"{base}/webhooks",), tuple(former), tuple(earlier))


def public_url_in(callback: str, store: str) -> str:
    """The public URL that a callback URL begins with; empty if it is no such URL, but the store's own `url`."""
    return next(
        (callback.removesuffix(end) for end in (f"/webhooks/{store}", "/webhooks") if callback.endswith(end)), ""
    )


def _normalized(url: str) -> str:
    """A URL in one form: host in lower case, no default port, no trailing slash."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return url
    default = {"https": 443, "http": 80}.get(parts.scheme.lower())
    host = (parts.hostname or "") + (f":{port}" if port and port != default else "")
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme.lower()}://{host}{parts.path.rstrip('/')}{query}"
