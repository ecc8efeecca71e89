"""The sandbox store: a real HTTP server that serves the catalogue, sends signed webhooks, and misbehaves on request.

Law of this room: it imports `receiver.contract`, the config and the catalogue, never the client. The catalogue is all
that the sandbox and the client share.
"""
