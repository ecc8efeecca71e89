"""One delivery: admit or refuse it, store it in the inbox or the spool, and build the answer.

Law of this room: it knows no socket and no web framework, so that the Flask app and the event loop decide alike. It
imports `receiver.contract`, `.config`, `.inbox` and `.spool`. Only the edge (`receiver.app`, `.server`) imports it.
"""
