"""Which files `dev` watches."""

from __future__ import annotations

from pathlib import Path

from receiver.config import load
from workers.cli.file_watch import config_files


def test_included_files_are_watched_also_by_an_absolute_pattern(tmp_path: Path) -> None:
    config, here, elsewhere = tmp_path / "config.toml", tmp_path / "stores.d", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
        (folder / "one.toml").write_text("")
    config.write_text(f'include = ["stores.d/*.toml", "{elsewhere}/*.toml"]\n')
    assert config_files(load(config, {})) == [config, here / "one.toml", elsewhere / "one.toml"]
