"""The config file as models, one class for each table and one field for each key.

To add a key, add a field with its default here and a line with a comment to config.example.toml.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from receiver.config.alert_settings import AlertsSettings, SecretUrl
from receiver.config.catalogue_settings import CatalogueSettings
from receiver.config.values import (
    CLOSED,
    PERSONAL,
    Address,
    AgeAndSize,
    BodySize,
    Bounds,
    DataPath,
    Duration,
    FieldPath,
    HeaderName,
    HeaderValue,
    HistoryUrl,
    Moment,
    Names,
    Networks,
    PrivateNetworks,
    Rate,
    RecordPath,
    RedisUrl,
    RepeatWindow,
    SealingKey,
    Size,
    StoreName,
    Token,
    Url,
    UrlOrPath,
    as_tuple,
    duration_or,
)

ENV_PREFIX = "STOREHOOKS_"


class Section(BaseModel):
    """A table of the config file."""

    model_config = CLOSED


class RedisSettings(Section):
    url: RedisUrl = ""
    sentinels: tuple[Address, ...] = ()
    sentinel_name: str = "mymaster"
    sentinel_password: SecretStr = SecretStr("")
    ca_file: str = ""
    ack: Literal["stored", "fsync", "replica"] = "stored"
    data_dir: str = ""
    timeout: Annotated[Duration, Field(gt=0)] = 0.5

    @property
    def embedded(self) -> bool:
        """Whether to use the server in data_dir, which `storehooks dev` starts."""
        return not self.url and not self.sentinels


class ReceiverSettings(Section):
    bind: Address = "127.0.0.1:8000"
    public_url: Url = "http://127.0.0.1:8000"
    former_urls: tuple[Url, ...] = ()
    trusted_proxies: Networks = ()
    processes: int = Field(default=2, ge=1, le=64)
    threads: int = Field(default=8, ge=1, le=256)
    max_body: BodySize = 1 << 20
    dedupe_window: Duration = 7 * 86400.0
    read_timeout: Annotated[Duration, Field(gt=0)] = 10.0
    dedupe_window_unidentified: RepeatWindow = 60.0
    spool: Literal["on", "off"] = "on"
    spool_bytes: Size = 1 << 30
    spool_age: Duration = 3 * 86400.0
    refused: AgeAndSize = Bounds(48 * 3600.0, 64 << 20)

    @property
    def dedupe_retention(self) -> float:
        """Seconds for which the record of a delivery must stay in Redis.

        It is longer than dedupe_window: a duplicate that arrives within the window may wait in the spool first.
        """
        return self.dedupe_window + (self.spool_age if self.spool == "on" else 0)


class ConsoleSettings(Section):
    """The operator's web app. Without a password, its address must be a loopback one."""

    bind: Address = "127.0.0.1:8001"
    url: Url = ""
    password: SecretStr = SecretStr("")
    viewer_password: SecretStr = SecretStr("")
    metrics_token: Token = SecretStr("")
    personal: tuple[str, ...] = PERSONAL

    @property
    def address(self) -> str:
        """The URL at which people open it."""
        return self.url.rstrip("/") or f"http://{self.bind}"


class WorkersSettings(Section):
    processes: int = Field(default=1, ge=1, le=64)
    child_processes: int = Field(default=4, ge=1, le=64)
    plugins: tuple[str, ...] = ()
    installed: bool = True
    retries: int | tuple[float, ...] = 8
    timeout: Duration = 60.0
    memory: Size = 1 << 30
    drain: Duration = 25.0


class NetworkSettings(Section):
    """What all outgoing calls share: to stores, to our own public URL, to forward targets and to alert targets."""

    ca_file: str = ""
    proxy: SecretUrl = SecretStr("")


class RetentionSettings(Section):
    bodies: Duration = 7 * 86400.0
    records: Duration = 90 * 86400.0
    once: Duration = 90 * 86400.0
    failures: Annotated[float, duration_or("keep")] = 90 * 86400.0
    audit: Annotated[float, duration_or("keep")] = 365 * 86400.0
    receipts: Annotated[float, duration_or("keep")] = 3 * 365 * 86400.0
    events_per_store: int = Field(default=1_000_000, ge=1)


