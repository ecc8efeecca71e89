"""A reader of a page who follows it from its first line to its last: writes its files and runs its commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FILES = ("python", "toml", "json", "ini", "nginx")
_BLOCK = re.compile(
    r"(?:^(?P<before>\S[^\n]*(?:\n[^\n]+)*)\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
_COMMENT = re.compile(r"# ([\w/.-]+\.\w+)\n")
_NAME = re.compile(r"`([\w/.@-]+\.\w+)`")


class Step(NamedTuple):
    kind: str
    """write or run"""
    text: str
    file: str = ""


def steps(page: Path) -> Iterator[Step]:
    """Files and commands in the order of the page. A file is named by its first line, or by the paragraph before it."""
    for block in _BLOCK.finditer(page.read_text()):
        language, text = block["language"], block["text"]
        if language == "sh":
            joined = text.replace("\\\n", " ")
            yield from (Step("run", line) for line in joined.splitlines() if line and not line.startswith("#"))
        elif language in FILES:
            named = _COMMENT.match(text)
            names = [named[1]] if named else _NAME.findall(block["before"] or "")
            assert names, f"{page.name}: the line before a sample names its file: {text[:60]!r}"
            yield Step("write", text, names[-1])


class PageReader:
    """Types what a page says, in a folder. `words` are what the page leaves open, such as GROUP."""

    def __init__(self, folder: Path, environ: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.words: dict[str, str] = {}
        self.printed: dict[str, str] = {}
        """What each command printed, by its text on the page."""
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("STOREHOOKS_", "PYTEST_", "REDIS_URL", "PORT"))
        }
        scripts = str(Path(sys.executable).parent)
        self.environ = {**kept, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", **(environ or {})}

    def follow(self, page: Path) -> dict[str, str]:
        for step in steps(page):
            self.do(step)
        return self.printed

    def do(self, step: Step) -> str:
        if step.kind == "write":
            (self.folder / step.file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / step.file).write_text(self.filled_in(step.text))
            return ""
        printed = self.run(self.filled_in(step.text))
        self.printed[step.text] = self.printed.get(step.text, "") + printed
        return printed

    def filled_in(self, text: str) -> str:
        for word, value in self.words.items():
            text = re.sub(rf"\b{re.escape(word)}\b", value, text)
        return text

    def run(self, line: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout
