"""Settings: the models of the config file, key by key. Reading the file is `receiver.config`'s work."""

from __future__ import annotations

import math
import re
from base64 import b64decode
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, SecretStr

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB)", re.IGNORECASE)
_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(s|m|h|d)")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_LEAST_KEPT = 1 << 20
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def seconds(value: Any) -> float:
    """`"7d"`, `"1.5h"`, `"250ms"` or a plain number of seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * _SECONDS[match[2]]
    raise ValueError('not a duration; write "30s", "15m", "48h" or "7d"')


def octets(value: Any) -> int:
    """`"1MB"`, `"64KB"` or a plain number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        return int(float(match[1]) * _BYTES[match[2].upper()])
    raise ValueError('not a size; write "512KB" or "1MB"')


class Bounds(NamedTuple):
    """How long something is kept, and in how many bytes. No bytes: not at all."""

    seconds: float
    octets: int

    def __bool__(self) -> bool:
        return self.seconds > 0 and self.octets > 0


def _bounds(value: Any) -> Bounds:
    if isinstance(value, Bounds):
        return value
    if value == "off":
        return Bounds(0, 0)
    age, comma, size = str(value).partition(",")
    if not comma:
        raise ValueError('write how long and how much, such as "48h, 64MB", or "off"')
    bounds = Bounds(seconds(age), octets(size))
    if bounds.octets < _LEAST_KEPT:
        raise ValueError('at least "1MB" is needed to keep anything; or write "off"')
    return bounds


def per_second(value: Any) -> float:
    """`"5/s"`, `"300/m"` or `"10000/h"` as calls a second; `""` is no limit."""
    if value == "":
        return 0.0
    if isinstance(value, str) and (match := _RATE.fullmatch(value.strip())):
        return float(match[1]) / _SECONDS[match[2]]
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    raise ValueError('not a rate; write "5/s", "300/m" or "10000/h"')


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError('not an address; write "127.0.0.1:8000"')
    return value


def is_store_name(value: str) -> bool:
    return bool(_NAME.fullmatch(value))


def _store_name(value: str) -> str:
    if not is_store_name(value):
        raise ValueError("a store's name is lower-case letters, digits, - and _, at most 63")
    return value


def _aware(value: datetime) -> datetime:
    return value if value.tzinfo else value.replace(tzinfo=UTC)


Duration = Annotated[float, BeforeValidator(seconds)]
Rate = Annotated[float, BeforeValidator(per_second)]
Size = Annotated[int, BeforeValidator(octets)]
Kept = Annotated[Bounds, PlainValidator(_bounds)]
Address = Annotated[str, AfterValidator(_address)]
StoreName = Annotated[str, AfterValidator(_store_name)]