class HistorySettings(Section):
    """Where settled events are moved to, and how long they stay in Redis."""

    url: HistoryUrl = ""
    after: Duration = 3600.0


class RedactSettings(Section):
    """What is removed from the data of events before they are stored."""

    paths: tuple[DataPath, ...] = ()


class LimitSettings(Section):
    """`[limits.NAME]`: the load that an external system can take, over all machines."""

    concurrency: int = Field(default=0, ge=0)
    rate: Rate = 0.0


class SecretsSettings(Section):
    """Signing secrets learned from stores. `key` encrypts them; an old secret stays valid for `overlap`."""

    key: SealingKey = SecretStr("")
    overlap: Duration = 86400.0


class SubscriptionsSettings(Section):
    """How workers check and repair webhook subscriptions; `check = "off"` turns that off."""

    check: Annotated[float, duration_or("off")] = 300.0
    prune_after: Duration = 7 * 86400.0
    max_repairs_per_day: int = Field(default=12, ge=0)


class ApiSettings(Section):
    """Limits for the APIs of all stores together."""

    rate_limit: Rate = 0.0


class SecretWindow(Section):
    """A signing secret that may expire: `{value = "env:OLD", not_after = 2026-12-01T00:00:00Z}`."""

    value: SecretStr
    not_after: Moment | None = None


def _as_window(value: Any) -> Any:
    return {"value": value} if isinstance(value, str) else value


SigningSecret = Annotated[SecretWindow, BeforeValidator(_as_window)]


class AuthSettings(Section):
    """OAuth 2.0 client credentials at `url`, or a fixed `token`."""

    url: UrlOrPath = ""
    client_id: str = ""
    client_secret: SecretStr = SecretStr("")
    style: Literal["basic", "body", "json"] = "basic"
    scope: str = ""
    extra: dict[str, str] = {}
    token_path: str = Field(default="access_token", min_length=1)
    token: SecretStr = SecretStr("")
    header: HeaderName = "authorization"
    scheme: HeaderValue = "Bearer"


class StoreSettings(Section):
    base_url: Url = ""
    auth: AuthSettings = AuthSettings()
    rate_limit: Rate = 0.0
    allow_private: PrivateNetworks = False
    catalogue: CatalogueSettings = CatalogueSettings()
    domain: str = ""
    scheme: str = "standard-webhooks"
    signing_secrets: tuple[SigningSecret, ...] = ()
    subscribe: tuple[str, ...] = ()
    url: Url = ""
    max_stored: int = Field(default=0, ge=0)
    volatile_fields: tuple[FieldPath, ...] = ("updated_at", "modified_at", "date_modified", "date_modified_gmt")
    plugins: dict[str, dict[str, Any]] = {}


class SourcesSettings(Section):
    topic: tuple[str, ...] | None = None
    id: tuple[str, ...] | None = None
    resource_id: tuple[str, ...] | None = None
    data: tuple[str, ...] | None = None
    occurred: tuple[str, ...] | None = None
    sequence: tuple[str, ...] | None = None
    store: tuple[str, ...] | None = None


class RecordSettings(Section):
    """`[schemes.NAME.record]`: where this store's data holds the fields of `event.record`."""

    money: Literal["major", "minor"] | None = None
    decimals: dict[str, int] = {}
    product: dict[str, RecordPath] = {}
    order: dict[str, RecordPath] = {}
    line: dict[str, RecordPath] = {}
    buyer: dict[str, RecordPath] = {}
    customer: dict[str, RecordPath] = {}


class SchemeSettings(Section):
    """`[schemes.NAME]`. A key left out is inherited from `extends`, or has the default of `signing.grammar.Scheme`."""

    extends: str = ""
    headers: tuple[str, ...] | None = None
    signature: tuple[str, ...] | None = None
    algorithm: Literal["hmac-sha256", "hmac-sha512", "hmac-sha1", "sha256"] | None = None
    encoding: Literal["hex", "base64", "base64url"] | None = None
    list_sep: Literal["", ",", " ", ";", ":", "&", "|", "."] | None = None
    pair_sep: Literal["", "=", ",", ":", " "] | None = None
    sig_keys: tuple[str, ...] | None = None
    sig_index: int | None = Field(default=None, ge=-1)
    signed: str | None = None
    allow_unsigned_body: bool | None = None
    secret_prefix: str | None = None
    secret_encoding: Literal["utf8", "base64", "hex"] | None = None
    timestamp: str | None = None
    timestamp_unit: Literal["s", "ms", "rfc3339"] | None = None
    tolerance: int | None = Field(default=None, ge=0)
    success: int | None = Field(default=None, ge=200, le=299)
    dedupe: Literal["id+body", "id"] | None = None
    batch: str | None = None
    event: SourcesSettings = SourcesSettings()
    topics: dict[str, str] = {}
    record: RecordSettings = RecordSettings()


