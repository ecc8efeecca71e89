"""`[catalogue]` as models: where the stores' APIs differ from the built-in catalogue."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from receiver.config.values import CLOSED, HeaderName, HeaderValue


class CatalogueTable(BaseModel):
    """A table below `[catalogue]`."""

    model_config = CLOSED


PagingStyle = Literal["page", "offset", "cursor", "link", "header", "none"]


class OperationSettings(CatalogueTable):
    """`[catalogue.GROUP.OPERATION]`: changes to one operation. A key left out keeps the catalogue's value."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] | None = None
    path: str | None = None
    query: tuple[str, ...] | None = None
    required: tuple[str, ...] | None = None
    optional: tuple[str, ...] | None = None
    params: dict[str, str] | None = None
    rows: str | None = None
    body: str | None = None
    returns: Literal["one", "many", "none"] | None = None
    record: str | None = None
    data: str | None = None
    item: str | None = None
    total: str | None = None
    paging: PagingStyle | None = None
    retry_safe: bool | None = None
    idempotency_key: bool | None = None


FieldType = Literal["text", "amount", "integer", "number", "flag", "object", "list"]


class GroupSettings(BaseModel):
    """`[catalogue.GROUP]`: the field names of a store, and a table for each operation changed or added."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)
    __pydantic_extra__: dict[str, OperationSettings]
    fields_: dict[str, str] = Field(default={}, alias="fields")
    line: dict[str, str] = {}
    buyer: dict[str, str] = {}
    types: dict[str, FieldType] = {}


class EnvelopeSettings(CatalogueTable):
    data: str | None = None
    item: str | None = None
    record: str | None = None
    total: str | None = None
    error: str | None = None


class PagingSettings(CatalogueTable):
    style: PagingStyle | None = None
    size: int | None = Field(default=None, ge=1, le=10_000)
    max_pages: int | None = Field(default=None, ge=1)
    size_param: str | None = None
    page_param: str | None = None
    first_page: Literal[0, 1] | None = None
    offset_param: str | None = None
    cursor_param: str | None = None
    next_cursor: str | None = None
    next_link: str | None = None


class CatalogueSettings(BaseModel):
    """`[catalogue]` and `[stores.NAME.catalogue]`: where a store's API differs from the catalogue."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)
    __pydantic_extra__: dict[str, GroupSettings]
    prefix: str | None = None
    headers: dict[HeaderName, HeaderValue] = {}
    money: Literal["major", "minor"] | None = None
    decimals: dict[str, int] = {}
    envelope: EnvelopeSettings = EnvelopeSettings()
    paging: PagingSettings = PagingSettings()
