"""scheme: list and show signing schemes, and detect the scheme of a captured delivery."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import click
import tomli_w

from receiver.config import Config
from receiver.contract.diagnosis.captures import Capture
from receiver.contract.diagnosis.detect import Detection, changes, detect, to_toml
from receiver.contract.diagnosis.explain import caveats
from receiver.contract.diagnosis.terminal_text import harmless
from receiver.contract.errors import NotFound
from receiver.contract.signing.grammar import Scheme
from workers.cli import output
from workers.cli.capture_file import read_captured
from workers.cli.listing import RowList
from workers.cli.options import ConfiguredName, Noun, json_option, load_config, read_secret

_MISSING = {
    "topic": 'set topic, or topic = ["const:NAME"] if all deliveries are of one kind',
    "id": "set id, if a header or field names the delivery; else repeats are found by their body",
    "resource_id": "set resource_id, if the delivery names a resource",
    "time": "set occurred, if the delivery says when it happened",
    "data": "set data to where the resource is",
}


LISTING = RowList(drop=("from", "signed"), shorten=("headers", "form", "stores"))


@click.group(cls=Noun)
def scheme() -> None:
    """List, show and detect signing schemes."""


@scheme.command("list")
@json_option
def list_schemes(json_: bool = False) -> None:
    """List the signing schemes: presets, and those of this config."""
    config = load_config()
    rows = [_row(config, one) for one in config.known_schemes.values()]
    LISTING.show(rows, json_=json_)
    if json_:
        return
    output.next_command(
        "storehooks scheme show shopify  a scheme as TOML",
        "storehooks scheme detect --request FILE --secret env:NAME  find the scheme of a captured delivery",
    )


@scheme.command("show")
@click.argument("name", type=ConfiguredName(lambda config: config.known_schemes))
def show_scheme(name: str) -> None:
    """Show a scheme as TOML, with its limits."""
    known = load_config().known_schemes
    if name not in known:
        raise NotFound(f"no scheme {name}; known schemes: {', '.join(sorted(known))}")
    output.echo(to_toml(known[name], name), nl=False)
    if known[name].timestamp and known[name].tolerance == Scheme.tolerance:
        output.echo(f"# tolerance = {Scheme.tolerance}, the default: a delivery signed longer ago is refused")
    for caveat in caveats(known[name]):
        output.echo(f"# note: {caveat}")


@scheme.command("detect")
@click.option(
    "--request",
    "files",
    required=True,
    multiple=True,
    metavar="FILE",
    help="A captured request: header lines, a blank line, the raw body. Give two or more to prove what differs.",
)
@click.option("--secret", required=True, metavar="env:NAME", help="The store's secret: env:NAME or file:PATH.")
@click.option("--url", default="", help="The URL that the store sends to, if it is part of the signed content.")
@click.option("--name", default="mystore", show_default=True, help="The name for the scheme.")
@json_option
def detect_scheme(files: tuple[str, ...], secret: str, url: str, name: str, json_: bool = False) -> None:
    """Find the scheme of captured deliveries, and print its TOML and what it reads from each.

    Exit 1 if no scheme matches, with what was tried, or if no topic was found.
    """
    captures = [Capture(*read_captured(file)) for file in files]
    found = detect(captures, read_secret(secret), url=url)
    toml = f"{found.toml(name)}\n{_store(found, name, secret)}".lstrip("\n")
    if json_:
        output.as_json(_as_json(found, files, toml))
    elif found.scheme is None:
        _show_tried(found, url)
    else:
        _show_found(found, files, toml)
    if not found.has_topic:
        raise click.exceptions.Exit(1)


def _store(found: Detection, name: str, secret: str) -> str:
    table = {"scheme": found.preset or name, "url": found.url, "signing_secrets": [secret]}
    return tomli_w.dumps({"stores": {name: {key: value for key, value in table.items() if value}}})


def _as_json(found: Detection, files: Sequence[str], toml: str) -> dict[str, Any]:
    return {
        "matches": found.scheme is not None,
        "preset": found.preset,
        "toml": toml if found.scheme else "",
        "captures": [
            {"file": file, **asdict(reading), "missing": reading.missing}
            for file, reading in zip(files, found.readings, strict=False)
        ],
        "alternatives": [changes(other, found.scheme) for other in found.alternatives],
        "notes": found.notes,
        "tried": found.tried,
    }


def _show_found(found: Detection, files: Sequence[str], toml: str) -> None:
    """The TOML, and everything else as its comments, so that the output can be used as it is."""
    assert found.scheme is not None
    known = f", the preset {found.preset}" if found.preset else ""
    comments = [f"matches {', '.join(files)}{known}", *found.notes]
    for other in found.alternatives:
        comments.append("ambiguous: these captures also match with the following; capture a delivery where they differ")
        comments += [f"  {line}" for line in tomli_w.dumps(changes(other, found.scheme)).splitlines()]
    _show_comments(comments)
    output.echo(toml, nl=False)
    for file, reading in zip(files, found.readings, strict=True):
        output.echo(f"\n# {harmless(file)} is read as")
        for name, fix in _MISSING.items():
            value = harmless(getattr(reading, name)) or f"NONE: {fix}"
            known = (
                f", the standard topic {harmless(reading.standard_topic)}" if name == "topic" and reading.topic else ""
            )
            output.echo(f"#   {name.replace('_', ' '):<12} {value}{known}")
    for caveat in caveats(found.scheme):
        output.echo(f"# note: {caveat}")


def _show_tried(found: Detection, url: str) -> None:
    """As comments too, because the output may be added to a config; what to do is on standard error."""
    _show_comments(["no scheme matches with this secret. Tried:", *(f"  {line}" for line in found.tried)])
    _show_comments([f"  but: {note}" for note in found.notes])
    if not url:
        example = "--url https://hooks.example.com/webhooks/NAME"
        output.warn(f"No scheme was found without the URL. If the store signs its URL or path, add it: {example}")
    otherwise = "No scheme was found: either" if url else "Otherwise"
    output.warn(
        f"{otherwise} the secret is wrong, or the body is not exactly the bytes that were sent, or the store signs in "
        "a way that was not tried: then write the scheme by hand. docs/schemes.md has all keys, and "
        "`storehooks verify` shows each step."
    )


def _show_comments(lines: Iterable[str]) -> None:
    output.echo("".join(f"# {harmless(line)}\n" for line in lines), nl=False)


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
