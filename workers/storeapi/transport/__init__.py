"""Calls over HTTP: authentication, the rate limit, retries, and where a client may connect to.

Law of this room: it knows one request and one answer, and nothing of the catalogue.
"""
