"""The code of plugins: what belongs to a plugin, and when it counts as changed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from receiver import config
from receiver.contract.errors import PluginError
from workers.plugins import discovery
from workers.plugins.plugin_code import ValidatedCode, digest_below
from workers.plugins.validation_process import ValidatedPlugins, ValidationProcess
from workers.processes import wait_for_exit

PLUGIN = """from workers import Router
router = Router("shop")
@router.on("order.created")
def one(event, ctx):
    raise RuntimeError(NAME)
"""


@pytest.fixture(autouse=True)
def own_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test imports here is forgotten after it."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules: dict[str, ModuleType] = dict(sys.modules)
    monkeypatch.setattr(sys, "modules", modules)


def validate(folder: Path, *plugins: str) -> ValidatedPlugins:
    (folder / "config.toml").write_text(f"[workers]\nplugins = {list(plugins)}\n")
    return ValidationProcess(config.load(folder / "config.toml", {})).result()


def test_the_digest_of_a_package_is_that_of_its_code_wherever_it_is(tmp_path: Path) -> None:
    package = tmp_path / "here/shop"
    (package / "parts").mkdir(parents=True)
    (package / "__init__.py").write_text("A = 1\n")
    (package / "parts/one.py").write_text("B = 1\n")
    digest = digest_below([str(package)])
    (package / "__pycache__").mkdir()
    (package / "__pycache__/one.cpython-311.pyc").write_text("compiled")
    (package / "notes.txt").write_text("not code")
    os.utime(package / "__init__.py", (1, 1))
    assert digest_below([str(shutil.copytree(package, tmp_path / "there"))]) == digest
    for change in (
        lambda: (package / "parts/one.py").write_text("B = 2\n"),
        (package / "parts/two.py").touch,
        lambda: (package / "parts/two.py").rename(package / "parts/three.py"),
        (package / "parts/three.py").unlink,
    ):
        change()
        assert digest_below([str(package)]) != digest
        digest = digest_below([str(package)])


def test_a_copy_has_the_bytes_of_the_file_in_any_encoding(tmp_path: Path) -> None:
    source = "# coding: latin-1\nNAME = 'café'\r\n" + PLUGIN
    (tmp_path / "shop.py").write_bytes(source.encode("latin-1"))
    code = ValidatedCode.from_json(validate(tmp_path, "shop.py").code.as_json())
    (tmp_path / "shop.py").write_text("broken(")
    ((plugin,), missing) = discovery.load_validated(config.load(tmp_path / "config.toml", {}), code)
    assert missing == {}
    with pytest.raises(RuntimeError, match="café"):
        plugin.handlers[0].function(None, None)  # type: ignore[arg-type]
    assert plugin.handlers[0].file == str(tmp_path / "shop.py")


def test_installed_packages_below_the_folder_of_a_file_are_not_copied(tmp_path: Path) -> None:
    site = tmp_path / "venv/lib/site-packages"
    site.mkdir(parents=True)
    (site / "installed_there.py").touch()
    (tmp_path / "lies_beside.py").touch()
    paths = f"import sys\nsys.path += [{str(site)!r}, {str(tmp_path)!r}]\nimport installed_there, lies_beside\n"
    (tmp_path / "shop.py").write_text(paths + PLUGIN)
    code = validate(tmp_path, "shop.py").code
    assert code.modules == {"lies_beside": str(tmp_path / "lies_beside.py")}
    assert set(code.copies) == {str(tmp_path / "shop.py"), str(tmp_path / "lies_beside.py")}


def test_a_copied_module_is_found_without_its_folder_which_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "parts/deep").mkdir(parents=True)
    (tmp_path / "parts/deep/names.py").write_text("NAME = 'copied'\n")
    (tmp_path / "shop.py").write_text(
        f"import sys\nsys.path.append({str(tmp_path)!r})\nfrom parts.deep.names import NAME\n" + PLUGIN
    )
    code = validate(tmp_path, "shop.py").code
    shutil.rmtree(tmp_path / "parts")
    ((plugin,), missing) = discovery.load_validated(config.load(tmp_path / "config.toml", {}), code)
    assert missing == {}
    with pytest.raises(RuntimeError, match="copied"):
        plugin.handlers[0].function(None, None)  # type: ignore[arg-type]


def test_a_file_imports_the_modules_beside_it_as_in_its_own_tests(tmp_path: Path) -> None:
    (tmp_path / "points").mkdir()
    (tmp_path / "points/crm.py").write_text("from crm_parts import NAME\n")
    (tmp_path / "points/crm_parts.py").write_text("NAME = 'beside'\n")
    (tmp_path / "points/points.py").write_text("from crm import NAME\n" + PLUGIN)
    code = validate(tmp_path, "points/points.py").code
    assert set(code.modules) == {"crm", "crm_parts"}
    shutil.rmtree(tmp_path / "points")
    ((plugin,), missing) = discovery.load_validated(config.load(tmp_path / "config.toml", {}), code)
    assert missing == {}
    with pytest.raises(RuntimeError, match="beside"):
        plugin.handlers[0].function(None, None)  # type: ignore[arg-type]
    assert str(tmp_path / "points") not in sys.path


@pytest.mark.parametrize("module", ["crm.py", "crm/__init__.py"])
@pytest.mark.parametrize("second", ["from crm import NAME\n", ""])
def test_two_plugins_never_get_each_others_modules(tmp_path: Path, module: str, second: str) -> None:
    for name, first in (("north", "from crm import NAME\n"), ("south", second)):
        (tmp_path / name / module).parent.mkdir(parents=True)
        (tmp_path / name / module).write_text(f"NAME = '{name}'\n")
        (tmp_path / name / f"{name}.py").write_text(first + PLUGIN.replace('"shop"', f'"{name}"'))
    for order in (("north", "south"), ("south", "north")):
        with pytest.raises(PluginError, match=r"another plugin has a module crm, too: .*; rename one"):
            validate(tmp_path, *(f"{name}/{name}.py" for name in order))


def test_two_files_of_one_name_are_two_plugins(tmp_path: Path) -> None:
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shop.py").write_text(f"NAME = '{name}'\n" + PLUGIN.replace('"shop"', f'"{name}"'))
    found = validate(tmp_path, "north/shop.py", "south/shop.py")
    plugins, _ = discovery.load_validated(config.load(tmp_path / "config.toml", {}), found.code)
    for name, plugin in zip(("north", "south"), plugins, strict=True):
        with pytest.raises(RuntimeError, match=name):
            plugin.handlers[0].function(None, None)  # type: ignore[arg-type]


def test_the_version_of_a_file_does_not_depend_on_the_plugin_beside_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PLUGIN)
    (tmp_path / "other.py").write_text(PLUGIN.replace('"shop"', '"other"'))
    before = [one.version for one in validate(tmp_path, "other.py", "shop.py").handlers]
    (tmp_path / "other.py").write_text(PLUGIN.replace('"shop"', '"other"') + "# changed\n")
    after = [one.version for one in validate(tmp_path, "other.py", "shop.py").handlers]
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_validation_ends_however_much_it_has_to_report(tmp_path: Path) -> None:
    """A worker reads the report when the process has ended. A pipe takes 64 KB, and the process waited for a reader."""
    handlers = (f"@router.on('order.created')\ndef handler_{n}(event, ctx):\n    pass\n" for n in range(500))
    (tmp_path / "shop.py").write_text("from workers import Router\nrouter = Router('shop')\n" + "".join(handlers))
    (tmp_path / "config.toml").write_text('[workers]\nplugins = ["shop.py"]\n')
    validation = ValidationProcess(config.load(tmp_path / "config.toml", {}))
    assert wait_for_exit(validation.fileno(), 20)
    assert len(validation.result().handlers) == 500
