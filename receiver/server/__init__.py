"""The web server: gunicorn's settings and worker class, connections, HTTP, groups of deliveries sent to Redis.

Law of this room: the edge. No room imports it; `python -m receiver.server.web` runs it. It never loads plugin code.
"""
