"""HTTP calls to a store: authentication, the rate limit, retries, and which addresses a client may connect to.

Law of this room: it knows one request and one response, and never the catalogue.
"""
