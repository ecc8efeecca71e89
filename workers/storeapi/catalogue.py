"""Catalogue: the operations of the store's API, read from catalogue.toml and corrected by config.

Pure, except that it reads that file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any, Literal

from receiver.config import Config
from receiver.config.catalogue_settings import (
    CatalogueSettings,
    FieldType,
    GroupSettings,
    OperationSettings,
    PagingStyle,
)
from receiver.config.errors import did_you_mean
from receiver.contract.errors import ConfigError
from receiver.contract.event import follow
from receiver.contract.record_map import RecordMap

State = Literal["documented", "assumed", "overridden", "added"]

_PARAMETER = re.compile(r"\{([a-z_]+)\}")
_PATH = re.compile(r"/?([A-Za-z0-9_.~-]|\{[a-z_]+\})+(/([A-Za-z0-9_.~-]|\{[a-z_]+\})+)*")
_PREFIX = re.compile(r"(/[A-Za-z0-9_.~-]+)*")
_IDEMPOTENT_METHODS = frozenset({"GET", "PUT", "DELETE"})


@dataclass(frozen=True)
class Operation:
    """One call of the store's API."""

    group: str
    name: str
    method: str
    path: str
    below_prefix: str = ""
    """The path without the catalogue's prefix; empty where config has the whole path."""
    state: State = "assumed"
    query: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict, hash=False)
    rows: str = ""
    body: str = ""
    returns: Literal["one", "many", "none"] = "one"
    record: str = ""
    data: str | None = None
    item: str | None = None
    total: str | None = None
    paging: PagingStyle = "page"
    retry_safe: bool = False
    idempotency_key: bool = False

    @property
    def full_name(self) -> str:
        return f"{self.group}.{self.name}"

    @property
    def documented(self) -> bool:
        """Whether the API's document shows it. Only one operation is, and config that changes it ends that."""
        return self.state == "documented"

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path parameters, in the order of the path."""
        return tuple(_PARAMETER.findall(self.path))

    def fill(self, values: Mapping[str, str]) -> str:
        """The path with its parameters filled in; `values` must be escaped."""
        return _PARAMETER.sub(lambda match: values[match[1]], self.path)

    @property
    def description(self) -> str:
        """The operation in a few lines: the docstring of the client's method."""
        returns = {"one": f"one {self.record} record", "many": f"{self.record} records, by page", "none": "nothing"}
        required = (self.rows,) if self.rows else self.required
        named = {"Query": self.query, "Required": required, "Optional": self.optional}
        lines = [f"{kind}: {', '.join(names)}." for kind, names in named.items() if names]
        if not self.retry_safe:
            lines.append("It is not sent again when its response is lost.")
        return "\n".join([f"{self.method} {self.path} ({self.state}). Returns {returns[self.returns]}.", *lines])

    @property
    def body_fields(self) -> tuple[str, ...]:
        return (self.rows,) if self.rows else (*self.required, *self.optional)


@dataclass(frozen=True)
class Envelope:
    """Where a response holds its records, total and error: paths like `meta.total`, or `header:x-total-count`."""

    data: str
    """The list; "" if the response itself is the list."""
    item: str
    """The record within each item of the list; "" if the item is the record."""
    total: str
    error: str
    record: str | None = None
    """A single record; None if it is where a list would be."""


@dataclass(frozen=True)
class Paging:
    style: PagingStyle
    size: int
    max_pages: int
    size_param: str
    page_param: str
    first_page: int
    offset_param: str
    cursor_param: str
    next_cursor: str
    next_link: str


