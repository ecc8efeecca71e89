"""Own packages: once this module is imported, `receiver` and `workers` are storehooks' packages in this process.

A folder with such a name is common in other projects, and Python would import that if it came first on its path: the
folder in which `python -m pytest` starts does. A project's own folder can then not be imported in this process, and
the ImportError says the fix. A process that does not import storehooks is not affected.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

PACKAGES = ("receiver", "workers")
HOME = Path(__file__).parent.parent
FIX = "rename it, or run its code in a process that does not import storehooks, such as a pytest run of its own"


class OwnPackages:
    """A finder of Python's import system, before all others."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, _: Any = None) -> ModuleSpec | None:
        package = name.partition(".")[0]
        if package not in PACKAGES:
            return None
        spec = PathFinder.find_spec(name, [str(HOME)] if path is None else path)
        if spec is None and (other := _other(package)):
            # Not a ModuleNotFoundError, which `from workers import jobs` would replace by its own message.
            raise ImportError(
                f"cannot import {name}: {package} is storehooks' own package in this process, not {other}; {FIX}",
                name=name,
            )
        return spec


def _other(package: str) -> Path | None:
    """A folder or file of the same name on Python's path."""
    places = (Path(entry or ".").absolute() / one for entry in sys.path for one in (package, f"{package}.py"))
    return next((place for place in places if place.exists() and place.parent != HOME), None)


def _install() -> None:
    for package in PACKAGES:
        loaded = sys.modules.get(package)
        places = [Path(one).parent for one in getattr(loaded, "__path__", ())]
        if loaded is not None and HOME not in places:
            other = getattr(loaded, "__file__", None) or next(iter(getattr(loaded, "__path__", ())), "?")
            raise ImportError(
                f"storehooks has a package of its own called {package}, and {other} was imported as {package} before; "
                f"{FIX}",
                name=package,
            )
    sys.meta_path.insert(0, OwnPackages)


_install()