class Section(BaseModel):
    """A table of the config file: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class RedisSettings(Section):
    url: str = ""
    sentinels: tuple[Address, ...] = ()
    sentinel_name: str = "mymaster"
    sentinel_password: SecretStr = SecretStr("")
    ca_file: str = ""
    ack: Literal["stored", "fsync", "replica"] = "stored"
    data_dir: str = "data"
    timeout: Duration = 0.5

    @property
    def embedded(self) -> bool:
        """Whether it is the server in data_dir, which `storehooks dev` starts."""
        return not self.url and not self.sentinels


class ReceiverSettings(Section):
    bind: Address = "127.0.0.1:8000"
    public_url: str = "http://127.0.0.1:8000"
    former_urls: tuple[str, ...] = ()
    processes: int = Field(default=2, ge=1, le=64)
    worker_class: Literal["loop", "threads"] = "loop"
    threads: int = Field(default=8, ge=1, le=256)
    max_body: Size = 1 << 20
    dedupe_window: Duration = 7 * 86400.0
    read_timeout: Annotated[Duration, Field(gt=0)] = 10.0
    dedupe_window_unidentified: Duration = 60.0
    spool: Literal["on", "off"] = "on"
    spool_bytes: Size = 1 << 30
    spool_age: Duration = 3 * 86400.0
    refused: Kept = Bounds(48 * 3600.0, 64 << 20)

    @property
    def remembered(self) -> float:
        """How long a delivery's record must stay: a repetition inside the window may reach the inbox later by the
        time it waited in a spool.
        """
        return self.dedupe_window + (self.spool_age if self.spool == "on" else 0)


class WorkersSettings(Section):
    processes: int = Field(default=1, ge=1, le=64)
    child_processes: int = Field(default=4, ge=1, le=64)
    plugins: tuple[str, ...] = ()
    installed: bool = True
    retries: int | tuple[float, ...] = 8
    timeout: Duration = 60.0
    memory: Size = 1 << 30
    drain: Duration = 25.0


class RetentionSettings(Section):
    bodies: Duration = 7 * 86400.0
    records: Duration = 90 * 86400.0
    once: Duration = 90 * 86400.0
    failures: Annotated[float, BeforeValidator(lambda value: 0.0 if value == "keep" else seconds(value))] = 0.0
    events_per_store: int = Field(default=1_000_000, ge=1)


class LimitSettings(Section):
    """`[limits.NAME]`: what the other side can take, over all machines."""

    concurrency: int = Field(default=0, ge=0)
    rate: Rate = 0.0


def _key(value: SecretStr) -> SecretStr:
    if value.get_secret_value():
        sealing_key(value.get_secret_value())
    return value


def sealing_key(text: str) -> bytes:
    """The 32 bytes of `[secrets] key`, as `openssl rand -base64 32` or `-hex 32` writes them."""
    for decode in (bytes.fromhex, lambda given: b64decode(given, validate=True)):
        try:
            key = decode(text.strip())
        except ValueError:
            continue
        if len(key) == 32:
            return key
    raise ValueError("not a key; write 32 random bytes in base64 or hex, as `openssl rand -base64 32` makes them")


class SecretsSettings(Section):
    """Signing secrets that were learned from stores: sealed under `key`; an old one counts for `overlap` more."""

    key: Annotated[SecretStr, AfterValidator(_key)] = SecretStr("")
    overlap: Duration = 86400.0


class SubscriptionsSettings(Section):
    """How the workers keep subscriptions alive; `check = "off"` leaves that to people."""

    check: Annotated[float, BeforeValidator(lambda value: 0.0 if value == "off" else seconds(value))] = 300.0
    prune_after: Duration = 7 * 86400.0
    max_repairs_per_day: int = Field(default=12, ge=0)


class ApiSettings(Section):
    """What holds for the APIs of all stores together."""

    rate_limit: Rate = 0.0


class SecretWindow(Section):
    """A signing secret that ends: `{value = "env:OLD", not_after = 2026-12-01T00:00:00Z}`."""

    value: SecretStr
    not_after: Annotated[datetime, AfterValidator(_aware)] | None = None


def _as_window(value: Any) -> Any:
    return {"value": value} if isinstance(value, str) else value


SigningSecret = Annotated[SecretWindow, BeforeValidator(_as_window)]


class AuthSettings(Section):
    """OAuth 2.0 client credentials at `url`, or a token that was given to us."""

    url: str = ""
    client_id: str = ""
    client_secret: SecretStr = SecretStr("")
    style: Literal["basic", "body"] = "basic"
    scope: str = ""
    extra: dict[str, str] = {}
    token: SecretStr = SecretStr("")


class OperationSettings(Section):
    """What `[catalogue.GROUP.OPERATION]` may say; what it leaves out stays as the catalogue has it."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] | None = None
    path: str | None = None
    query: tuple[str, ...] | None = None
    needs: tuple[str, ...] | None = None
    takes: tuple[str, ...] | None = None
    rows: str | None = None
    gives: Literal["one", "many", "none"] | None = None
    record: str | None = None
    paging: Literal["page", "cursor", "link", "none"] | None = None
    retry_safe: bool | None = None
    idempotency_key: bool | None = None


