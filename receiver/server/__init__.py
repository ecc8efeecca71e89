"""The web server: gunicorn's settings and worker classes, sockets, HTTP, groups of deliveries handed to Redis.

Law of this room: the edge. Nothing imports it; `python -m receiver.server.web` runs it. It never loads plugin code.
"""
