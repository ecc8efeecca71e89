"""Loads the configuration: reads TOML files and the environment, validates them and returns one `Config`.

Law of this room: it imports `receiver.contract` only, opens only the files it is given, and connects to nothing.
`settings` has the models, key by key, and `values` their value types. `source_files` reads the files and records the
line of each value, `references` resolves "env:NAME" and "file:PATH", `environment` reads the variables, `loading`
merges all and finds the data directory. `stores` builds stores and schemes, `checks` validates keys that depend on each
other, and `errors` has the messages.
"""

from receiver.config.config import Config
from receiver.config.loading import EXAMPLE, data_dir_from_environment, load, load_from_environment
from receiver.config.values import SANDBOX_SECRET

__all__ = ["EXAMPLE", "SANDBOX_SECRET", "Config", "data_dir_from_environment", "load", "load_from_environment"]
