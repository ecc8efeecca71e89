"""Checks of config keys that depend on each other. Each raises ConfigError with the place and the fix."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

from receiver.config.settings import FileSettings
from receiver.config.source_files import Places
from receiver.config.values import LOOPBACK, SANDBOX_SECRET
from receiver.contract.errors import ConfigError


def check(settings: FileSettings, places: Places) -> None:
    _check_sandbox_secret(settings, places)
    _check_spool_age(settings, places)
    _check_alerts(settings, places)
    _check_ca_file(settings, places)


def _check_sandbox_secret(settings: FileSettings, places: Places) -> None:
    host = settings.receiver.bind.rpartition(":")[0].strip("[]")
    public_host = urlsplit(settings.receiver.public_url).hostname
    if host in LOOPBACK and public_host in LOOPBACK:
        return
    for name, store in settings.stores.items():
        if any(secret.value.get_secret_value() == SANDBOX_SECRET for secret in store.signing_secrets):
            where = places.nearest(("stores", name, "signing_secrets"))
            raise ConfigError(
                f"{where}: stores.{name} uses the sandbox's secret, which is public; it is allowed on loopback "
                "addresses only. `storehooks init` writes a new secret"
            )


def _check_spool_age(settings: FileSettings, places: Places) -> None:
    receiver = settings.receiver
    if receiver.spool == "on" and receiver.spool_age > receiver.dedupe_window:
        where = places.get(("receiver", "spool_age")) or places.nearest(("receiver", "dedupe_window"))
        raise ConfigError(
            f"{where}: receiver.spool_age ({_duration(receiver.spool_age)}) is longer than receiver.dedupe_window "
            f"({_duration(receiver.dedupe_window)}): a delivery could wait in the spool until its duplicates are no "
            "longer recognised; shorten spool_age or lengthen dedupe_window"
        )


def _check_alerts(settings: FileSettings, places: Places) -> None:
    alerts = settings.alerts
    if unknown := sorted(alerts.rules.silent.keys() - {*settings.stores, "*"}):
        where = places.nearest(("alerts", "rules", "silent", unknown[0]))
        raise ConfigError(
            f'{where}: alerts.rules.silent names {unknown[0]}, which is no store; "*" is every other store'
        )
    heartbeat = alerts.heartbeat_url.get_secret_value()
    _check_alert_url(places, "heartbeat_url", url=heartbeat, allowed=alerts.heartbeat_private, key="heartbeat_private")
    for name, target in alerts.targets.items():
        url = target.url.get_secret_value()
        _check_alert_url(places, "targets", name, "url", url=url, allowed=target.allow_private, key="allow_private")


def _check_alert_url(places: Places, *path: str, url: str, allowed: object, key: str) -> None:
    parts, what = urlsplit(url), f"{places.nearest(('alerts', *path))}: alerts.{'.'.join(path)}"
    if parts.scheme == "http" and not allowed:
        raise ConfigError(f"{what} is not https; use https, or set {key} = true if it is on your own network")
    if "@" in parts.netloc:
        raise ConfigError(f"{what} has a user or a password, which are not sent; leave them out")


def _check_ca_file(settings: FileSettings, places: Places) -> None:
    if file := settings.network.ca_file:
        where = places.nearest(("network", "ca_file"))
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
        except ssl.SSLError:
            raise ConfigError(f"{where}: network.ca_file: {file} has no certificate in PEM form") from None
        except OSError as error:
            raise ConfigError(f"{where}: network.ca_file: {file} cannot be read: {error.strerror}") from None


def _duration(seconds: float) -> str:
    return f"{seconds / 86400:g} d" if seconds >= 86400 else f"{seconds:g} s"
