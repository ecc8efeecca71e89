"""Webhook subscriptions at the stores: plan, apply, rotate secrets, check and repair.

Law of this room: `plan` is pure; only `apply` and `secret_changes` change a store, by the client of `workers.storeapi`.
"""
