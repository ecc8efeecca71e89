"""Signs and verifies deliveries: the grammar of schemes, the algorithms, and the presets of known stores.

Law of this room: pure. It imports `receiver.contract` and the standard library only.
"""
