"""Plugin code: where it is, copies of the plugins that are files, and digests of those that are packages.

A child process loads plugins as they were validated, whatever is on disk when it starts:

- A plugin named by its file runs from a copy, and so do the modules that it imported from its folder when it was
  validated. The copy runs under the path of the file: `__file__`, tracebacks and data files beside it stay as they are.
  A module that a handler imports only later is loaded from disk as it is then.
- A plugin named by its module or an entry point runs from where it is installed. It is loaded only if its files have
  the digest that they had when it was validated.
"""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, all_suffixes
from pathlib import Path
from types import ModuleType
from typing import Any

INSTALLED = {"site-packages", "dist-packages"}
OUR_PACKAGES = {"workers", "receiver", "storehooks"}
PLUGIN_FILE = "storehooks_plugin_"
"""How the names of modules begin that are plugins named by file."""
CODE = tuple(all_suffixes())
CHANGED = "its files have changed since it was validated"


@dataclass(frozen=True)
class PluginSource:
    """Where a plugin is found: in a file, or in a module. An entry point names a module, or "module:router".

    Without either it is in the config: `[forward.NAME]`.
    """

    origin: str
    """How messages call it."""
    file: str = ""
    module: str = ""
    version: str = ""
    """The version of its distribution, for an entry point."""

    @property
    def top_level(self) -> str:
        """The module or package that Python's path has; empty for a file."""
        return self.module.partition(":")[0].partition(".")[0]


@dataclass(frozen=True)
class PluginCode:
    """The code of one plugin as it was validated."""

    name: str
    version: str
    source: PluginSource
    digest: str
    roots: tuple[str, ...] = ()
    """The folders of its package, or its only file; empty if it was copied."""

    @property
    def is_unchanged(self) -> bool:
        """Whether a child process would load it as it was validated."""
        return not self.roots or digest_below(self.roots) == self.digest


@dataclass(frozen=True)
class ValidatedCode:
    """The code of all plugins of a config, as it was validated."""

    plugins: tuple[PluginCode, ...] = ()
    copies: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> source, of the plugins that are files and of the modules beside them."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """The modules beside them: name -> path."""

    def as_json(self) -> dict[str, Any]:
        plugins = [{**vars(one), "source": vars(one.source)} for one in self.plugins]
        copies = {path: source.decode("latin-1") for path, source in self.copies.items()}  # any bytes, unchanged
        return {"plugins": plugins, "copies": copies, "modules": self.modules}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> ValidatedCode:
        plugins = (
            PluginCode(**{**one, "source": PluginSource(**one["source"]), "roots": tuple(one["roots"])})
            for one in found["plugins"]
        )
        copies = {path: text.encode("latin-1") for path, text in found["copies"].items()}
        return cls(tuple(plugins), copies, found["modules"])


# Files


class CopiedSource(SourceFileLoader):
    """Loads a module from a copy of its source, under the path of the original and without a bytecode cache."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        return self._source if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002  as Python's import system calls it
        return self.source_to_code(self._source, self.path)

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        lines = (self.get_source(module.__name__) or "").splitlines(keepends=True)
        # Tracebacks show these lines. Without a time of change, they are never compared with the file.
        linecache.cache[self.path] = (len(self._source), None, lines, self.path)


class SourceCopies:
    """The copies that plugins are loaded from. A file that is not copied yet is read and copied."""

    def __init__(self, validated: ValidatedCode | None = None) -> None:
        self.copies = dict(validated.copies) if validated else {}
        self.modules = dict(validated.modules) if validated else {}
        self._inherited = frozenset(sys.modules)
        if self.modules:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, _: Any = None) -> ModuleSpec | None:
        """As a finder of Python's import system: the modules that were copied, and the folders that they are in."""
        if name in self.modules:
            return self.spec_of(name, self.modules[name])
        if not any(copied.startswith(f"{name}.") for copied in self.modules):
            return None
        return PathFinder.find_spec(name, path) or ModuleSpec(name, None, is_package=True)  # the folder may be gone

    def spec_of(self, name: str, path: str) -> ModuleSpec:
        if path not in self.copies:
            self.copies[path] = Path(path).read_bytes()
        spec = importlib.util.spec_from_file_location(name, path, loader=CopiedSource(name, path, self.copies[path]))
        assert spec is not None
        return spec

    def copy_modules_beside(self, path: str, *, other_plugins: Iterable[str]) -> set[str]:
        """Copy the modules in the folder of a file that were imported with it; returns the paths of all of its code."""
        apart = {*OUR_PACKAGES, *other_plugins, *sys.stdlib_module_names}
        used = {path}
        for name, module in list(sys.modules.items()):
            file = getattr(getattr(module, "__spec__", None), "origin", None) or ""
            if name in self._inherited or name.startswith(PLUGIN_FILE) or name.partition(".")[0] in apart:
                continue
            if not _is_beside(file, path):
                continue
            if file not in self.copies and not os.path.isfile(file):
                continue  # it is in an archive
            self.modules[name] = file
            self.spec_of(name, file)
            used.add(file)
        return used

    def digest(self, paths: Iterable[str]) -> str:
        return _digest((os.path.basename(path), self.copies[path]) for path in sorted(paths))


def _is_beside(file: str, path: str) -> bool:
    """Whether a module's file is in the folder of a plugin's file or below it, and not an installed package there."""
    if not file.endswith(".py"):
        return False
    below = os.path.relpath(os.path.realpath(file), os.path.dirname(os.path.realpath(path)))
    return not {os.pardir, *INSTALLED} & set(Path(below).parts)


# Packages


def code_roots(module: str) -> tuple[str, ...]:
    """The folders of a module's package, or its own file if it is in none. Runs no code of the plugin."""
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = importlib.util.find_spec(name)
        if spec is None:
            return ()
        if spec.origin is not None:  # else it is a namespace, which has no code: the plugin's package is below it
            return tuple(spec.submodule_search_locations or (spec.origin,))
    return ()


def digest_below(roots: Iterable[str]) -> str:
    """A digest of all code in these folders and files. It does not depend on where they are."""
    try:
        return _digest((name, path.read_bytes()) for root in roots for name, path in _code_below(root))
    except OSError:  # a file was removed meanwhile, or cannot be read: not what was validated
        return ""


def _code_below(root: str) -> Iterator[tuple[str, Path]]:
    if not os.path.isdir(root):
        yield os.path.basename(root), Path(root)
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(one for one in folders if one != "__pycache__")
        for name in sorted(names):
            if name.endswith(CODE):
                path = Path(folder, name)
                yield str(path.relative_to(root)), path


def _digest(named: Iterable[tuple[str, bytes]]) -> str:
    whole = hashlib.sha256()
    for name, content in named:
        whole.update(f"{name}\n{len(content)}\n".encode("utf-8", "surrogateescape"))
        whole.update(content)
    return whole.hexdigest()