@dataclass(frozen=True)
class Catalogue:
    """The operations of one store."""

    operations: Mapping[str, Operation]
    fields: Mapping[str, Mapping[str, str]]
    """By group, the store's name of each field, or its path. Those of an order's parts are in `line` and `buyer`."""
    types: Mapping[str, Mapping[str, FieldType]]
    envelope: Envelope
    paging: Paging
    prefix: str
    headers: Mapping[str, str] = field(default_factory=dict)
    money: Literal["major", "minor"] = "major"
    decimals: Mapping[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations.values())

    def get(self, group: str, name: str) -> Operation:
        """The operation. Raises ConfigError with the closest name where there is none."""
        operation = self.operations.get(f"{group}.{name}")
        if operation is None:
            raise ConfigError(
                f"the catalogue has no operation {group}.{name}"
                f"{did_you_mean(f'{group}.{name}', self.operations, cutoff=0.5)}"
            )
        return operation

    def envelope_of(self, operation: Operation) -> Envelope:
        """The envelope of an operation's responses. Its `data` is the path of what the operation returns."""
        common, data = self.envelope, operation.data
        if data is None:
            data = common.data if operation.returns == "many" or common.record is None else common.record
        item = common.item if operation.item is None else operation.item
        return replace(common, data=data, item=item, total=common.total if operation.total is None else operation.total)

    def record_map(self, operation: Operation) -> RecordMap:
        """Where the records of an operation have their fields."""
        parts = {"customer": "customers", "line": "line", "buyer": "buyer"}
        fields = {part: self.fields[table] for part, table in parts.items() if self.fields.get(table)}
        fields[operation.record] = self.fields.get(operation.group, {})
        return RecordMap(fields, self.money, self.decimals)


def value_at(document: Any, headers: Mapping[str, str], path: str) -> Any:
    """The value at `meta.total` in a response's document, or that of `header:x-total-count`; None if there is none."""
    name = path.removeprefix("header:")
    return follow(document, path) if name == path else headers.get(name.lower())


def total_at(document: Any, headers: Mapping[str, str], path: str) -> int | None:
    """The number of all records, also where it is a text; None where the store does not report it."""
    found = value_at(document, headers, path) if path else None
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 16:
        return int(found)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


