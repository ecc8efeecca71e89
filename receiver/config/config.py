"""Config: the validated settings of one load, with the stores and schemes built from them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr, ValidationError

from receiver.config.checks import check
from receiver.config.errors import explain
from receiver.config.settings import FileSettings
from receiver.config.source_files import KeyPath, Place, Places
from receiver.config.stores import build_schemes, build_stores
from receiver.contract.errors import ConfigError
from receiver.contract.record_map import RecordMap
from receiver.contract.signing.signatures import PRESETS, Scheme
from receiver.contract.stores import Store


class Config(FileSettings):
    """The whole config, validated. `load` returns it."""

    _path: Path | None = PrivateAttr(default=None)
    _places: Places = PrivateAttr(default_factory=Places)
    _earlier_data_dir: Path | None = PrivateAttr(default=None)
    _references: Set[KeyPath] = PrivateAttr(default=frozenset())
    _schemes: dict[str, Scheme] = PrivateAttr(default_factory=dict)
    _stores: dict[str, Store] = PrivateAttr(default_factory=dict)

    @classmethod
    def build(
        cls,
        values: Mapping[str, Any],
        *,
        path: Path | None,
        places: Places,
        references: Set[KeyPath],
        earlier_data_dir: Path | None = None,
    ) -> Config:
        """Validate the merged values, or raise ConfigError with one line for each problem."""
        try:
            config = cls(**values)
        except ValidationError as error:
            raise ConfigError("\n".join(explain(problem, places) for problem in error.errors())) from None
        config._path, config._places, config._references = path, places, references
        config._earlier_data_dir = earlier_data_dir
        config._schemes = build_schemes(config, places)
        config._stores = build_stores(config, places)
        check(config, places)
        return config

    @property
    def path(self) -> Path | None:
        """The file this was read from; None without a file."""
        return self._path

    @property
    def data_dir(self) -> Path:
        return Path(self.redis.data_dir).absolute()

    @property
    def data_dir_set_by(self) -> str:
        return str(self._places.get(("redis", "data_dir")) or "default")

    @property
    def earlier_data_dir(self) -> Path | None:
        """Where an earlier version had the same data_dir, in the working directory; None if that is no other place."""
        earlier = self._earlier_data_dir
        return None if earlier is None or earlier.resolve() == self.data_dir.resolve() else earlier.absolute()

    @property
    def known_stores(self) -> Mapping[str, Store]:
        """Every configured store, with its scheme and decoded secrets."""
        return self._stores

    @property
    def known_schemes(self) -> Mapping[str, Scheme]:
        """The presets and the schemes of this config. A configured scheme replaces a preset of the same name."""
        return {**PRESETS, **self._schemes}

    def record_map(self, store: str) -> RecordMap | None:
        """Where a store's data holds the fields of `event.record`; None for a store that is not configured."""
        known = self._stores.get(store)
        return known.scheme.record if known else None

    def place(self, *key: str | int) -> Place | None:
        """Return the file and line of the value at `key`, or of the nearest table above it."""
        return self._places.nearest(key)

    def place_of_value(self, *key: str | int) -> Place | None:
        """The same, of exactly this value; None where a table above it is set as a whole, or nothing."""
        return self._places.get(key)

    def scheme_table(self, store: str) -> str:
        """Where the keys of a store's scheme are set: its table, or for a preset a new one that extends it."""
        name = self.known_stores[store].scheme.name
        if name in self.schemes:
            return f"[schemes.{name}], {self.place('schemes', name)}"
        place = f"[stores.{store}], {self.place('stores', store)}"
        return f'[schemes.my-{name}] with extends = "{name}", and scheme = "my-{name}" in {place}'

    def is_reference(self, *key: str | int) -> bool:
        """Whether the value at `key` was written as "env:NAME" or "file:PATH"; such a value is likely a secret."""
        return key in self._references
