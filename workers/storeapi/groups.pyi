"""The types of groups.py. Written by `make reference` from the catalogue; do not edit it."""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Protocol

from receiver.contract.records import Customer, Order, Product, Record, Subscription
from workers.storeapi.pages import Pages

Id = int | str
Rows = Iterable[Mapping[str, Any]]

class OperationCaller(Protocol):
    def call(self, group: str, name: str, /, *path: Id, **fields: Any) -> Any: ...
    def has_operation(self, group: str, name: str) -> bool: ...

class OperationGroup:
    name: str
    def __init__(self, client: OperationCaller) -> None: ...
    def __getattr__(self, operation: str) -> Callable[..., Any]: ...

class Products(OperationGroup):
    """The operations of products."""

    def list(self, *, status: str = ..., sort: str = ..., timeout: float | None = ..., **more: Any) -> Pages[Product]:
        """GET /api/v3/app/products (documented). Returns product records, by page.

        Query: status, sort.
        """
    def create(
        self,
        *,
        name: str,
        price: Decimal | str,
        sku: str = ...,
        stock: int = ...,
        description: str = ...,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Product:
        """POST /api/v3/app/products (assumed). Returns one product record.

        It is not sent again when its response is lost.
        """
    def get(self, id: Id, *, timeout: float | None = ..., **more: Any) -> Product:
        """GET /api/v3/app/products/{id} (assumed). Returns one product record."""
    def update(
        self,
        id: Id,
        *,
        name: str = ...,
        price: Decimal | str = ...,
        sku: str = ...,
        description: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Product:
        """PATCH /api/v3/app/products/{id} (assumed). Returns one product record."""
    def delete(self, id: Id, *, timeout: float | None = ..., **more: Any) -> None:
        """DELETE /api/v3/app/products/{id} (assumed). Returns nothing."""
    def bulk_import(
        self,
        *,
        products: Rows,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Record:
        """POST /api/v3/app/products/imports (assumed). Returns one import record."""
    def get_import(self, import_id: Id, *, timeout: float | None = ..., **more: Any) -> Record:
        """GET /api/v3/app/products/imports/{import_id} (assumed). Returns one import record."""
    def list_inventory(self, *, timeout: float | None = ..., **more: Any) -> Pages[Record]:
        """GET /api/v3/app/products/inventory (assumed). Returns inventory records, by page."""
    def get_inventory(self, id: Id, *, timeout: float | None = ..., **more: Any) -> Record:
        """GET /api/v3/app/products/{id}/inventory (assumed). Returns one inventory record."""
    def set_inventory(self, id: Id, *, stock: int, timeout: float | None = ..., **more: Any) -> Record:
        """PUT /api/v3/app/products/{id}/inventory (assumed). Returns one inventory record."""
    def adjust_inventory(
        self,
        id: Id,
        *,
        by: int,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Record:
        """POST /api/v3/app/products/{id}/inventory/adjust (assumed). Returns one inventory record.

        It is not sent again when its response is lost.
        """
    def set_inventory_bulk(self, *, inventory: Rows, timeout: float | None = ..., **more: Any) -> Pages[Record]:
        """PUT /api/v3/app/products/inventory (assumed). Returns inventory records, by page."""
    def list_variants(self, id: Id, *, timeout: float | None = ..., **more: Any) -> Pages[Record]:
        """GET /api/v3/app/products/{id}/variants (assumed). Returns variant records, by page."""
    def create_variant(
        self,
        id: Id,
        *,
        name: str,
        price: Decimal | str = ...,
        sku: str = ...,
        stock: int = ...,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Record:
        """POST /api/v3/app/products/{id}/variants (assumed). Returns one variant record.

        It is not sent again when its response is lost.
        """
    def get_variant(self, id: Id, variant_id: Id, *, timeout: float | None = ..., **more: Any) -> Record:
        """GET /api/v3/app/products/{id}/variants/{variant_id} (assumed). Returns one variant record."""
    def update_variant(
        self,
        id: Id,
        variant_id: Id,
        *,
        name: str = ...,
        price: Decimal | str = ...,
        sku: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Record:
        """PATCH /api/v3/app/products/{id}/variants/{variant_id} (assumed). Returns one variant record."""
    def delete_variant(self, id: Id, variant_id: Id, *, timeout: float | None = ..., **more: Any) -> None:
        """DELETE /api/v3/app/products/{id}/variants/{variant_id} (assumed). Returns nothing."""
    def set_variant_inventory(
        self,
        id: Id,
        variant_id: Id,
        *,
        stock: int,
        timeout: float | None = ...,
        **more: Any,
    ) -> Record:
        """PUT /api/v3/app/products/{id}/variants/{variant_id}/inventory (assumed). Returns one inventory record."""

class Orders(OperationGroup):
    """The operations of orders."""

    def list(self, *, status: str = ..., sort: str = ..., timeout: float | None = ..., **more: Any) -> Pages[Order]:
        """GET /api/v3/app/orders (assumed). Returns order records, by page.

        Query: status, sort.
        """
    def create(
        self,
        *,
        lines: Rows,
        customer_id: Id = ...,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Order:
        """POST /api/v3/app/orders (assumed). Returns one order record.

        It is not sent again when its response is lost.
        """
    def get(self, id: Id, *, timeout: float | None = ..., **more: Any) -> Order:
        """GET /api/v3/app/orders/{id} (assumed). Returns one order record."""
    def update(
        self,
        id: Id,
        *,
        customer_id: Id = ...,
        note: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Order:
        """PATCH /api/v3/app/orders/{id} (assumed). Returns one order record."""
    def delete(self, id: Id, *, timeout: float | None = ..., **more: Any) -> None:
        """DELETE /api/v3/app/orders/{id} (assumed). Returns nothing."""
    def update_status(
        self,
        id: Id,
        *,
        status: str,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Order:
        """POST /api/v3/app/orders/{id}/status (assumed). Returns one order record.

        It is not sent again when its response is lost.
        """
    def add_products(
        self,
        id: Id,
        *,
        lines: Rows,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Order:
        """POST /api/v3/app/orders/{id}/products (assumed). Returns one order record.

        It is not sent again when its response is lost.
        """
    def remove_product(self, id: Id, product_id: Id, *, timeout: float | None = ..., **more: Any) -> Order:
        """DELETE /api/v3/app/orders/{id}/products/{product_id} (assumed). Returns one order record."""
    def list_comments(self, id: Id, *, timeout: float | None = ..., **more: Any) -> Pages[Record]:
        """GET /api/v3/app/orders/{id}/comments (assumed). Returns comment records, by page."""
    def add_comment(
        self,
        id: Id,
        *,
        text: str,
        author: str = ...,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Record:
        """POST /api/v3/app/orders/{id}/comments (assumed). Returns one comment record.

        It is not sent again when its response is lost.
        """
    def duplicate(self, id: Id, *, idempotency_key: str = ..., timeout: float | None = ..., **more: Any) -> Order:
        """POST /api/v3/app/orders/{id}/duplicate (assumed). Returns one order record.

        It is not sent again when its response is lost.
        """

class Customers(OperationGroup):
    """The operations of customers."""

    def list(self, *, email: str = ..., sort: str = ..., timeout: float | None = ..., **more: Any) -> Pages[Customer]:
        """GET /api/v3/app/customers (assumed). Returns customer records, by page.

        Query: email, sort.
        """
    def create(
        self,
        *,
        name: str,
        email: str = ...,
        metadata: Mapping[str, Any] = ...,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Customer:
        """POST /api/v3/app/customers (assumed). Returns one customer record.

        It is not sent again when its response is lost.
        """
    def get(self, id: Id, *, timeout: float | None = ..., **more: Any) -> Customer:
        """GET /api/v3/app/customers/{id} (assumed). Returns one customer record."""
    def update(
        self,
        id: Id,
        *,
        name: str = ...,
        email: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Customer:
        """PATCH /api/v3/app/customers/{id} (assumed). Returns one customer record."""
    def delete(self, id: Id, *, timeout: float | None = ..., **more: Any) -> None:
        """DELETE /api/v3/app/customers/{id} (assumed). Returns nothing."""
    def list_addresses(self, id: Id, *, timeout: float | None = ..., **more: Any) -> Pages[Record]:
        """GET /api/v3/app/customers/{id}/addresses (assumed). Returns address records, by page."""
    def add_address(
        self,
        id: Id,
        *,
        city: str,
        street: str = ...,
        postcode: str = ...,
        country: str = ...,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Record:
        """POST /api/v3/app/customers/{id}/addresses (assumed). Returns one address record.

        It is not sent again when its response is lost.
        """
    def update_address(
        self,
        id: Id,
        address_id: Id,
        *,
        city: str = ...,
        street: str = ...,
        postcode: str = ...,
        country: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Record:
        """PATCH /api/v3/app/customers/{id}/addresses/{address_id} (assumed). Returns one address record."""
    def delete_address(self, id: Id, address_id: Id, *, timeout: float | None = ..., **more: Any) -> None:
        """DELETE /api/v3/app/customers/{id}/addresses/{address_id} (assumed). Returns nothing."""
    def update_metadata(
        self,
        id: Id,
        *,
        metadata: Mapping[str, Any],
        timeout: float | None = ...,
        **more: Any,
    ) -> Customer:
        """PATCH /api/v3/app/customers/{id}/metadata (assumed). Returns one customer record."""
    def bulk_import(
        self,
        *,
        customers: Rows,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Record:
        """POST /api/v3/app/customers/imports (assumed). Returns one import record."""

class Webhooks(OperationGroup):
    """The operations of webhooks."""

    def list(self, *, timeout: float | None = ..., **more: Any) -> Pages[Subscription]:
        """GET /api/v3/app/webhooks (assumed). Returns subscription records, by page."""
    def create(
        self,
        *,
        topic: str,
        url: str,
        enabled: bool = ...,
        secret: str = ...,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Subscription:
        """POST /api/v3/app/webhooks (assumed). Returns one subscription record.

        It is not sent again when its response is lost.
        """
    def get(self, id: Id, *, timeout: float | None = ..., **more: Any) -> Subscription:
        """GET /api/v3/app/webhooks/{id} (assumed). Returns one subscription record."""
    def update(
        self,
        id: Id,
        *,
        topic: str = ...,
        url: str = ...,
        enabled: bool = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Subscription:
        """PATCH /api/v3/app/webhooks/{id} (assumed). Returns one subscription record."""
    def delete(self, id: Id, *, timeout: float | None = ..., **more: Any) -> None:
        """DELETE /api/v3/app/webhooks/{id} (assumed). Returns nothing."""
    def list_topics(self, *, timeout: float | None = ..., **more: Any) -> Pages[Record]:
        """GET /api/v3/app/webhooks/topics (assumed). Returns topic records, by page."""
    def send_test(self, id: Id, *, timeout: float | None = ..., **more: Any) -> Record:
        """POST /api/v3/app/webhooks/{id}/test (assumed). Returns one delivery record.

        It is not sent again when its response is lost.
        """
    def rotate_secret(
        self,
        id: Id,
        *,
        idempotency_key: str = ...,
        timeout: float | None = ...,
        **more: Any,
    ) -> Subscription:
        """POST /api/v3/app/webhooks/{id}/rotate-secret (assumed). Returns one subscription record.

        It is not sent again when its response is lost.
        """
    def list_deliveries(self, id: Id, *, timeout: float | None = ..., **more: Any) -> Pages[Record]:
        """GET /api/v3/app/webhooks/{id}/deliveries (assumed). Returns delivery records, by page."""
