"""Commands that run in the process of the test: starting another one would only add seconds."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner, Result

from tests.support.logged_lines import capture_logs
from workers.cli import storehooks


def run_in_process(*arguments: str, **how: Any) -> Result:
    """Run `storehooks`. What threads that an earlier test has left behind log is not part of its output."""
    with capture_logs():
        return CliRunner().invoke(storehooks, arguments, **how)
