"""One delivery: let it in or refuse it, store it, word the answer.

Law of this room: it knows no socket and no web framework, so that every way of serving decides alike. It imports
`receiver.contract`, `.config`, `.inbox` and `.spool`; only the edge (`receiver.app`, `receiver.server`) imports it.
"""
