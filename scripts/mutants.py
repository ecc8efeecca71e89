"""Mutants: how many small changes of the code that verifies and reads deliveries are noticed by its own tests.

A mutant is one change: a comparison, a condition, a constant, an operator or a statement. It is caught if a test of
tests/receiver/contract fails. Each process changes a copy of the repository, never the repository itself.

    make mutants ARGS="--number 100 --seed 1"
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SIGNING = "receiver/contract/signing"
MUTATED = [
    "receiver/contract/intake.py",
    *(f"{SIGNING}/{name}.py" for name in ("decoding", "grammar", "mac", "scheme_checks", "scheme_data", "signatures")),
    f"{SIGNING}/sources.py",
]
"""Not the presets: they are data, and each is tested with captured deliveries."""
TESTS = "tests/receiver/contract"
FIRST = ("test_signatures.py", "test_intake.py", "test_grammar.py", "test_batches.py", "test_provider_forms.py")
LAST = ("test_properties.py", "test_judging.py", "test_random_schemes.py")
"""In three turns, the slow ones last, so that most mutants are caught in a few seconds."""
SECONDS = 300.0
REQUIRED = 0.95
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "receiver/contract/intake.py",
        "is_json = readable and (body[(1)] == _OBJECT or not is_form(body))",
    ): "the first byte is only looked at because it is faster; is_form decides the same",
    (
        "receiver/contract/intake.py",
        """arrival = (event.headers, store, now, event.source, ('x'))""",
    ): "the secret that signed an event is not stored, so reading it again needs none",
    (
        "receiver/contract/intake.py",
        "LOOP_ITEMS, LOOP_BYTES = (101), 64 * 1024",
    ): "it says where a batch is read, not how; the tests take it from here",
    (
        "receiver/contract/intake.py",
        """id_key, alone = b"id\\0" + delivery_id.encode("utf-8", ('surrogatepas')), scheme.dedupe == "id\"""",
    ): "a body with half of a surrogate pair is unreadable, so no item has such an id",
    (
        f"{SIGNING}/signatures.py",
        "if separator in header_bytes(headers.get(name, ('x'))):",
    ): "a delivery without this header is refused before, since the header is signed",
    (
        f"{SIGNING}/sources.py",
        "return text.encode(('latin-'))",
    ): "Python knows this codec by that name, too",
    (
        f"{SIGNING}/sources.py",
        """return "".join(name + value for name, value in sorted(set(self._pairs))).encode(('latin-'))""",
    ): "the same",
    (
        f"{SIGNING}/sources.py",
        "return allowed if (len(body) >= MAX_CONTAINERS) and count_containers(body, allowed + 1) > allowed else 0",
    ): "a body of so many bytes has not more brackets",
    (
        "receiver/contract/intake.py",
        "LOOP_ITEMS, LOOP_BYTES = 100, 64 * (1025)",
    ): "it says where a batch is read, not how",
}
"""(line, as it is after the change) of mutants that change nothing that can be observed, and why."""

_COMPARED = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr}


