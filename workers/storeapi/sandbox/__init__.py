"""The sandbox: a pretend store. Today a shopper that sends signed events.

Law of this room: it imports `receiver.contract` and its own neighbours, never the client of the store's API.
"""
