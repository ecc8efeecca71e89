"""Generates the list of all files in docs/architecture.md: the first sentence of each docstring, and what is defined.

`make reference` writes it; a test checks that it is current.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/architecture.md"
BEGIN = "<!-- files: written by `make reference` -->"
END = "<!-- end of the files -->"
ENDINGS = ("py", "lua", "toml")
MOST_NAMES = 14


def page(text: str) -> str:
    """The page with the current list between its marks."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{file_list()}\n{END}{rest.partition(END)[2]}"


def file_list() -> str:
    folders = sorted({path.parent for package in ("receiver", "storehooks", "workers") for path in files_of(package)})
    return "\n".join(f"**`{folder}/`**\n\n{_table(folder)}" for folder in folders)


def files_of(package: str) -> list[Path]:
    found = [path.relative_to(ROOT) for ending in ENDINGS for path in (ROOT / package).rglob(f"*.{ending}")]
    return sorted(path for path in found if path.name != "__init__.py" or path.parts[-2] == "cli")


def _table(folder: Path) -> str:
    paths = [path for path in files_of(folder.parts[0]) if path.parent == folder]
    rows = [f"| `{path.name}` | {_purpose(path)} | {', '.join(_names(path))} |" for path in paths]
    return "| File | Purpose | Defines |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _names(path: Path) -> list[str]:
    """The public names of a module: classes, functions and constants, in order."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix != ".py":
        return re.findall(r"^local ([A-Z_]+) =", text, flags=re.MULTILINE)
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [one for target in targets for one in getattr(target, "elts", [target])]
            found += [name.id for name in names if isinstance(name, ast.Name)]
    public = [name for name in found if not name.startswith("_") and name != "log"]
    return public if len(public) <= MOST_NAMES else [*public[:MOST_NAMES], "…"]


def _purpose(path: Path) -> str:
    """The first sentence of a module's docstring, or of the comment that begins a script."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.search(r"(?:^(?:--|#(?!!)).*\n)+", text, flags=re.MULTILINE)
        said = re.sub(r"^(?:--|#) ?", "", comment[0], flags=re.MULTILINE) if comment else ""
    sentence = re.split(r"(?<=[.:?])\s", said.split("\n\n")[0].replace("\n", " ") + " ")[0]
    whole = said.split("\n\n")[0].replace("\n", " ")
    first = sentence if not sentence.endswith(":") else re.split(r"(?<=[.?])\s", whole + " ")[0]
    return first.replace("|", "\\|").strip()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
