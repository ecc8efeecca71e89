"""Records, where users of the client look for them. They live in the contract, because events hold them too."""

from receiver.contract.records import Customer, Order, OrderLine, Product, Record, RecordError, Subscription

__all__ = ["Customer", "Order", "OrderLine", "Product", "Record", "RecordError", "Subscription"]
