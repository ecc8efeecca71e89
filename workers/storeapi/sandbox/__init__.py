"""The sandbox: a sandbox store. A real HTTP server that serves the catalogue, sends signed webhooks, and misbehaves
on request.

Law of this room: it imports `receiver.contract` and the catalogue, never the client of the store's API: what both
believe of the API they take from the catalogue, and nothing else.
"""