class GroupSettings(BaseModel):
    """`[catalogue.GROUP]`: names of fields, and a table for each operation that differs or is added."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)
    __pydantic_extra__: dict[str, OperationSettings]
    fields_: dict[str, str] = Field(default={}, alias="fields")


class EnvelopeSettings(Section):
    data: str | None = None
    total: str | None = None
    error: str | None = None


class PagingSettings(Section):
    style: Literal["page", "cursor", "link", "none"] | None = None
    size: int | None = Field(default=None, ge=1, le=10_000)
    size_param: str | None = None
    page_param: str | None = None
    cursor_param: str | None = None
    next_cursor: str | None = None
    next_link: str | None = None


class CatalogueSettings(BaseModel):
    """`[catalogue]` and `[stores.NAME.catalogue]`: how a store's API differs from what is assumed of it."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)
    __pydantic_extra__: dict[str, GroupSettings]
    envelope: EnvelopeSettings = EnvelopeSettings()
    paging: PagingSettings = PagingSettings()


def _networks(value: Any) -> Any:
    for item in value if isinstance(value, list | tuple) else ():
        ip_network(item)
    return value


PrivateNetworks = Annotated[bool | tuple[str, ...], BeforeValidator(_networks)]


class StoreSettings(Section):
    base_url: str = ""
    auth: AuthSettings = AuthSettings()
    rate_limit: Rate = 0.0
    allow_private: PrivateNetworks = False
    catalogue: CatalogueSettings = CatalogueSettings()
    domain: str = ""
    scheme: str = "standard-webhooks"
    signing_secrets: tuple[SigningSecret, ...] = ()
    subscribe: tuple[str, ...] = ()
    url: str = ""
    max_stored: int = Field(default=0, ge=0)
    plugins: dict[str, dict[str, Any]] = {}


class SourcesSettings(Section):
    topic: tuple[str, ...] | None = None
    id: tuple[str, ...] | None = None
    resource_id: tuple[str, ...] | None = None
    data: tuple[str, ...] | None = None
    occurred: tuple[str, ...] | None = None
    store: tuple[str, ...] | None = None


class SchemeSettings(Section):
    """What `[schemes.NAME]` may say; what it leaves out comes from `extends`, or is the grammar's default."""

    extends: str = ""
    headers: tuple[str, ...] | None = None
    algorithm: Literal["hmac-sha256", "hmac-sha512"] | None = None
    encoding: Literal["hex", "base64"] | None = None
    list_sep: Literal["", ",", " ", ";"] | None = None
    pair_sep: Literal["", "=", ","] | None = None
    sig_keys: tuple[str, ...] | None = None
    signed: str | None = None
    allow_unsigned_body: bool | None = None
    secret_prefix: str | None = None
    secret_encoding: Literal["utf8", "base64", "hex"] | None = None
    timestamp: str | None = None
    timestamp_unit: Literal["s", "ms", "rfc3339"] | None = None
    tolerance: int | None = Field(default=None, ge=0)
    success: int | None = Field(default=None, ge=200, le=299)
    dedupe: Literal["id+body", "id"] | None = None
    event: SourcesSettings = SourcesSettings()
    topics: dict[str, str] = {}


class SandboxSettings(Section):
    """The sandbox store: where it listens, and how it misbehaves (see docs/sandbox.md)."""

    bind: Address = "127.0.0.1:8002"
    seed: int = 7
    misbehave: dict[str, float | str] = {}
    retries: tuple[Duration, ...] = (0.5, 1, 2, 5, 15, 60, 300, 1800, 7200)
    disable_after: int = Field(default=3, ge=1)


class HandlerSettings(Section):
    """What config decides of one handler, whatever its code proposes."""

    retries: Annotated[int, Field(ge=0)] | tuple[Duration, ...] | None = None
    timeout: Annotated[Duration, Field(gt=0)] | None = None
    limit: str | None = None
    """The name of a limit; "" is none."""


def _as_names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class PluginSettings(BaseModel):
    """`[plugins.NAME]`: the plugin's own settings, kept as they are, and what config decides of its handlers."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)
    stores: Annotated[tuple[str, ...] | None, BeforeValidator(_as_names)] = None
    handlers: dict[str, HandlerSettings] = {}

    @property
    def own(self) -> dict[str, Any]:
        """What is for the plugin to read."""
        return dict(self.model_extra or {})
