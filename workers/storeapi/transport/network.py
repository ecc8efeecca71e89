"""Network: what all outgoing calls of this installation share: trusted certificates and a proxy, from `[network]`."""

from __future__ import annotations

import ssl
import time
from ipaddress import ip_address
from typing import Any

import httpcore2
import httpx2

from receiver.config.settings import NetworkSettings
from workers.storeapi.transport.guard import is_public, resolve

DIRECT = NetworkSettings()
LOOKUP_SECONDS = 2.0
"""Where only the proxy knows the names of the internet, a lookup may get no answer."""
REMEMBERED_SECONDS = 30.0
MAX_LOOKUPS = 1000

_lookups: dict[str, tuple[float, bool]] = {}
"""Host -> until when it is known whether it has a private address, and whether it has."""


def trusted_certificates(network: NetworkSettings) -> ssl.SSLContext:
    """Those of the system, or of SSL_CERT_FILE and SSL_CERT_DIR, and those of `ca_file`. Raises OSError."""
    context = httpx2.create_ssl_context()
    if network.ca_file:
        context.load_verify_locations(network.ca_file)
    return context


def proxy_for(network: NetworkSettings, url: str, *, seconds: float = LOOKUP_SECONDS) -> str:
    """The proxy to call a URL through; empty for a direct call.

    Names with a private address are called directly, so that the guard still decides about them, and our own host is
    never asked of a proxy. What has no address here is left to the proxy, which looks it up itself.
    """
    proxy = network.proxy.get_secret_value()
    if not proxy:
        return ""
    target = httpx2.URL(url)
    return "" if _has_private_address(target.host, target.port or 443, seconds) else proxy


def _has_private_address(host: str, port: int, seconds: float) -> bool:
    """Remembered for a while: a call that holds a slot of a rate limit should not wait for a lookup. It decides only
    about the proxy. The guard looks up again what is called directly."""
    now = time.monotonic()
    known = _lookups.get(host)
    if known and now < known[0]:
        return known[1]
    try:
        found = resolve(host, port, max(0.0, min(seconds, LOOKUP_SECONDS)))
    except httpcore2.ConnectError:
        found = []
    except httpcore2.ConnectTimeout:
        if seconds < LOOKUP_SECONDS:  # the next call may have the time
            return False
        found = []
    is_private = not all(is_public(ip_address(address.partition("%")[0])) for address in found)
    if len(_lookups) >= MAX_LOOKUPS:
        _lookups.clear()
    _lookups[host] = (now + REMEMBERED_SECONDS, is_private)
    return is_private


def call_options(network: NetworkSettings, url: str) -> dict[str, Any]:
    """For one call of httpx2 to our own public URL, which may have any address. Variables for proxies do not count."""
    proxy = proxy_for(network, url)
    needs_certificates = proxy or not url.startswith("http:")  # to read them takes long where many programs run
    trusted = trusted_certificates(network) if needs_certificates else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {"trust_env": False, "verify": trusted, "proxy": proxy or None}
