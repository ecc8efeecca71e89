"""doctor: is it fine, and if not, what to do about it."""

from __future__ import annotations

import time
from typing import Any

import click

from receiver.config import Config
from receiver.contract.errors import ConfigError
from workers.cli import output
from workers.cli.options import Span, load_config, with_config
from workers.formatting import counted
from workers.operations.doctor.examination import TIMEOUT, examine
from workers.operations.doctor.facts import Facts
from workers.operations.doctor.findings import Finding, count, fail

NAME_WIDTH = 12


@click.command()
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@click.option("--strict", is_flag=True, help="Exit with 1 for what is only to know, too.")
@click.option("--timeout", type=Span(), default=TIMEOUT, metavar="TIME", help="How long to wait for stores; 4s.")
@with_config
def doctor(json_: bool, strict: bool, timeout: float) -> None:
    """Check config, server, plugins, workers, stores and the public address; say the fix for each finding.

    Exit 0: nothing to fix. 1: something is to fix (FAIL). 2: the config cannot be read.
    """
    started = time.monotonic()
    try:
        config = load_config()
    except ConfigError as error:
        _refuse(error, json_)
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


def _refuse(error: ConfigError, json_: bool) -> None:
    """Without a config nothing else can be looked at. Each line of the error says where and how to mend it."""
    lines = str(error).splitlines()
    found = [fail("config", line, fix="what it says; nothing else can be checked before") for line in lines]
    if json_:
        output.as_json(_as_json(None, found, 0.0))
    else:
        _show(found)
        _verdict(found)
    raise click.exceptions.Exit(2)


def _header(facts: Facts, took: float) -> None:
    plugins = {one.details["plugin"] for one in facts.plugins.handlers}
    told = [
        str(facts.config.path or "no file"),
        counted(len(facts.config.stores), "store"),
        counted(len(plugins), "plugin"),
        counted(len(facts.plugins.handlers), "handler"),
    ]
    output.prose(f"{', '.join(told)}   checked in {took:.1f} s")
    click.echo()


def _show(findings: list[Finding]) -> None:
    wide = max([NAME_WIDTH, *(len(one.name) + 2 for one in findings)])
    for one in findings:
        level = one.level if one.level == "ok" else one.level.upper()
        fix = [f"fix: {one.fix}"] if one.fix else []
        for number, line in enumerate([one.text, *one.more, *fix]):
            start = f"{level:<6}{one.name:<{wide}}" if not number else " " * (6 + wide)
            whole = start + output.harmless(line)
            is_command = line.startswith("fix: storehooks")  # to be copied
            click.echo(whole if is_command else "\n".join(output.hanging(whole, len(start))))


def _verdict(findings: list[Finding]) -> None:
    fix, know = count(findings, "fail"), count(findings, "warn")
    click.echo(f"\n{fix} to fix, {know} to know" if fix or know else "\neverything is fine")


def _as_json(config: Config | None, findings: list[Finding], took: float) -> dict[str, Any]:
    return {
        "config": str(config.path) if config and config.path else None,
        "seconds": round(took, 3),
        "to_fix": count(findings, "fail"),
        "to_know": count(findings, "warn"),
        "findings": [one.as_json() for one in findings],
    }
