"""Catalogue: the operations of the store's API, read from catalogue.toml and corrected by config.

Pure, except that it reads that file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any, Literal

from receiver.config import Config
from receiver.config.errors import did_you_mean
from receiver.config.settings import CatalogueSettings, GroupSettings, OperationSettings
from receiver.contract.errors import ConfigError

State = Literal["documented", "assumed", "overridden", "added"]
PagingStyle = Literal["page", "cursor", "link", "none"]

_PARAMETER = re.compile(r"\{([a-z_]+)\}")
_PATH = re.compile(r"(/([A-Za-z0-9_.~-]+|\{[a-z_]+\}))+")
_IDEMPOTENT_METHODS = frozenset({"GET", "PUT", "DELETE"})


@dataclass(frozen=True)
class Operation:
    """One call of the store's API."""

    group: str
    name: str
    method: str
    path: str
    state: State = "assumed"
    query: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    rows: str = ""
    returns: Literal["one", "many", "none"] = "one"
    record: str = ""
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
    def body_fields(self) -> tuple[str, ...]:
        return (self.rows,) if self.rows else (*self.required, *self.optional)


@dataclass(frozen=True)
class Envelope:
    """Where a response holds its data, total and error: paths like `meta.total`. The empty path is all of it."""

    data: str
    total: str
    error: str


@dataclass(frozen=True)
class Paging:
    style: PagingStyle
    size: int
    size_param: str
    page_param: str
    cursor_param: str
    next_cursor: str
    next_link: str


@dataclass(frozen=True)
class Catalogue:
    """The operations of one store."""

    operations: Mapping[str, Operation]
    fields: Mapping[str, Mapping[str, str]]
    envelope: Envelope
    paging: Paging

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


@cache
def bundled_catalogue() -> Catalogue:
    """The documented and assumed operations, before any config."""
    text = (resources.files(__package__) / "catalogue.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    prefix, envelope, paging = data.pop("prefix"), Envelope(**data.pop("envelope")), Paging(**data.pop("paging"))
    operations, fields = {}, {}
    for group, table in data.items():
        fields[group], record = table.pop("fields"), table.pop("record")
        for name, given in table.items():
            given["path"] = prefix + given["path"]
            operations[f"{group}.{name}"] = _bundled_operation(group, name, {"record": record, **given}, paging)
    return Catalogue(operations, fields, envelope, paging)


def _bundled_operation(group: str, name: str, given: dict[str, Any], paging: Paging) -> Operation:
    state: State = "documented" if given.pop("documented", False) else "assumed"
    for key in ("query", "required", "optional"):
        given[key] = tuple(given.get(key, ()))
    given.setdefault("retry_safe", given["method"] in _IDEMPOTENT_METHODS)
    given.setdefault("paging", paging.style)
    return Operation(group, name, state=state, **given)


def configured_catalogue(config: Config, store: str | None = None) -> Catalogue:
    """The catalogue with the corrections of config: those for all stores, then those of one store."""
    common = _corrected(bundled_catalogue(), config.catalogue, config, ("catalogue",))
    if store is None:
        return common
    return _corrected(common, config.stores[store].catalogue, config, ("stores", store, "catalogue"))


def _corrected(base: Catalogue, given: CatalogueSettings, config: Config, key: tuple[str, ...]) -> Catalogue:
    envelope = replace(base.envelope, **given.envelope.model_dump(exclude_none=True))
    paging = replace(base.paging, **given.paging.model_dump(exclude_none=True))
    operations = dict(base.operations)
    if given.paging.style:
        operations = {name: _with_paging(one, given.paging.style) for name, one in operations.items()}
    fields = dict(base.fields)
    groups: dict[str, GroupSettings] = given.__pydantic_extra__ or {}
    for group, table in groups.items():
        fields[group] = {**fields.get(group, {}), **table.fields_}
        changes: dict[str, OperationSettings] = table.__pydantic_extra__ or {}
        for name, change in changes.items():
            where = (*key, group, name)
            operations[f"{group}.{name}"] = _changed(operations, where, change, config, paging)
    return Catalogue(operations, fields, envelope, paging)


def _with_paging(operation: Operation, style: PagingStyle) -> Operation:
    return operation if operation.paging == "none" else replace(operation, paging=style)


def _changed(
    operations: Mapping[str, Operation], key: tuple[str, ...], change: OperationSettings, config: Config, paging: Paging
) -> Operation:
    group, name = key[-2:]
    given = change.model_dump(exclude_none=True)
    _check_path(given.get("path"), key, config)
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


def _check_path(path: str | None, key: tuple[str, ...], config: Config) -> None:
    if path is not None and (not _PATH.fullmatch(path) or ".." in path):
        raise ConfigError(
            f"{config.place(*key, 'path')}: {'.'.join(key)}.path: write the whole path, "
            'such as "/api/v3/app/orders/{id}/state"'
        )
