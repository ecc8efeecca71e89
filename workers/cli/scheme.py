"""scheme: how stores sign; the presets, one's own, and the one that fits a captured delivery."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from receiver.config import Config
from receiver.contract.diagnosis.detect import Detection, detect, to_toml
from receiver.contract.diagnosis.explain import caveats
from receiver.contract.errors import ConfigError, NotFound
from receiver.contract.signing.grammar import Scheme
from workers.cli import output
from workers.cli.capture_file import read_captured
from workers.cli.options import Noun, load_config, with_config


@click.group(cls=Noun)
@with_config
def scheme() -> None:
    """Schemes, how stores sign: list, show, detect."""


@scheme.command("list")
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def list_schemes(json_: bool = False) -> None:
    """Every scheme that a store may have: the presets, and those of this config."""
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
        "storehooks scheme show shopify",
        "storehooks scheme detect --request FILE --secret env:NAME      find the one that fits",
    )


@scheme.command("show")
@click.argument("name")
@with_config
def show_scheme(name: str) -> None:
    """A scheme as TOML, to read or to start from, and what it cannot promise."""
    known = load_config().known_schemes
    if name not in known:
        raise NotFound(f"no scheme {name}; known schemes: {', '.join(sorted(known))}")
    click.echo(to_toml(known[name], name), nl=False)
    for caveat in caveats(known[name]):
        click.echo(f"# to know: {caveat}")


@scheme.command("detect")
@click.option("--request", "file", required=True, metavar="FILE", help="Header lines, a blank line, the raw body.")
@click.option("--secret", required=True, metavar="env:NAME", help="The store's secret: env:NAME or file:PATH.")
@click.option("--url", default="", help="The URL the store sends to, where it may be part of what is signed.")
@click.option("--name", default="mystore", show_default=True, help="What to call the scheme.")
@with_config
def detect_scheme(file: str, secret: str, url: str, name: str) -> None:
    """Find the scheme that signed a captured delivery, and print its TOML."""
    headers, body = read_captured(file)
    found = detect(headers, body, _secret(secret), url=url)
    if found.scheme is None:
        _tell_what_was_tried(found, url)
        raise click.exceptions.Exit(1)
    known = f", the preset {found.preset}" if found.preset else ""
    click.echo(f"# fits {output.harmless(file)}{known}")
    for note in found.notes:
        click.echo(f"# {output.harmless(note)}")
    if found.preset:
        click.echo(f'[stores.{name}]\nscheme = "{found.preset}"\nsigning_secrets = ["{secret}"]')
    else:
        click.echo(found.toml(name))
        click.echo(f'[stores.{name}]\nscheme = "{name}"\nsigning_secrets = ["{secret}"]')
    for caveat in caveats(found.scheme):
        click.echo(f"# to know: {caveat}")


def _secret(reference: str) -> str:
    """A secret is named, never typed: arguments of a command can be seen by all."""
    kind, _, name = reference.partition(":")
    if kind == "env" and name:
        if value := os.environ.get(name):
            return value
        raise ConfigError(f"${name} is not set; write `{name}=... storehooks scheme detect ...`, or use file:PATH")
    if kind == "file" and name:
        try:
            return Path(name).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"{name} cannot be read as a secret") from None
    raise ConfigError(
        "--secret is env:NAME or file:PATH, never the secret itself: others can see a command's arguments"
    )


def _tell_what_was_tried(found: Detection, url: str) -> None:
    click.echo("no scheme fits with this secret. Tried:")
    for line in found.tried:
        click.echo(f"  {output.harmless(line)}")
    for note in found.notes:
        click.echo(f"  but: {output.harmless(note)}")
    click.echo()
    click.echo("Either the secret is another one, or the body is not the raw bytes that were sent.")
    if not url:
        click.echo("If the store signs its URL, say it: --url https://hooks.example.com/webhooks/NAME")


def _row(config: Config, one: Scheme) -> dict[str, Any]:
    key = f"{one.sig_keys[0]}{one.pair_sep} " if one.sig_keys else ""
    return {
        "scheme": one.name,
        "from": str(config.place("schemes", one.name)) if one.name in config.schemes else "preset",
        "headers": one.headers,
        "form": f"{key}{one.encoding}{', list' if one.list_sep else ''}",
        "signed": one.signed,
        "stores": sorted(name for name, store in config.known_stores.items() if store.scheme.name == one.name),
    }
