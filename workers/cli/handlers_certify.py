"""handlers certify: test a plugin against duplicates, reordering, delays and crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from receiver.config import Config
from receiver.contract.errors import ConfigError
from workers.cli import output
from workers.cli.options import Command, given_config, json_option, load_config_or_defaults
from workers.cli.typed_commands import commands_as_typed

if TYPE_CHECKING:
    from workers.testing.certify.runner import Target


@click.command("certify", cls=Command)
@click.argument("which", metavar="PLUGIN")
@click.option("--seed", default=7, show_default=True, help="The same seed gives the same events and faults.")
@click.option("--only", multiple=True, metavar="SCENARIO", help="Only this scenario. Can be repeated.")
@json_option
def certify(which: str, seed: int, only: tuple[str, ...], json_: bool) -> None:
    """Test a plugin against duplicates, reordering, delays and crashes.

    PLUGIN is its name, file or module. Exit 1 if it fails.

    It runs on an embedded server, against a sandbox store. Whatever the plugin sends to other services is really
    sent: use settings made for testing.
    """
    from workers.testing.certify import report
    from workers.testing.certify.runner import CertificationRun

    config = load_config_or_defaults()
    target, wanted = _target(config, which), _known_scenarios(only)
    with output.progress("certifying", len({"clean", *(wanted or _scenario_names())})) as bar:
        results = CertificationRun(config, target, seed=seed, only=wanted, on_scenario=bar.next_step).run()
    results.config_file = given_config()
    if json_:
        output.as_json(report.as_json(results))
    else:
        for line in report.lines(results):
            level = line[:4].strip()
            start = output.state(level, line[:4]) if level in ("ok", "FAIL", "note") else line[:4]
            output.line(start, commands_as_typed(line[4:]), indent=22, whole="storehooks " in line)
    if results.findings:
        raise click.exceptions.Exit(1)


def _target(config: Config, which: str) -> Target:
    """The plugin, validated in a separate process. Its code runs in child processes, never in this one."""
    from workers.plugins.validation_process import validate_plugin
    from workers.testing.certify.runner import target_of

    found = validate_plugin(config, which)
    if not found:
        raise ConfigError(f"{which} has no handlers to certify")
    return target_of(which, found)


def _known_scenarios(only: tuple[str, ...]) -> tuple[str, ...]:
    known = _scenario_names()
    for name in only:
        if name not in known:
            raise ConfigError(f"no scenario {name}; known scenarios: {', '.join(known)}")
    return only


def _scenario_names() -> list[str]:
    from workers.testing.certify.scenarios import scenarios

    return ["clean", *(one.name for one in scenarios((), 0, uses_api=True))]
