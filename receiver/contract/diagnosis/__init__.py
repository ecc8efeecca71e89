"""Explains why a signature does not match, and finds the scheme or secret that would match.

Law of this room: pure. It imports `receiver.contract` only, and no text that it returns contains a secret.
"""
