"""The configuration: TOML files and the environment in, one checked `Config` out.

Law of this room: it imports `receiver.contract` only, and opens nothing but the files it is given. `settings` has the
models key by key, `loading` reads and checks them, `source_files` knows which line of which file a value comes from.
"""

from receiver.config.loading import EXAMPLE, SANDBOX_SECRET, Config, find, load, load_from_environment

__all__ = ["EXAMPLE", "SANDBOX_SECRET", "Config", "find", "load", "load_from_environment"]
