"""Why a signature does not match, and which scheme or secret would match.

Law of this room: pure. It imports `receiver.contract` only, and no text it makes contains a secret.
"""
