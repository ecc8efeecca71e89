"""Groups: the operations of products, orders, customers and webhooks as methods, made from the catalogue.

Their types and docstrings are in groups.pyi, for editors and type checkers; `make reference` writes it from the
catalogue. Path parameters come first, in the order of the path. Other keywords are query parameters where the
catalogue says so, else fields of the body, by storehooks' names. `body=` is a complete body, `query=` adds query
parameters. Operations added in config are available too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from workers.storeapi.catalogue import Operation, bundled_catalogue

Id = int | str
Rows = Iterable[Mapping[str, Any]]


class OperationCaller(Protocol):
    """The part of the client that a group uses."""

    def call(self, group: str, name: str, /, *path: Id, **fields: Any) -> Any: ...

    def has_operation(self, group: str, name: str) -> bool: ...


class OperationGroup:
    """The operations of one kind of record: those of the catalogue, and those added in config."""

    name = ""

    def __init__(self, client: OperationCaller) -> None:
        self._client = client

    def __init_subclass__(cls) -> None:
        for operation in bundled_catalogue():
            if operation.group == cls.name:
                setattr(cls, operation.name, _method(operation))

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """Operations added in config."""
        if operation.startswith("_") or not self._client.has_operation(self.name, operation):
            raise AttributeError(f"{self.name} has no operation {operation}; `storehooks api --list` lists them")
        return lambda *path, **fields: self._client.call(self.name, operation, *path, **fields)


def _method(operation: Operation) -> Callable[..., Any]:
    def method(self: OperationGroup, *path: Id, **fields: Any) -> Any:
        return self._client.call(operation.group, operation.name, *path, **fields)

    method.__name__, method.__doc__ = operation.name, operation.description
    return method


class Products(OperationGroup):
    name = "products"


class Orders(OperationGroup):
    name = "orders"


class Customers(OperationGroup):
    name = "customers"


class Webhooks(OperationGroup):
    name = "webhooks"
