"""scheme: list and show signing schemes, and detect the scheme of a captured delivery."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from receiver.config import Config
from receiver.contract.diagnosis.detect import Detection, detect, to_toml
from receiver.contract.diagnosis.explain import caveats
from receiver.contract.diagnosis.terminal_text import harmless
from receiver.contract.errors import ConfigError, NotFound
from receiver.contract.signing.grammar import Scheme
from workers.cli import output
from workers.cli.capture_file import read_captured
from workers.cli.options import Noun, json_option, load_config


@click.group(cls=Noun)
def scheme() -> None:
    """List, show and detect signing schemes."""


@scheme.command("list")
@json_option
def list_schemes(json_: bool = False) -> None:
    """List the signing schemes: presets, and those of this config."""
    config = load_config()
    rows = [_row(config, one) for one in config.known_schemes.values()]
    if json_:
        output.as_json(rows)
        return
    output.table(
        ("SCHEME", "FROM", "HEADER", "FORM", "SIGNED", "STORES"),
        [
            (row["scheme"], row["from"], row["headers"][0], row["form"], row["signed"], ", ".join(row["stores"]))
            for row in rows
        ],
        drop=("FROM", "SIGNED"),
        shorten=("FORM", "STORES"),
    )
    output.next_command(
        "storehooks scheme show shopify  a scheme as TOML",
        "storehooks scheme detect --request FILE --secret env:NAME  find the scheme of a captured delivery",
    )


@scheme.command("show")
@click.argument("name")
def show_scheme(name: str) -> None:
    """Show a scheme as TOML, with its limits."""
    known = load_config().known_schemes
    if name not in known:
        raise NotFound(f"no scheme {name}; known schemes: {', '.join(sorted(known))}")
    output.echo(to_toml(known[name], name), nl=False)
    for caveat in caveats(known[name]):
        output.echo(f"# note: {caveat}")


@scheme.command("detect")
@click.option(
    "--request",
    "file",
    required=True,
    metavar="FILE",
    help="A captured request: header lines, a blank line, the raw body.",
)
@click.option("--secret", required=True, metavar="env:NAME", help="The store's secret: env:NAME or file:PATH.")
@click.option("--url", default="", help="The URL that the store sends to, if it is part of the signed content.")
@click.option("--name", default="mystore", show_default=True, help="The name for the scheme.")
def detect_scheme(file: str, secret: str, url: str, name: str) -> None:
    """Find the scheme of a captured delivery, and print its TOML.

    Exit 1 if no scheme matches, with what was tried.
    """
    headers, body = read_captured(file)
    found = detect(headers, body, _secret(secret), url=url)
    if found.scheme is None:
        _show_tried(found, url)
        raise click.exceptions.Exit(1)
    known = f", the preset {found.preset}" if found.preset else ""
    output.echo(f"# matches {harmless(file)}{known}")
    for note in found.notes:
        output.echo(f"# {harmless(note)}")
    if found.preset:
        output.echo(f'[stores.{name}]\nscheme = "{found.preset}"\nsigning_secrets = ["{secret}"]')
    else:
        output.echo(found.toml(name))
        output.echo(f'[stores.{name}]\nscheme = "{name}"\nsigning_secrets = ["{secret}"]')
    for caveat in caveats(found.scheme):
        output.echo(f"# note: {caveat}")


def _secret(reference: str) -> str:
    """The secret that `env:NAME` or `file:PATH` refers to. Other users can read the arguments of a command."""
    kind, _, name = reference.partition(":")
    if kind == "env" and name:
        if value := os.environ.get(name):
            return value
        raise ConfigError(f"the environment variable {name} is not set; set it, or use file:PATH")
    if kind == "file" and name:
        try:
            return Path(name).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"cannot read the secret from {name}") from None
    raise ConfigError(
        "--secret takes env:NAME or file:PATH, not the secret itself: other users can read the arguments of a command"
    )


def _show_tried(found: Detection, url: str) -> None:
    output.line(output.state("fail", "no scheme matches with this secret"), ". Tried:")
    for line in found.tried:
        output.line("  ", line, indent=4)
    for note in found.notes:
        output.line("  but: ", note, indent=4)
    output.echo()
    output.line("Either the secret is wrong, or the body is not exactly the bytes that were sent.")
    if not url:
        output.line("If the store signs its URL, add it: --url https://hooks.example.com/webhooks/NAME")


def _row(config: Config, one: Scheme) -> dict[str, Any]:
    key = f"{one.sig_keys[0]}{one.pair_sep} " if one.sig_keys else ""
    return {
        "scheme": one.name,
        "from": str(config.place("schemes", one.name)) if one.name in config.schemes else "preset",
        "headers": [*one.headers, *one.signature],
        "form": f"{key}{one.encoding}{', list' if one.list_sep else ''}",
        "signed": one.signed,
        "stores": sorted(name for name, store in config.known_stores.items() if store.scheme.name == one.name),
    }
