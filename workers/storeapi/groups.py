"""Groups: the operations of products, orders, customers and webhooks as typed methods.

The catalogue defines what each one does (method, path, paging, retries); a test compares the names. Path parameters
come first, in the order of the path. Other keywords are query parameters where the catalogue says so, else fields of
the body, by storehooks' names. `body=` is a complete body, `query=` adds query parameters. Operations added in config
are available too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from receiver.contract.records import Customer, Order, Product, Record, Subscription
from workers.storeapi.pages import Pages

Id = int | str
R = TypeVar("R", bound=Record)
Rows = Iterable[Mapping[str, Any]]


class OperationCaller(Protocol):
    """The part of the client that a group uses."""

    def call(self, group: str, name: str, /, *path: Id, **fields: Any) -> Any: ...

    def has_operation(self, group: str, name: str) -> bool: ...


class OperationGroup:
    name = ""

    def __init__(self, client: OperationCaller, name: str = "") -> None:
        self._client = client
        self._name = name or self.name

    def _call(self, operation: str, /, *path: Id, **fields: Any) -> Any:
        return self._client.call(self._name, operation, *path, **fields)

    def _one(self, kind: type[R], operation: str, /, *path: Id, **fields: Any) -> R:  # noqa: ARG002  for the type checker
        record: R = self._call(operation, *path, **fields)
        return record

    def _many(self, kind: type[R], operation: str, /, *path: Id, **fields: Any) -> Pages[R]:  # noqa: ARG002
        pages: Pages[R] = self._call(operation, *path, **fields)
        return pages

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """Operations added in config."""
        if operation.startswith("_") or not self._client.has_operation(self._name, operation):
            raise AttributeError(f"{self._name} has no operation {operation}; `storehooks api --list` lists them")
        return lambda *path, **fields: self._call(operation, *path, **fields)


class Products(OperationGroup):
    name = "products"

    def list(self, **query: Any) -> Pages[Product]:
        return self._many(Product, "list", **query)

    def create(self, **fields: Any) -> Product:
        return self._one(Product, "create", **fields)

    def get(self, product_id: Id, /) -> Product:
        return self._one(Product, "get", product_id)

    def update(self, product_id: Id, /, **fields: Any) -> Product:
        return self._one(Product, "update", product_id, **fields)

    def delete(self, product_id: Id, /) -> None:
        self._call("delete", product_id)

    def bulk_import(self, products: Rows, **options: Any) -> Record:
        return self._one(Record, "bulk_import", products=products, **options)

    def get_import(self, import_id: Id, /) -> Record:
        return self._one(Record, "get_import", import_id)

    def list_inventory(self, **query: Any) -> Pages[Record]:
        return self._many(Record, "list_inventory", **query)

    def get_inventory(self, product_id: Id, /) -> Record:
        return self._one(Record, "get_inventory", product_id)

    def set_inventory(self, product_id: Id, /, *, stock: int, **fields: Any) -> Record:
        return self._one(Record, "set_inventory", product_id, stock=stock, **fields)

    def adjust_inventory(self, product_id: Id, /, *, by: int, **fields: Any) -> Record:
        return self._one(Record, "adjust_inventory", product_id, by=by, **fields)

    def set_inventory_bulk(self, inventory: Rows) -> Pages[Record]:
        return self._many(Record, "set_inventory_bulk", inventory=inventory)

    def list_variants(self, product_id: Id, /, **query: Any) -> Pages[Record]:
        return self._many(Record, "list_variants", product_id, **query)

    def create_variant(self, product_id: Id, /, **fields: Any) -> Record:
        return self._one(Record, "create_variant", product_id, **fields)

    def get_variant(self, product_id: Id, variant_id: Id, /) -> Record:
        return self._one(Record, "get_variant", product_id, variant_id)

    def update_variant(self, product_id: Id, variant_id: Id, /, **fields: Any) -> Record:
        return self._one(Record, "update_variant", product_id, variant_id, **fields)

    def delete_variant(self, product_id: Id, variant_id: Id, /) -> None:
        self._call("delete_variant", product_id, variant_id)

    def set_variant_inventory(self, product_id: Id, variant_id: Id, /, *, stock: int) -> Record:
        return self._one(Record, "set_variant_inventory", product_id, variant_id, stock=stock)


class Orders(OperationGroup):
    name = "orders"

    def list(self, **query: Any) -> Pages[Order]:
        return self._many(Order, "list", **query)

    def create(self, *, lines: Rows, **fields: Any) -> Order:
        return self._one(Order, "create", lines=lines, **fields)

    def get(self, order_id: Id, /) -> Order:
        return self._one(Order, "get", order_id)

    def update(self, order_id: Id, /, **fields: Any) -> Order:
        return self._one(Order, "update", order_id, **fields)

    def delete(self, order_id: Id, /) -> None:
        self._call("delete", order_id)

    def update_status(self, order_id: Id, /, *, status: str, **fields: Any) -> Order:
        return self._one(Order, "update_status", order_id, status=status, **fields)

    def add_products(self, order_id: Id, /, *, lines: Rows) -> Order:
        return self._one(Order, "add_products", order_id, lines=lines)

    def remove_product(self, order_id: Id, product_id: Id, /) -> Order:
        return self._one(Order, "remove_product", order_id, product_id)

    def list_comments(self, order_id: Id, /, **query: Any) -> Pages[Record]:
        return self._many(Record, "list_comments", order_id, **query)

    def add_comment(self, order_id: Id, /, *, text: str, **fields: Any) -> Record:
        return self._one(Record, "add_comment", order_id, text=text, **fields)

    def duplicate(self, order_id: Id, /) -> Order:
        return self._one(Order, "duplicate", order_id)


class Customers(OperationGroup):
    name = "customers"

    def list(self, **query: Any) -> Pages[Customer]:
        return self._many(Customer, "list", **query)

    def create(self, **fields: Any) -> Customer:
        return self._one(Customer, "create", **fields)

    def get(self, customer_id: Id, /) -> Customer:
        return self._one(Customer, "get", customer_id)

    def update(self, customer_id: Id, /, **fields: Any) -> Customer:
        return self._one(Customer, "update", customer_id, **fields)

    def delete(self, customer_id: Id, /) -> None:
        self._call("delete", customer_id)

    def list_addresses(self, customer_id: Id, /, **query: Any) -> Pages[Record]:
        return self._many(Record, "list_addresses", customer_id, **query)

    def add_address(self, customer_id: Id, /, **fields: Any) -> Record:
        return self._one(Record, "add_address", customer_id, **fields)

    def update_address(self, customer_id: Id, address_id: Id, /, **fields: Any) -> Record:
        return self._one(Record, "update_address", customer_id, address_id, **fields)

    def delete_address(self, customer_id: Id, address_id: Id, /) -> None:
        self._call("delete_address", customer_id, address_id)

    def update_metadata(self, customer_id: Id, /, *, metadata: Mapping[str, Any]) -> Customer:
        return self._one(Customer, "update_metadata", customer_id, metadata=metadata)

    def bulk_import(self, customers: Rows, **options: Any) -> Record:
        return self._one(Record, "bulk_import", customers=customers, **options)


class Webhooks(OperationGroup):
    name = "webhooks"

    def list(self, **query: Any) -> Pages[Subscription]:
        return self._many(Subscription, "list", **query)

    def create(self, *, topic: str, url: str, **fields: Any) -> Subscription:
        return self._one(Subscription, "create", topic=topic, url=url, **fields)

    def get(self, webhook_id: Id, /) -> Subscription:
        return self._one(Subscription, "get", webhook_id)

    def update(self, webhook_id: Id, /, **fields: Any) -> Subscription:
        return self._one(Subscription, "update", webhook_id, **fields)

    def delete(self, webhook_id: Id, /) -> None:
        self._call("delete", webhook_id)

    def list_topics(self) -> Pages[Record]:
        return self._many(Record, "list_topics")

    def send_test(self, webhook_id: Id, /) -> Record:
        return self._one(Record, "send_test", webhook_id)

    def rotate_secret(self, webhook_id: Id, /) -> Subscription:
        return self._one(Subscription, "rotate_secret", webhook_id)

    def list_deliveries(self, webhook_id: Id, /, **query: Any) -> Pages[Record]:
        return self._many(Record, "list_deliveries", webhook_id, **query)
