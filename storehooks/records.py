"""Records: what `event.record` and `ctx.api` return."""

import storehooks.own_packages  # noqa: F401  first
from receiver.contract.records import Customer, Order, OrderLine, Product, Record, RecordError, Subscription

__all__ = ["Customer", "Order", "OrderLine", "Product", "Record", "RecordError", "Subscription"]