class SandboxSettings(Section):
    """The sandbox store: where it listens, and which faults it simulates (see docs/sandbox.md)."""

    bind: Address = "127.0.0.1:8002"
    seed: int = 7
    misbehave: dict[str, float | str] = {}
    retries: tuple[Duration, ...] = (0.5, 1, 2, 5, 15, 60, 300, 1800, 7200)
    disable_after: int = Field(default=3, ge=1)


class HandlerSettings(Section):
    """`[plugins.PLUGIN] handlers.NAME`: overrides of the options in the handler's code."""

    retries: Annotated[int, Field(ge=0)] | tuple[Duration, ...] | None = None
    timeout: Annotated[Duration, Field(gt=0)] | None = None
    limit: str | None = None
    """The name of a `[limits.NAME]` table; "" removes the limit."""


class ForwardSettings(HandlerSettings):
    """`[forward.NAME]`: a handler in the config. Events are sent to `url`, signed anew if there is a `secret`."""

    url: Annotated[Url, Field(min_length=1)]
    topics: Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(min_length=1)]
    stores: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ("*",)
    secret: SecretStr = SecretStr("")
    allow_private: PrivateNetworks = False
    timeout: Annotated[Duration, Field(ge=1)] = 15.0


class PluginSettings(BaseModel):
    """`[plugins.NAME]`: overrides for its handlers, and any other keys, which the plugin itself reads."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)
    stores: Names = None
    handlers: dict[str, HandlerSettings] = {}

    @property
    def plugin_values(self) -> dict[str, Any]:
        """The keys that the plugin itself reads: all except `stores` and `handlers`."""
        return dict(self.model_extra or {})


class FileSettings(BaseSettings):
    """The whole file: one field for each table, and the keys at the top."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, hide_input_in_errors=True
    )
    include: tuple[str, ...] = ("stores.d/*.toml",)
    redis: RedisSettings = RedisSettings()
    receiver: ReceiverSettings = ReceiverSettings()
    network: NetworkSettings = NetworkSettings()
    console: ConsoleSettings = ConsoleSettings()
    workers: WorkersSettings = WorkersSettings()
    retention: RetentionSettings = RetentionSettings()
    history: HistorySettings = HistorySettings()
    redact: RedactSettings = RedactSettings()
    alerts: AlertsSettings = AlertsSettings()
    limits: dict[str, LimitSettings] = {}
    plugins: dict[str, PluginSettings] = {}
    forward: dict[str, ForwardSettings] = {}
    store_defaults: dict[str, Any] = {}
    schemes: dict[str, SchemeSettings] = {}
    stores: dict[StoreName, StoreSettings] = {}
    catalogue: CatalogueSettings = CatalogueSettings()
    secrets: SecretsSettings = SecretsSettings()
    subscriptions: SubscriptionsSettings = SubscriptionsSettings()
    api: ApiSettings = ApiSettings()
    sandbox: SandboxSettings = SandboxSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values only from the arguments: `environment` reads the variables and knows where each came from."""
        return (init_settings,)

    @property
    def history_url(self) -> str:
        """The database of past events: "sqlite", "off" or a PostgreSQL URL. An embedded server is used by one host."""
        return self.history.url or ("sqlite" if self.redis.embedded else "off")

    @property
    def failures_kept(self) -> float:
        """Seconds for which failures are stored, at least the duplicate window; 0 is until a person ends them."""
        kept = self.retention.failures
        return max(kept, self.receiver.dedupe_retention) if kept else 0.0

    def public_url_of(self, store: str) -> str:
        """Return the URL that a store sends its deliveries to."""
        return self.stores[store].url or f"{self.receiver.public_url.rstrip('/')}/webhooks/{store}"
