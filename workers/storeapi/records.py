"""Records, where users of the client look for them. They live in the contract, because events hold them too."""

from receiver.contract.records import Customer, Line, Order, Product, Record, RecordError, Subscription

__all__ = ["Customer", "Line", "Order", "Product", "Record", "RecordError", "Subscription"]
