"""Webhook subscriptions at the stores: plan, apply, rotate secrets, check and repair.

Law of this room: `plan` is pure; what changes a store goes through `apply` and the client in `workers.storeapi`.
"""
