"""A reader of a page who follows it from its first line to its last: writes its files and runs its commands."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

FILES = ("python", "toml", "json", "ini", "conf", "nginx")
SHOW_TRACEBACKS = ("storehooks failures show ", "storehooks handlers run ")
"""Commands that show the traceback of a handler."""
_BLOCK = re.compile(
    r"(?:^(?P<before>\S[^\n]*(?:\n[^\n]+)*)\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
_REMARK = re.compile(r"(^| +)# .*$")
_COMMENT = re.compile(r"# ([\w/.-]+\.\w+)\n")
_NAME = re.compile(r"`([\w/.@-]+\.\w+)`")


class Step(NamedTuple):
    kind: str
    """write or run"""
    text: str
    file: str = ""


def commands(page: Path) -> list[str]:
    """The commands of a page, in order."""
    return [step.text for step in steps(page, files=False)]


def steps(page: Path, *, without: str = "", files: bool = True) -> Iterator[Step]:
    """Files and commands in the order of the page, without one of its sections.

    A file is named by its first line, or by the paragraph before it.
    """
    text = page.read_text()
    if without:
        before, found, section = text.partition(f"\n## {without}\n")
        assert found, without
        text = f"{before}\n## {section.partition(chr(10) + '## ')[2]}"
    for block in _BLOCK.finditer(text):
        language, text = block["language"], block["text"]
        if language == "sh":
            lines = (_REMARK.sub("", line) for line in text.replace("\\\n", " ").splitlines())
            yield from (Step("run", line) for line in lines if line)
        elif language in FILES and files:
            named = _COMMENT.match(text)
            names = [named[1]] if named else _NAME.findall(block["before"] or "")
            assert names, f"{page.name}: the line before a sample names its file: {text[:60]!r}"
            yield Step("write", text, names[-1])


class PageReader:
    """Types what a page says, at a terminal in a folder, and answers y to every question."""

    def __init__(self, folder: Path, environ: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.words: dict[str, str | Callable[[], str]] = {}
        """What stands for something else on the page, such as GROUP; a function is called when the page needs it."""
        self.after: dict[str, Callable[[], object]] = {}
        """What happens after a command, by its text on the page: what a person would wait for."""
        self.printed: dict[str, str] = {}
        """What each command printed, by its text on the page."""
        overriding = ("STOREHOOKS_", "PYTEST_", "REDIS_URL", "PORT")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(overriding)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environ = {**kept, "PATH": path, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200", **(environ or {})}

    def follow(self, page: Path, *, without: str = "") -> dict[str, str]:
        for step in steps(page, without=without):
            self.do(step)
        return self.printed

    def do(self, step: Step) -> str:
        if step.kind == "write":
            path = self.folder / self.filled_in(step.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.filled_in(step.text))
            return ""
        printed = self.run(self.filled_in(step.text))
        self.printed[step.text] = self.printed.get(step.text, "") + printed
        if step.text in self.after:
            self.after[step.text]()
        return printed

    def filled_in(self, text: str) -> str:
        for word, value in list(self.words.items()):
            if word in text:
                known = self.words[word] = value if isinstance(value, str) else value()
                text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", known.replace("\\", r"\\"), text)
        return text

    def run(self, line: str) -> str:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self.environ[name] = value
            return ""
        code, printed = at_a_terminal(line, env=self.environ, cwd=self.folder)
        assert code == 0, f"{line}\n{printed}"
        assert "Traceback" not in printed or line.startswith(SHOW_TRACEBACKS), printed
        return printed


def at_a_terminal(line: str, *, env: dict[str, str], cwd: Path, within: float = 300.0) -> tuple[int, str]:
    """Run a line in a shell whose input and output is a terminal, and return its exit code and what it printed."""
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    termios.tcsetwinsize(theirs, (50, int(env.get("COLUMNS", "200"))))
    shell = subprocess.Popen(
        ["/bin/sh", "-c", line], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=env, start_new_session=True
    )
    os.close(theirs)
    os.write(ours, b"y\n" * 3)
    timer = threading.Timer(within, shell.kill)
    timer.start()
    printed = b""
    with suppress(OSError):  # EIO: the last process that had the terminal has ended
        while part := os.read(ours, 65536):
            printed += part
    os.close(ours)
    code = shell.wait()
    timer.cancel()
    return code, printed.decode(errors="replace").replace("\r\n", "\n")