@cache
def bundled_catalogue() -> Catalogue:
    """The documented and assumed operations, before any config."""
    text = (resources.files(__package__) / "catalogue.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    prefix, envelope, paging = data.pop("prefix"), Envelope(**data.pop("envelope")), Paging(**data.pop("paging"))
    operations, fields, types = {}, {}, {}
    for group, table in data.items():
        fields[group], types[group], record = table.pop("fields"), table.pop("types"), table.pop("record")
        for name, given in table.items():
            operation = {"record": record, **given, **_place(prefix, given["path"])}
            operations[f"{group}.{name}"] = _bundled_operation(group, name, operation, paging)
    return Catalogue(operations, fields, types, envelope, paging, prefix)


def _place(prefix: str, path: str) -> dict[str, str]:
    """A path that begins with a slash is whole; any other is below the prefix."""
    return {"path": path, "below_prefix": ""} if path[:1] == "/" else {"path": f"{prefix}/{path}", "below_prefix": path}


def _bundled_operation(group: str, name: str, given: dict[str, Any], paging: Paging) -> Operation:
    state: State = "documented" if given.pop("documented", False) else "assumed"
    for key in ("query", "required", "optional"):
        given[key] = tuple(given.get(key, ()))
    given.setdefault("retry_safe", given["method"] in _IDEMPOTENT_METHODS)
    given.setdefault("paging", paging.style)
    return Operation(group, name, state=state, **given)


def configured_catalogue(config: Config, store: str | None = None) -> Catalogue:
    """The catalogue with the corrections of config: those for all stores, then those of one store."""
    common = corrected(bundled_catalogue(), config.catalogue, config, ("catalogue",))
    if store is None:
        return common
    return corrected(common, config.stores[store].catalogue, config, ("stores", store, "catalogue"))


def corrected(base: Catalogue, given: CatalogueSettings, config: Config, key: tuple[str, ...]) -> Catalogue:
    """The catalogue with the corrections of one table, whose place in config `key` is."""
    envelope = replace(base.envelope, **given.envelope.model_dump(exclude_none=True))
    paging = replace(base.paging, **given.paging.model_dump(exclude_none=True))
    operations = dict(base.operations)
    if given.paging.style:
        paged = {name: one for name, one in operations.items() if one.paging != "none"}
        operations |= {name: replace(one, paging=given.paging.style) for name, one in paged.items()}
    prefix = base.prefix if given.prefix is None else _checked_prefix(given.prefix, key, config)
    operations = {name: _with_prefix(one, prefix) for name, one in operations.items()}
    fields, types = dict(base.fields), dict(base.types)
    groups: dict[str, GroupSettings] = given.__pydantic_extra__ or {}
    for group, table in groups.items():
        for part, names in {group: table.fields_, "line": table.line, "buyer": table.buyer}.items():
            fields[part] = {**fields.get(part, {}), **names}
        types[group] = {**types.get(group, {}), **table.types}
        changes: dict[str, OperationSettings] = table.__pydantic_extra__ or {}
        for name, change in changes.items():
            where = (*key, group, name)
            operations[f"{group}.{name}"] = _changed(operations, where, change, config, paging, prefix)
    headers, decimals = {**base.headers, **given.headers}, {**base.decimals, **given.decimals}
    return Catalogue(operations, fields, types, envelope, paging, prefix, headers, given.money or base.money, decimals)


def _with_prefix(operation: Operation, prefix: str) -> Operation:
    """An operation below another prefix is no longer the documented one."""
    if not operation.below_prefix or operation.path == f"{prefix}/{operation.below_prefix}":
        return operation
    state: State = "overridden" if operation.documented else operation.state
    return replace(operation, state=state, path=f"{prefix}/{operation.below_prefix}")


def _changed(
    operations: Mapping[str, Operation],
    key: tuple[str, ...],
    change: OperationSettings,
    config: Config,
    paging: Paging,
    prefix: str,
) -> Operation:
    group, name = key[-2:]
    given = change.model_dump(exclude_none=True)
    if "path" in given:
        given |= _place(prefix, _checked_path(given["path"], key, config))
    base = operations.get(f"{group}.{name}")
    if base is None:
        return _added(operations, key, given, config, paging)
    if "method" in given:
        given.setdefault("retry_safe", given["method"] in _IDEMPOTENT_METHODS)
    return replace(base, state="added" if base.state == "added" else "overridden", **given)


def _added(
    operations: Mapping[str, Operation], key: tuple[str, ...], given: dict[str, Any], config: Config, paging: Paging
) -> Operation:
    group, name = key[-2:]
    if "method" not in given or "path" not in given:
        raise ConfigError(
            f"{config.place(*key)}: {'.'.join(key)}: the catalogue has no operation {group}.{name}"
            f"{did_you_mean(f'{group}.{name}', operations, cutoff=0.5)}; to add an operation, set its method and path"
        )
    given.setdefault("retry_safe", given["method"] in _IDEMPOTENT_METHODS)
    given.setdefault("paging", paging.style)
    return Operation(group, name, state="added", **given)


def _checked_path(path: str, key: tuple[str, ...], config: Config) -> str:
    if not _PATH.fullmatch(path) or ".." in path:
        raise ConfigError(
            f"{config.place(*key, 'path')}: {'.'.join(key)}.path: write the path below the prefix, such as "
            '"orders/{id}/state", or with a slash first the whole path, such as "/api/v3/app/orders/{id}/state"'
        )
    return path


def _checked_prefix(prefix: str, key: tuple[str, ...], config: Config) -> str:
    if not _PREFIX.fullmatch(prefix) or ".." in prefix:
        raise ConfigError(
            f"{config.place(*key, 'prefix')}: {'.'.join(key)}.prefix: write the path before every operation, "
            'such as "/api/v2", or ""'
        )
    return prefix
