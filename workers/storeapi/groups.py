"""Groups: the operations of products, orders, customers and webhooks as typed methods.

The catalogue defines what each one does (method, path, paging, retries); a test compares the names. Path parameters
come first, in the order of the path. Other keywords are query parameters where the catalogue says so, else fields of
the body, by storehooks' names. `body=` is a complete body, `query=` adds query parameters. Operations added in config
are available too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from receiver.contract.records import Customer, Order, Product, Record, Subscription
from workers.storeapi.pages import Pages

Id = int | str
R = TypeVar("R", bound=Record)
Rows = Iterable[Mapping[str, Any]]


class OperationCaller(Protocol):
    """The part of the client that a group uses."""

    def call(self, group: str, name: str, /, *path: Id, **fields: Any) -> Any: ...

    def has_operation(self, group: str, name: str) -> bool: ...


class OperationGroup(Generic[R]):
    """The operations of one kind of record, R: those that every group has, and those added in config."""

    name = ""

    def __init__(self, client: OperationCaller) -> None:
        self._client = client

    def list(self, **query: Any) -> Pages[R]:
        pages: Pages[R] = self._call("list", **query)
        return pages

    def get(self, record_id: Id, /) -> R:
        return self._own("get", record_id)

    def update(self, record_id: Id, /, **fields: Any) -> R:
        return self._own("update", record_id, **fields)

    def delete(self, record_id: Id, /) -> None:
        self._call("delete", record_id)

    def _call(self, operation: str, /, *path: Id, **fields: Any) -> Any:
        return self._client.call(self.name, operation, *path, **fields)

    def _own(self, operation: str, /, *path: Id, **fields: Any) -> R:
        record: R = self._call(operation, *path, **fields)
        return record

    def _one(self, operation: str, /, *path: Id, **fields: Any) -> Record:
        record: Record = self._call(operation, *path, **fields)
        return record

    def _many(self, operation: str, /, *path: Id, **fields: Any) -> Pages[Record]:
        pages: Pages[Record] = self._call(operation, *path, **fields)
        return pages

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """Operations added in config."""
        if operation.startswith("_") or not self._client.has_operation(self.name, operation):
            raise AttributeError(f"{self.name} has no operation {operation}; `storehooks api --list` lists them")
        return lambda *path, **fields: self._call(operation, *path, **fields)


class Products(OperationGroup[Product]):
    name = "products"

    def create(self, **fields: Any) -> Product:
        return self._own("create", **fields)

    def bulk_import(self, products: Rows, **options: Any) -> Record:
        return self._one("bulk_import", products=products, **options)

    def get_import(self, import_id: Id, /) -> Record:
        return self._one("get_import", import_id)

    def list_inventory(self, **query: Any) -> Pages[Record]:
        return self._many("list_inventory", **query)

    def get_inventory(self, product_id: Id, /) -> Record:
        return self._one("get_inventory", product_id)

    def set_inventory(self, product_id: Id, /, *, stock: int, **fields: Any) -> Record:
        return self._one("set_inventory", product_id, stock=stock, **fields)

    def adjust_inventory(self, product_id: Id, /, *, by: int, **fields: Any) -> Record:
        return self._one("adjust_inventory", product_id, by=by, **fields)

    def set_inventory_bulk(self, inventory: Rows) -> Pages[Record]:
        return self._many("set_inventory_bulk", inventory=inventory)

    def list_variants(self, product_id: Id, /, **query: Any) -> Pages[Record]:
        return self._many("list_variants", product_id, **query)

    def create_variant(self, product_id: Id, /, **fields: Any) -> Record:
        return self._one("create_variant", product_id, **fields)

    def get_variant(self, product_id: Id, variant_id: Id, /) -> Record:
        return self._one("get_variant", product_id, variant_id)

    def update_variant(self, product_id: Id, variant_id: Id, /, **fields: Any) -> Record:
        return self._one("update_variant", product_id, variant_id, **fields)

    def delete_variant(self, product_id: Id, variant_id: Id, /) -> None:
        self._call("delete_variant", product_id, variant_id)

    def set_variant_inventory(self, product_id: Id, variant_id: Id, /, *, stock: int) -> Record:
        return self._one("set_variant_inventory", product_id, variant_id, stock=stock)


class Orders(OperationGroup[Order]):
    name = "orders"

    def create(self, *, lines: Rows, **fields: Any) -> Order:
        return self._own("create", lines=lines, **fields)

    def update_status(self, order_id: Id, /, *, status: str, **fields: Any) -> Order:
        return self._own("update_status", order_id, status=status, **fields)

    def add_products(self, order_id: Id, /, *, lines: Rows) -> Order:
        return self._own("add_products", order_id, lines=lines)

    def remove_product(self, order_id: Id, product_id: Id, /) -> Order:
        return self._own("remove_product", order_id, product_id)

    def list_comments(self, order_id: Id, /, **query: Any) -> Pages[Record]:
        return self._many("list_comments", order_id, **query)

    def add_comment(self, order_id: Id, /, *, text: str, **fields: Any) -> Record:
        return self._one("add_comment", order_id, text=text, **fields)

    def duplicate(self, order_id: Id, /) -> Order:
        return self._own("duplicate", order_id)


class Customers(OperationGroup[Customer]):
    name = "customers"

    def create(self, **fields: Any) -> Customer:
        return self._own("create", **fields)

    def list_addresses(self, customer_id: Id, /, **query: Any) -> Pages[Record]:
        return self._many("list_addresses", customer_id, **query)

    def add_address(self, customer_id: Id, /, **fields: Any) -> Record:
        return self._one("add_address", customer_id, **fields)

    def update_address(self, customer_id: Id, address_id: Id, /, **fields: Any) -> Record:
        return self._one("update_address", customer_id, address_id, **fields)

    def delete_address(self, customer_id: Id, address_id: Id, /) -> None:
        self._call("delete_address", customer_id, address_id)

    def update_metadata(self, customer_id: Id, /, *, metadata: Mapping[str, Any]) -> Customer:
        return self._own("update_metadata", customer_id, metadata=metadata)

    def bulk_import(self, customers: Rows, **options: Any) -> Record:
        return self._one("bulk_import", customers=customers, **options)


class Webhooks(OperationGroup[Subscription]):
    name = "webhooks"

    def create(self, *, topic: str, url: str, **fields: Any) -> Subscription:
        return self._own("create", topic=topic, url=url, **fields)

    def list_topics(self) -> Pages[Record]:
        return self._many("list_topics")

    def send_test(self, webhook_id: Id, /) -> Record:
        return self._one("send_test", webhook_id)

    def rotate_secret(self, webhook_id: Id, /) -> Subscription:
        return self._own("rotate_secret", webhook_id)

    def list_deliveries(self, webhook_id: Id, /, **query: Any) -> Pages[Record]:
        return self._many("list_deliveries", webhook_id, **query)
