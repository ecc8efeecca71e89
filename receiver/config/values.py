"""Value types of the config: durations, sizes, rates, addresses, names and keys, each with its parser.

A parser raises ValueError with a message that shows how to write the value.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, PlainValidator, SecretStr

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")
_SECONDS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|)", re.IGNORECASE)
_BYTES = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(s|m|h|d)")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_MIN_BOUND_BYTES = 1 << 20
MAX_BODY = 32 << 20
"""A web process holds the requests that wait for their turn in 64 MB, so a body must not need most of it."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MIN_TOKEN = 16
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FRAMING_HEADERS = ("host", "content-length", "content-type", "transfer-encoding", "connection")
SANDBOX_SECRET = "whsec_c2FuZGJveCBvbmx5LCBuZXZlciBpbiBwcm9kdWN0aW9u"  # noqa: S105  "sandbox only, never in production"


_DATA_PATH = re.compile(r"[^.\s]+(\.[^.\s]+)*")
PERSONAL = (
    *("first_name", "last_name", "full_name", "customer.name", "buyer.name", "recipient.name"),
    *("*address*", "*email*", "*phone*", "*mobile*", "ip", "*_ip", "ip_*", "x-forwarded-for", "forwarded"),
)
"""Fields that the console folds unless the config lists others."""


CLOSED = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
"""Of a table of the config file: unknown keys are errors, and values are read-only."""


def parse_duration(value: Any) -> float:
    """Return seconds for `"7d"`, `"1.5h"`, `"250ms"` or a plain number of seconds, which a variable has as text."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * _SECONDS[match[2]]
    raise ValueError('not a duration; write "30s", "15m", "48h" or "7d"')


def parse_size(value: Any) -> int:
    """Return bytes for `"1MB"`, `"64KB"` or a plain number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        return int(float(match[1]) * _BYTES[match[2].upper()])
    raise ValueError('not a size; write "512KB" or "1MB"')


def _check_body_size(value: int) -> int:
    if not 1 <= value <= MAX_BODY:
        raise ValueError(f'must be at most "{MAX_BODY >> 20}MB", and not 0')
    return value


def parse_rate(value: Any) -> float:
    """Return calls per second for `"5/s"`, `"300/m"`, `"10000/h"` or a plain number; 0 for `""`, no limit."""
    if value == "":
        return 0.0
    if isinstance(value, str) and (match := _RATE.fullmatch(value.strip())):
        return float(match[1]) / _SECONDS[match[2]]
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    raise ValueError('not a rate; write "5/s", "300/m" or "10000/h"')


def _check_repeat_window(value: float) -> float:
    if 0 < value < 1:
        raise ValueError('must be at least "1s"; write 0 if equal bodies are never duplicates')
    return value


class Bounds(NamedTuple):
    """The maximum age in seconds and the maximum size in bytes of stored data. Zero for either stores nothing."""

    max_age: float
    max_bytes: int

    def __bool__(self) -> bool:
        return self.max_age > 0 and self.max_bytes > 0


def _parse_bounds(value: Any) -> Bounds:
    if isinstance(value, Bounds):
        return value
    if value == "off":
        return Bounds(0, 0)
    age, comma, size = str(value).partition(",")
    if not comma:
        raise ValueError('write a maximum age and size, such as "48h, 64MB", or "off"')
    bounds = Bounds(parse_duration(age), parse_size(size))
    if bounds.max_bytes < _MIN_BOUND_BYTES:
        raise ValueError('the size must be at least "1MB"; to store nothing, write "off"')
    return bounds


def _check_address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError('not an address; write "127.0.0.1:8000"')
    return value


def is_loopback(url: str) -> bool:
    """Whether a URL is on this machine, so that a call of it needs no confirmation."""
    return urlsplit(url).hostname in LOOPBACK


def check_url(value: str) -> str:
    if value and not _is_url(value, ("http", "https")):
        raise ValueError('not a URL; write "https://hooks.example.com"')
    return value


def _check_redis_url(value: str) -> str:
    """The error never shows the value: it may contain a password."""
    if value and not _is_url(value, ("redis", "rediss", "unix")):
        raise ValueError('not a URL of a Redis server; write "redis://USER:PASSWORD@HOST:PORT", or rediss:// for TLS')
    parts = urlsplit(value)
    database = parts.path.strip("/")
    if database and parts.scheme != "unix" and not database.isdigit():
        raise ValueError('the database is a number, as in "redis://HOST:PORT/0"')
    options = parse_qs(parts.query, keep_blank_values=True)
    if not options.keys() <= {"db", "ssl_certfile", "ssl_keyfile"}:
        raise ValueError(
            "the URL has an option that is not supported; the options are db, ssl_certfile and ssl_keyfile, "
            "timeout and ca_file are keys of [redis], and a ? in a password is written %3F"
        )
    if not all(number.isdecimal() for number in options.pop("db", ())):
        raise ValueError('the database is a number, as in "unix:///run/redis.sock?db=0"')
    if options and parts.scheme != "rediss":
        raise ValueError(f"{min(options)} needs TLS; write rediss://")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise ValueError("ssl_keyfile needs ssl_certfile")
    return value


