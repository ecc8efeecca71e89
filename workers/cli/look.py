"""stats and send: a look at the whole, and an event of one's own."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.contract.compose import Request, compose
from receiver.contract.errors import ConfigError, ServerUnusable
from receiver.contract.settings import LOOPBACK
from receiver.contract.stores import Store
from receiver.inbox import Ledger
from receiver.inbox.ledger import EventRecord, Spool
from workers.checkup.words import waits
from workers.cli import show
from workers.cli.options import the_config, the_server, the_store, the_stores, with_config
from workers.storeapi.samples import sample

SETTLES_WITHIN = 5.0
LOOK_EVERY = 0.02
AN_HOUR = 3600


@click.command()
@click.option("--json", "json_", is_flag=True, help="For scripts.")
@with_config
def stats(json_: bool) -> None:
    """Counts of one moment; accepted = settled + open + failed, for every store."""
    config = the_config()
    ledger = Ledger(the_server(config))
    counters, spools = ledger.counters(), ledger.spools()
    counters.total["spooled"] = sum(spool.count for spool in spools.values())
    if json_:
        show.as_json(counters.as_json())
        return
    click.echo(equation(counters.total))
    click.echo()
    names = {name: name for name in ("accepted", "settled", "open", "failed", "duplicates")} | {"rejected": "refused"}
    rows = [(store, *(counts[name] for name in names)) for store, counts in sorted(counters.stores.items())]
    show.table(("STORE", *(shown.upper() for shown in names.values())), rows, drop=("DUPLICATES",))
    for store, counts in sorted(counters.stores.items()):
        tell_of_conflicts(store, counts)
    tell_of_spools(spools, config.receiver.spool_age)
    show.next_command("storehooks failures" if counters.total["failed"] else "storehooks events")


def tell_of_spools(spools: Mapping[str, Spool], longest: float) -> None:
    """What waits on each host, or since when nobody knows."""
    for host, spool in sorted(spools.items()):
        if spool.silent(time.time()):
            click.echo(f"\nspool of {host}: unknown since {show.clock(datetime.fromtimestamp(spool.at, UTC))}")
        elif spool.count:
            since = show.clock(datetime.fromtimestamp(spool.oldest, UTC))
            late = ", longer than [receiver] spool_age" if time.time() - spool.oldest > longest else ""
            click.echo(
                f"\nspool of {host}: {waits(spool.count, 'delivery', 'deliveries')}, the oldest since {since}{late}"
            )


def tell_of_conflicts(store: str, counts: Mapping[str, int]) -> None:
    """One delivery id with two bodies: a store that writes its deliveries anew, or somebody who plays with ids."""
    if many := counts.get("conflicts"):
        click.echo()
        click.echo(f"{store}: {many:,} came under a delivery id that had come with another body before;")
        click.echo("  kept as events of their own, or, where the scheme signs the id, taken for repetitions")


def equation(total: dict[str, int]) -> str:
    """The accounting identity with today's figures."""
    return (
        f"accepted {total['accepted']:,} = settled {total['settled']:,} + open {total['open']:,} "
        f"+ failed {total['failed']:,}    duplicates {total['duplicates']:,}    refused {total['rejected']:,}"
    )


@click.command()
@click.argument("topic")
@click.option("--store", help="To which store's endpoint; with one store it need not be said.")
@click.option(
    "--data", "data_file", type=click.Path(exists=True, dir_okay=False), help="JSON to send instead of a sample."
)
@click.option("--set", "changes", multiple=True, metavar="a.b=v", help="Change a field of the data.")
@click.option("--id", "delivery_id", help="The delivery's id; the same again is a duplicate.")
@click.option("--twice", is_flag=True, help="Send it twice; the second is a duplicate.")
@click.option(
    "--tamper", type=click.Choice(["signature", "body", "time"]), help="Spoil it after signing; see it refused."
)
@click.option("--print", "print_", is_flag=True, help="Show the body, send nothing.")
@click.option("--yes", is_flag=True, help="Do not ask, even if the address is public.")
@with_config
def send(
    topic: str,
    store: str | None,
    data_file: str | None,
    changes: tuple[str, ...],
    delivery_id: str | None,
    twice: bool,
    tamper: str | None,
    print_: bool,
    yes: bool,
) -> None:
    """Send a signed event, as the store would, and see what becomes of it."""
    config = the_config()
    name = the_store(config, store)
    delivery_id = delivery_id or f"msg_{secrets.token_hex(5)}"
    request = _request(config, name, topic, _data(topic, data_file, changes), delivery_id, tamper)
    if print_:
        click.echo(request.body)
        return
    url = config.public_url_of(name)
    _ask_if_public(url, yes)
    only = "   (the only store)" if store is None else ""
    click.echo(f"to      {url}{only}")
    kind, size = "your" if data_file else "sample", f"{len(request.body):,}"
    click.echo(f"body    {kind} {topic}, {size} bytes   (--print shows it, --set changes it)")
    secret = _signer(config, name).secrets[0]
    click.echo(f"signed  {config.stores[name].scheme}, secret {secret.fingerprint}, id {show.harmless(delivery_id)}")
    for _ in range(2 if twice else 1):
        ok = _send_and_follow(config, url, request)
    if not ok:
        show.next_command(f"storehooks verify --refused last --store {name}      why")
        raise click.exceptions.Exit(1)
    same = f" --data {shlex.quote(data_file)}" if data_file else ""
    same += "".join(f" --set {shlex.quote(change)}" for change in changes)
    show.next_command(f"storehooks send {topic} --store {name} --id {delivery_id}{same}  again: a duplicate")


