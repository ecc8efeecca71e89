"""Writes the files of deploy/ into docs/how-to/deploy.md, wherever the paragraph before a block names one.

`make reference` does it; a test checks that it is current.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/how-to/deploy.md"
_SHOWN = re.compile(r"(`(?P<file>deploy/[\w./-]+)`[^\n]*\n\n```\w+\n).*?^```$", re.MULTILINE | re.DOTALL)


def page(text: str) -> str:
    """The page with the current content of the files that it shows."""
    return _SHOWN.sub(lambda found: f"{found[1]}{(ROOT / found['file']).read_text()}```", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
