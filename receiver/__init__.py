"""In front of the queue: verify a delivery, store it, answer.

Law of this package: it never imports `workers`, and the public web process never loads plugin code.
"""

__version__ = "0.2.0"