def _data(topic: str, data_file: str | None, changes: tuple[str, ...]) -> Any:
    try:
        data = json.loads(Path(data_file).read_text()) if data_file else sample(topic)
    except ValueError as error:
        raise ConfigError(f"{data_file} is not JSON: {error}") from None
    for change in changes:
        path, sign, value = change.partition("=")
        if not sign:
            raise ConfigError(f"--set {change}: write --set customer.name=Ada")
        *above, last = path.split(".")
        place = data
        for step in above:
            place = place.setdefault(step, {}) if isinstance(place, dict) else {}
        if not isinstance(place, dict):
            raise ConfigError(f"--set {change}: {path} is not inside an object")
        place[last] = _value(value)
    return data


def _value(text: str) -> Any:
    """JSON where it is JSON (42, true, null), else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _request(config: Config, name: str, topic: str, data: Any, delivery_id: str, tamper: str | None) -> Request:
    now = time.time() - (AN_HOUR if tamper == "time" else 0)
    store = _signer(config, name)
    if tamper == "time" and not (store.scheme.timestamp and store.scheme.tolerance):
        raise ConfigError(f"{store.scheme.name} signs no time, so there is none to spoil; try --tamper body")
    request = compose(store, topic=topic, delivery_id=delivery_id, data=data, now=now)
    if tamper == "body":
        return Request(request.headers, request.body[:-1] + b" " + request.body[-1:])
    if tamper == "signature":
        header = store.scheme.headers[0].lower()
        value = request.headers[header]
        at = len(value) // 2
        flipped = value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :]
        return Request({**request.headers, header: flipped}, request.body)
    return request


def _signer(config: Config, name: str) -> Store:
    """The store with the one secret we sign with: the newest that counts, of config or learned."""
    store = the_stores(config)[name]
    live = [secret for secret in store.secrets if secret.live(time.time())]
    if not live:
        raise ConfigError(f"{name} has no secret that counts here; `storehooks subscriptions apply` has one made")
    return replace(store, secrets=(live[0],))


def _ask_if_public(url: str, yes: bool) -> None:
    if not yes and urlsplit(url).hostname not in LOOPBACK:
        click.confirm(f"{url} is not on this machine. Send it there?", abort=True)


def _send_and_follow(config: Config, url: str, request: Request) -> bool:
    import httpx2

    started = time.monotonic()
    try:
        answer = httpx2.post(url, headers=request.headers, content=request.body, timeout=10)
    except httpx2.HTTPError as error:
        raise ConfigError(f"{url} does not answer: {error}; is it running? `storehooks dev` starts it") from None
    took = (time.monotonic() - started) * 1000
    told = answer.json() if "json" in answer.headers.get("content-type", "") else {}
    if not answer.is_success:
        click.echo(f"answer  {answer.status_code} {told.get('title', '')} in {took:.0f} ms: {told.get('detail', '')}")
        return False
    click.echo(f"answer  {answer.status_code} {told.get('status')} in {took:.0f} ms, event {told.get('id')}")
    _follow(config, str(told.get("id")), started)
    return True


def _follow(config: Config, event_id: str, started: float) -> None:
    """Show each handler's run as soon as all have ended, or what has happened until patience ends."""
    try:
        ledger = Ledger(the_server(config))
        record = ledger.event(event_id)
        while record and record.summary.status == "open" and time.monotonic() - started < SETTLES_WITHIN:
            time.sleep(LOOK_EVERY)
            record = ledger.event(event_id)
    except (ServerUnusable, RedisError):
        return  # sent to a receiver whose server we cannot reach: the answer is all there is to show
    if record:
        _show_runs(record, (time.monotonic() - started) * 1000)


def _show_runs(record: EventRecord, took: float) -> None:
    click.echo()
    wide = max([len(run.handler) for run in record.runs], default=0)
    for run in record.runs:
        told = run.error or ("" if run.result is None else f'"{run.result}"')
        click.echo(
            f"  {run.handler.ljust(wide)}   {run.status.ljust(7)}   attempt {run.attempts}   {show.harmless(told)}"
        )
    if record.reason == "unhandled":
        click.echo("  no handler wants this topic; `storehooks handlers` lists what is loaded")
    state = record.summary.status
    click.echo(f"{state} after {took:.0f} ms" if state != "open" else f"still open after {took / 1000:.0f} s")
