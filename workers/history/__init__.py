"""The history: settled events in a database, where they can be searched.

Law of this room: it knows databases, and of Redis only how a record looks. It reads and writes no key; moving events
between the two is the housekeeper's work. psycopg is imported only where `[history] url` is a PostgreSQL server.
"""
