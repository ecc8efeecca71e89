"""How stores sign: the scheme grammar, signing and verifying, and the presets of known stores.

Law of this room: pure. It imports `receiver.contract` and the standard library only.
"""
