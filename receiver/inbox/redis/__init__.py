"""Talking to the Redis server: connections, our Lua scripts as a function library, the embedded server.

Law of this room: it knows how commands travel and nothing of events. It imports `receiver.contract`,
`receiver.config.settings` and `receiver.inbox.keys`.
"""