def _check_history_url(value: str) -> str:
    """The error never shows the value: it may contain a password."""
    if value in ("", "off", "sqlite"):
        return value
    try:
        parts = urlsplit(value)
        valid = parts.scheme in ("postgresql", "postgres") and parts.port != 0 and value == value.strip()
    except ValueError:
        valid = False
    if not valid or not value.startswith(f"{parts.scheme}://"):
        raise ValueError('not a history; write "sqlite", "off" or "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"')
    return value


def _is_url(value: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(value)
        valid_port = parts.port != 0  # raises ValueError where it is no number
    except ValueError:
        return False
    has_place = bool(parts.hostname or (parts.scheme == "unix" and parts.path))
    return parts.scheme in schemes and valid_port and has_place and value == value.strip()


def _check_url_or_path(value: str) -> str:
    return check_url(value) if "://" in value or value.startswith("//") else value


def is_store_name(value: str) -> bool:
    return bool(_NAME.fullmatch(value))


def _check_store_name(value: str) -> str:
    if not is_store_name(value):
        raise ValueError("a store's name is lower-case letters, digits, - and _, at most 63")
    return value


def sealing_key(text: str) -> bytes:
    """Return the 32 bytes of `[secrets] key`, as `openssl rand -base64 32` or `openssl rand -hex 32` prints them."""
    for decode in (bytes.fromhex, lambda given: b64decode(given, validate=True)):
        try:
            key = decode(text.strip())
        except ValueError:
            continue
        if len(key) == 32:
            return key
    raise ValueError("not a key; write 32 random bytes in base64 or hex, as `openssl rand -base64 32` makes them")


def _check_sealing_key(value: SecretStr) -> SecretStr:
    if value.get_secret_value():
        sealing_key(value.get_secret_value())
    return value


def _check_networks(value: Any) -> Any:
    for item in value if isinstance(value, list | tuple) else ():
        ip_network(item)
    return value


def _with_timezone(value: datetime) -> datetime:
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _parse_record_path(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(path, str) for path in value):
        return tuple(value)
    raise ValueError('not a path; write "total_price", or a list of paths, tried in order')


def _check_data_path(value: str) -> str:
    if not _DATA_PATH.fullmatch(value):
        raise ValueError('not a path into the data of an event; write "email" or "customer.email"')
    if "*" in value:
        raise ValueError('"*" stands for no other name here; write each path, of items of a list like "lines.0.email"')
    return value


def _check_header_name(value: str) -> str:
    if not _HEADER_NAME.fullmatch(value) or value.lower() in _FRAMING_HEADERS:
        raise ValueError('not the name of a header that can be set; write it like "x-api-key"')
    return value.lower()


def _check_header_value(value: str) -> str:
    if not value.isprintable() or not value.isascii():
        raise ValueError("not the value of a header; it has characters that are not printable ASCII")
    return value


def _check_field_path(path: str) -> str:
    if not all(path.split(".")) or path.endswith("*"):
        raise ValueError('not the path of a field; write "updated_at", "meta.updated_at" or "lines.*.updated_at"')
    return path


def _check_token(value: SecretStr) -> SecretStr:
    if 0 < len(value.get_secret_value()) < MIN_TOKEN:
        raise ValueError(f"shorter than {MIN_TOKEN} characters, so it can be guessed; `openssl rand -hex 24` makes one")
    return value


Duration = Annotated[float, BeforeValidator(parse_duration)]
RepeatWindow = Annotated[Duration, AfterValidator(_check_repeat_window)]
Rate = Annotated[float, BeforeValidator(parse_rate)]
Size = Annotated[int, BeforeValidator(parse_size)]
BodySize = Annotated[Size, AfterValidator(_check_body_size)]
AgeAndSize = Annotated[Bounds, PlainValidator(_parse_bounds)]
Address = Annotated[str, AfterValidator(_check_address)]
Url = Annotated[str, AfterValidator(check_url)]
RedisUrl = Annotated[str, AfterValidator(_check_redis_url)]
HistoryUrl = Annotated[str, AfterValidator(_check_history_url)]
UrlOrPath = Annotated[str, AfterValidator(_check_url_or_path)]
StoreName = Annotated[str, AfterValidator(_check_store_name)]
SealingKey = Annotated[SecretStr, AfterValidator(_check_sealing_key)]
Token = Annotated[SecretStr, AfterValidator(_check_token)]
PrivateNetworks = Annotated[bool | tuple[str, ...], BeforeValidator(_check_networks)]
Networks = Annotated[tuple[str, ...], BeforeValidator(_check_networks)]
Moment = Annotated[datetime, AfterValidator(_with_timezone)]
FieldPath = Annotated[str, AfterValidator(_check_field_path)]
RecordPath = Annotated[str | tuple[str, ...], PlainValidator(_parse_record_path)]
DataPath = Annotated[str, AfterValidator(_check_data_path)]
HeaderName = Annotated[str, AfterValidator(_check_header_name)]
HeaderValue = Annotated[str, AfterValidator(_check_header_value)]
Names = Annotated[tuple[str, ...] | None, BeforeValidator(as_tuple)]


@dataclass(frozen=True)
class DurationOrWord:
    """Parses a duration, or a word, which is read as 0."""

    word: str

    def __call__(self, value: Any) -> float:
        return 0.0 if value == self.word else parse_duration(value)


def duration_or(word: str) -> BeforeValidator:
    """A duration, or `word`, which is read as 0: `"off"` or `"keep"`."""
    return BeforeValidator(DurationOrWord(word))
