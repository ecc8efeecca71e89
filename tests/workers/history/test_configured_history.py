"""The database that a config names is opened, and a missing extra is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from receiver.config import load
from receiver.contract.errors import ConfigError
from tests.support.programs import ROOT
from workers.history.configured_history import open_history
from workers.history.postgres_history import PostgresHistory
from workers.history.sqlite_history import SqliteHistory


def config_file(folder: Path, url: str) -> Path:
    path = folder / "config.toml"
    path.write_text(f'[redis]\ndata_dir = "{folder}/data"\n[history]\nurl = "{url}"\n')
    return path


def test_the_history_of_the_config_is_opened(tmp_path: Path) -> None:
    sqlite = open_history(load(config_file(tmp_path, ""), {}))
    assert isinstance(sqlite, SqliteHistory)
    assert sqlite.directory == tmp_path / "data" / "history"
    assert isinstance(open_history(load(config_file(tmp_path, "postgresql://h/d"), {})), PostgresHistory)
    assert open_history(load(config_file(tmp_path, "off"), {})) is None


def test_psycopg_is_loaded_only_for_postgresql(tmp_path: Path) -> None:
    code = "import sys; from receiver.config import load; from workers.history.configured_history import open_history; "
    code += f"open_history(load(__import__('pathlib').Path({str(config_file(tmp_path, 'sqlite'))!r}), {{}})); "
    code += "sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_missing_psycopg_is_an_error_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "workers.history.postgres_history", raising=False)
    monkeypatch.delitem(sys.modules, "workers.history.postgres_schema", raising=False)
    with pytest.raises(ConfigError, match=r"config.toml:4: .*pip install 'storehooks\[postgres\]'"):
        open_history(load(config_file(tmp_path, "postgresql://h/d"), {}))
