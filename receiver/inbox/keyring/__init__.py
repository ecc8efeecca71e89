"""Signing secrets that were learned from stores: sealed, in Redis and in a file on each host.

Law of this room: no secret leaves it unsealed except to verify or sign. It imports `receiver.contract`,
`receiver.config.values` and the inbox's keys and scripts.
"""
