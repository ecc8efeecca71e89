"""doctor: check everything, and say how to fix what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from receiver.config import Config
from receiver.contract.diagnosis.formatting import counted
from receiver.contract.errors import ConfigError
from workers.cli import output
from workers.cli.options import SPAN, Command, json_option, load_config
from workers.cli.typed_commands import commands_as_typed
from workers.operations.doctor.examination import TIMEOUT, examine
from workers.operations.doctor.facts import Facts
from workers.operations.doctor.findings import Finding, count, fail

NAME_WIDTH = 12


@click.command(cls=Command)
@json_option
@click.option("--strict", is_flag=True, help="Also exit 1 on warnings.")
@click.option(
    "--timeout", type=SPAN, default=TIMEOUT, metavar="TIME", help="Maximum time to wait for stores. Default: 4s."
)
def doctor(json_: bool, strict: bool, timeout: float) -> None:
    """Check config, server, plugins, workers and stores.

    Each finding says how to fix it. Exit 0: no problems. 1: problems (FAIL). 2: the config is invalid.
    """
    started = time.monotonic()
    try:
        config = load_config()
    except ConfigError as error:
        _report_invalid_config(error, json_)
        return
    facts, findings = examine(config, timeout=timeout)
    took = time.monotonic() - started
    if json_:
        output.as_json(_as_json(config, findings, took))
    else:
        _header(facts, took)
        _show(findings)
        _verdict(findings)
    if count(findings, "fail") or (strict and count(findings, "warn")):
        raise click.exceptions.Exit(1)


def _report_invalid_config(error: ConfigError, json_: bool) -> None:
    """Nothing else can be checked without a config. Each line of the error says where the problem is and its fix."""
    lines = str(error).splitlines()
    found = [fail("config", line, fix="correct the config; nothing else can be checked before that") for line in lines]
    if json_:
        output.as_json(_as_json(None, found, 0.0))
    else:
        _show(found)
        _verdict(found)
    raise click.exceptions.Exit(2)


def _header(facts: Facts, took: float) -> None:
    plugins = {one.details["plugin"] for one in facts.plugins.handlers}
    parts = [
        str(facts.config.path or "no file"),
        counted(len(facts.config.stores), "store"),
        counted(len(plugins), "plugin"),
        counted(len(facts.plugins.handlers), "handler"),
    ]
    output.line(f"{', '.join(parts)}   checked in {took:.1f} s", indent=2)
    output.echo()


def _show(findings: list[Finding]) -> None:
    wide = max([NAME_WIDTH, *(len(one.name) + 2 for one in findings)])
    for one in findings:
        level = one.level if one.level == "ok" else one.level.upper()
        start = output.state(level, f"{level:<6}") + output.text(f"{one.name:<{wide}}")
        texts = [(line, False) for line in (one.text, *one.more)]
        for text, is_command in [*texts, *_fix(one.fix)]:
            line = commands_as_typed(text)
            if is_command and 6 + wide + len(line) > output.width():
                start = output.text(" " * 6)
            output.line(start, line, indent=6 + wide, whole=is_command)
            start = output.text(" " * (6 + wide))


def _fix(fix: str) -> Iterator[tuple[str, bool]]:
    """The lines of a fix, and whether each is a command: that has a line of its own, so that it is never wrapped."""
    if fix.startswith("storehooks "):
        command, mark, rest = fix.partition("; ")
        yield f"fix: {command}", True
        if mark:
            yield rest, False
    elif fix:
        before, then, command = fix.partition("; then storehooks ")
        yield f"fix: {before}{'; then' if then else ''}", False
        if then:
            yield f"storehooks {command}", True


def _verdict(findings: list[Finding]) -> None:
    problems, warnings = count(findings, "fail"), count(findings, "warn")
    summary = f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}"
    output.echo()
    output.line(output.state("fail" if problems else "warn" if warnings else "ok", summary))


def _as_json(config: Config | None, findings: list[Finding], took: float) -> dict[str, Any]:
    return {
        "config": str(config.path) if config and config.path else None,
        "seconds": round(took, 3),
        "problems": count(findings, "fail"),
        "warnings": count(findings, "warn"),
        "findings": [one.as_json() for one in findings],
    }
