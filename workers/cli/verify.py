"""verify: why a delivery fits or does not, step by step."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import click

from receiver.config import Config
from receiver.contract.diagnosis.explain import Explanation, explain
from receiver.contract.errors import ConfigError, DeliveryRefused, NotFound
from receiver.contract.signing.signatures import verify as verify_signature
from receiver.contract.stores import Store
from receiver.spool import Refusal, Refusals
from workers.cli import output
from workers.cli.capture_file import read_captured
from workers.cli.options import choose_store, load_config, refused_deliveries, stores_with_secrets, with_config
from workers.operations.release import ReleaseCheck, chosen

MOST_COUNTED = 2_000


@click.command()
@click.option("--store", help="The store it came from; with one store it need not be said.")
@click.option("--request", "file", metavar="FILE", help="Header lines, a blank line, the raw body; - reads it here.")
@click.option("--refused", metavar="last|ID", help="A delivery that was refused here and is kept.")
@click.option("--now", type=float, metavar="UNIX", help="Judge as of this time; else now, or its arrival.")
@with_config
def verify(store: str | None, file: str | None, refused: str | None, now: float | None) -> None:
    """Explain why a delivery fits or does not; never shows a secret."""
    if (file is None) == (refused is None):
        raise ConfigError("say which delivery: --request FILE, or --refused last, or --refused ID")
    config = load_config()
    valid = _verify_file(config, store, file, now) if file else _verify_refused(config, store, refused or "", now)
    if not valid:
        raise click.exceptions.Exit(1)


def _verify_file(config: Config, named: str | None, file: str, now: float | None) -> bool:
    store = stores_with_secrets(config)[choose_store(config, named)]
    headers, body = read_captured(file)
    output.prose(f"{store.name}, from {file}, {len(body):,} bytes, scheme {store.scheme.name}")
    return _tell(config, store, explain(store, headers, body, now or time.time(), others=_others(config, store)))


def _verify_refused(config: Config, named: str | None, wanted: str, now: float | None) -> bool:
    refusals = refused_deliveries(config)
    refusal = find_refusal(refusals, wanted, choose_store(config, named) if named else None)
    store = (
        ReleaseCheck(config, stores_with_secrets(config)).store_of(refusal)
        if named is None
        else stores_with_secrets(config)[named]
    )
    if store is None:
        called = refusal.named or "the one this delivery names"
        raise NotFound(f"no store {called}; add [stores.NAME] to the config, or check it as another one: --store NAME")
    output.prose(
        f"{store.name}, refused {output.clock(refusal.moment)} with 401 ({refusal.reason}), from "
        f"{refusal.address or 'somewhere'}, {refusal.length:,} bytes, scheme {store.scheme.name}"
    )
    body = refusal.body or b""
    told = explain(store, refusal.headers, body, now or refusal.at, others=_others(config, store))
    valid = _tell(config, store, told)
    _tell_of_the_others(config, refusals, store)
    return valid


def find_refusal(refusals: Refusals, wanted: str, store: str | None = None) -> Refusal:
    """The refused delivery that is meant, with its body."""
    if wanted == "last":
        newest = refusals.newest(store=store, limit=1)
        if not newest:
            raise NotFound(f"no refused delivery{f' of {store}' if store else ''} is stored on this host")
        wanted = str(newest[0].id)
    refusal = refusals.get(int(wanted)) if wanted.isascii() and wanted.isdigit() and len(wanted) < 19 else None
    if refusal is None:
        raise NotFound(f"no refused delivery {wanted[:20]!r} on this host; `storehooks refused` lists them")
    if refusal.body is None:
        raise NotFound(f"the body of refused delivery {refusal.id} was not stored; try a later one")
    return refusal


def _others(config: Config, store: Store) -> list[Store]:
    return [other for other in stores_with_secrets(config).values() if other.name != store.name]


def _tell(config: Config, store: Store, told: Explanation) -> bool:
    click.echo()
    wide = max((len(line.text) for step in told.steps for line in step.lines), default=0)
    for number, step in enumerate(told.steps, 1):
        for at, line in enumerate(step.lines):
            begin = f"{number}  {step.title:<10}" if at == 0 else " " * 13
            click.echo(f"  {begin}  {output.harmless(line.text):<{wide}}  {line.mark}".rstrip())
    click.echo()
    click.echo(f"{'VALID' if told.valid else 'NOT VALID'}  {output.harmless(told.verdict)}")
    for hint in told.hints:
        click.echo(f"  - {output.harmless(hint.text)}")
        if hint.fix:
            where = f"   ({_where(config, store)})" if " = " in hint.fix else ""
            click.echo(f"    fix: {output.harmless(hint.fix)}{where}")
    if told.valid and told.caveats:
        click.echo()
        for caveat in told.caveats:
            click.echo(f"  to know: {caveat}")
    return told.valid


def _where(config: Config, store: Store) -> str:
    """Where a mending line would go."""
    key = ("schemes", store.scheme.name) if store.scheme.name in config.schemes else ("stores", store.name)
    return f"[{'.'.join(key)}], {config.place(*key)}"


def _tell_of_the_others(config: Config, refusals: Refusals, store: Store) -> None:
    """How many more are kept, who signed them, and how many would be let in now."""
    judge = ReleaseCheck(config, stores_with_secrets(config))
    count, fitting, by = 0, 0, Counter[str]()
    for batch in chosen(refusals, judge, store=store.name):
        for refusal in batch:
            count += 1
            fitting += _fits(judge, refusal)
            by[_signed_with(store, refusal)] += 1
        if count >= MOST_COUNTED:
            break
    if not count:
        return
    many = f"{count:,}{' or more' if count >= MOST_COUNTED else ''}"
    click.echo()
    click.echo(f"{many} refused of {store.name} {'is' if count == 1 else 'are'} kept; {fitting:,} fit today's config.")
    for fingerprint, times in by.most_common():
        if fingerprint:
            click.echo(f"{times:,} {'is' if times == 1 else 'are'} signed with {fingerprint}.")
    output.next_command(f"storehooks refused release --store {store.name}" + ("" if fitting else "      after the fix"))


def _fits(judge: ReleaseCheck, refusal: Refusal) -> bool:
    try:
        judge.judge(refusal)
    except DeliveryRefused:
        return False
    return True


def _signed_with(store: Store, refusal: Refusal) -> str:
    """The fingerprint of the store's secret that signed it, ended or not; empty where none did."""
    secrets = [replace(secret, not_after=None) for secret in store.secrets]
    timeless = replace(store.scheme, tolerance=0)
    try:
        proof = verify_signature(
            timeless, secrets=secrets, headers=refusal.headers, body=refusal.body or b"", now=refusal.at, url=store.url
        )
    except DeliveryRefused:
        return ""
    return proof.secret.fingerprint