class Mutant(NamedTuple):
    path: str
    line: int
    before: str
    after: str
    source: str
    """The whole file, changed."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def mutants_of(path: str) -> Iterator[Mutant]:
    source = (ROOT / path).read_text()
    lines = source.splitlines(keepends=True)
    for node in _behaviour(ast.parse(source)):
        for changed in _changes(node):
            text = ast.unparse(changed)
            text = f"({text})" if isinstance(changed, ast.expr) else text
            yield _replaced(path, lines, node, text)


def _behaviour(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that decide what happens: no annotations, no texts for people."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list") or isinstance(tree, ast.JoinedStr):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not _is_text(node) and not _is_list_of_names(node):
                yield node
                if not isinstance(node, ast.Raise | ast.Import | ast.ImportFrom):
                    yield from _behaviour(node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_list_of_names(node: ast.AST) -> bool:
    """Of `__all__`, which only tools read."""
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.Compare) and len(changed.ops) == 1:
        changed.ops = [_COMPARED[type(changed.ops[0])]()]
        yield changed
    elif isinstance(changed, ast.BoolOp):
        changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
        yield changed
    elif isinstance(changed, ast.UnaryOp) and isinstance(changed.op, ast.Not):
        yield changed.operand
    elif isinstance(changed, ast.BinOp) and type(changed.op) in _OPERATORS:
        changed.op = _OPERATORS[type(changed.op)]()
        yield changed
    elif isinstance(changed, ast.Constant) and isinstance(changed.value, bool | int | str | bytes):
        yield ast.Constant(_other_value(changed.value))
    elif isinstance(changed, ast.Raise | ast.AugAssign | ast.Continue | ast.Break) or (
        isinstance(changed, ast.Expr) and isinstance(changed.value, ast.Call)
    ):
        yield ast.Pass()
    elif isinstance(changed, ast.Return) and not isinstance(changed.value, ast.Constant | type(None)):
        yield ast.Return(ast.Constant(None))


def _other_value(value: bool | int | str | bytes) -> bool | int | str | bytes:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value[:-1] if value else (b"x" if isinstance(value, bytes) else "x")


def _replaced(path: str, lines: list[str], node: ast.AST, text: str) -> Mutant:
    assert isinstance(node, ast.expr | ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    head = lines[node.lineno - 1].encode()[: node.col_offset].decode()
    tail = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
    after = head + text + tail
    source = "".join([*lines[: node.lineno - 1], after, *lines[node.end_lineno :]])
    return Mutant(path, node.lineno, lines[node.lineno - 1].strip(), after.strip(), source)


def choose(number: int, seed: int) -> list[Mutant]:
    """The same for the same seed, also after other lines were edited. Each compiles."""

    def chance(one: Mutant) -> bytes:
        return sha256(f"{seed} {one.path} {one.before} {one.after}".encode()).digest()

    every = sorted((one for path in MUTATED for one in mutants_of(path)), key=chance)
    return list(islice((one for one in every if _compiles(one.source)), number))


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def caught_by(mutant: Mutant, copy_of_all: Path) -> str:
    """The test that fails because of it; empty if none does."""
    file = copy_of_all / mutant.path
    original = file.read_text()
    file.write_text(mutant.source)
    found = [path for path in sorted((copy_of_all / TESTS).rglob("test_*.py")) if "diagnosis" not in path.parts]
    try:
        turns = ([str(path) for path in found if _turn(path) == turn] for turn in range(3))
        return next(filter(None, (_first_failure(files, copy_of_all) for files in turns)), "")
    finally:
        file.write_text(original)


def _turn(path: Path) -> int:
    return 0 if path.name in FIRST else 2 if set(LAST) & set(path.parts) else 1


def _first_failure(arguments: list[str], folder: Path) -> str:
    """The first test that fails twice: on a busy machine some fail once, because they are late."""
    while failed := _run(arguments, folder):
        if "::" not in failed or _run([failed], folder):
            return failed
        arguments = [*arguments, "--deselect", failed]
    return ""


def _run(arguments: list[str], folder: Path) -> str:
    """The first failure: a test, or what pytest says if it could not even begin."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    if not done.returncode:
        return ""
    named = re.search(r"^FAILED (.*?)( - |$)", done.stdout, flags=re.MULTILINE)
    return named[1] if named else "import or collection"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    chosen = choose(options.number, options.seed)
    skipped = [one for one in chosen if (one.path, one.after) in EQUIVALENT]
    tried = [one for one in chosen if one not in skipped]
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for number in range(options.processes):
            copies.put(_copy_to(Path(folder) / str(number)))
        unchanged = Path(folder) / "0"
        if failed := _run([f"{TESTS}/test_intake.py"], unchanged):
            sys.exit(f"without any change a test fails; correct that first: {failed}")

        def attempt(mutant: Mutant) -> bool:
            mine = copies.get()
            try:
                test = caught_by(mutant, mine)
            finally:
                copies.put(mine)
            print("caught  " if test else "SURVIVED", mutant, f"  [{test}]" if test else "", flush=True)
            return bool(test)

        with ThreadPoolExecutor(options.processes) as pool:
            caught = sum(pool.map(attempt, tried))
    for one in skipped:
        print("EQUAL   ", one, f"({EQUIVALENT[one.path, one.after]})")
    print(f"{caught} of {len(tried)} caught, {len(skipped)} change nothing (seed {options.seed})")
    return 0 if caught >= REQUIRED * len(tried) else 1


def _copy_to(folder: Path) -> Path:
    hidden = shutil.ignore_patterns(".*", "__pycache__", "data", "*.pyc")
    shutil.copytree(ROOT, folder, ignore=hidden)
    return folder


if __name__ == "__main__":
    sys.exit(main())
