"""listen: send new events to a local program while the command runs. The inbox is not changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import click
from pydantic import SecretStr, ValidationError

from receiver.config import Config
from receiver.config.settings import ForwardSettings
from receiver.contract.diagnosis.formatting import counted
from receiver.contract.errors import ConfigError, PluginError
from receiver.contract.event import Event
from receiver.contract.topics import PROBE, matches
from receiver.inbox.outcomes import Ending
from workers.cli import output
from workers.cli.listing import look_again
from workers.cli.options import Command, all_events, choose_store, connect_server, load_config, read_secret
from workers.history.past_events import PastEvent
from workers.operations.arrivals import EventArrivals
from workers.operations.local_run import LocalRun

RETRY_EVERY = 1.0
NAME = "listen"
OPTIONS = {"url": "--forward", "secret": "--secret"}
"""Keys of `[forward.NAME]` -> the options that set them here."""


@click.command(cls=Command)
@click.option("--forward", "url", required=True, metavar="URL", help="Where to send them: http://127.0.0.1:3000/hook.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic, such as order.*; repeatable.")
@click.option("--store", metavar="NAME", help="Only events of this store.")
@click.option(
    "--secret", default="", metavar="SECRET", help="Sign them by Standard Webhooks: env:NAME or file:PATH of a secret."
)
def listen(url: str, topics: tuple[str, ...], store: str | None, secret: str) -> None:
    """Send new events to a local program, until Ctrl-C.

    They are sent as [forward.NAME] sends them, in order. One that is not accepted yet is sent again every second.
    Handlers run as usual, and nothing of this is stored.
    """
    config = load_config()
    stores = (choose_store(config, store),) if store else ("*",)
    try:
        given = ForwardSettings(
            url=url, topics=topics or ("*",), stores=stores, secret=SecretStr(_secret(secret)), allow_private=True
        )
    except ValidationError:
        raise ConfigError("--forward is not a URL; write --forward http://127.0.0.1:3000/hook") from None
    run = _forward(_with_only(config, given))
    arrivals = EventArrivals(all_events(config, connect_server(config)), store=store or "", content=True)
    output.echo(f"new events are sent to {url}; Ctrl-C ends it")
    sent = 0
    try:
        for arrived in look_again(arrivals.new):
            for event in _wanted(arrived, given):
                _send(run, event)
                sent += 1
    except KeyboardInterrupt:
        output.echo(f"\nstopped; {counted(sent, 'event')} sent")
    finally:
        run.close()


def _with_only(config: Config, given: ForwardSettings) -> Config:
    """The config with this forward as its only handler."""
    workers = config.workers.model_copy(update={"plugins": (), "installed": False})
    return config.model_copy(update={"workers": workers, "forward": {NAME: given}})


def _secret(given: str) -> str:
    """A secret of its own may be given too: it is often one for this machine only."""
    return read_secret(given) if given.startswith(("env:", "file:")) else given


def _forward(config: Config) -> LocalRun:
    """PluginError names the key of a `[forward.NAME]`; here it is an option."""
    try:
        return LocalRun(config, f"forward.{NAME}", record=False)
    except PluginError as error:
        key, _, why = str(error).partition(f"forward.{NAME}.")[2].partition(" ")
        if key not in OPTIONS:
            raise
        raise ConfigError(f"{OPTIONS[key]} {why}") from None


def _send(run: LocalRun, event: Event) -> None:
    """Send one event until it is accepted or refused for good, with a line for each new answer."""
    said = ""
    while True:
        result = run.run(event)
        if result.message != said:
            said = result.message
            line = f"{event.store}  {event.topic}  {event.id}  "
            when = output.text(f"{datetime.now():%H:%M:%S}  ", "dim")
            output.line(when, line, output.state(result.ending), f"  {result.ms:.0f} ms  {said}", indent=10)
        if result.ending not in (Ending.RETRY, Ending.BUSY):
            return
        time.sleep(RETRY_EVERY)


def _wanted(arrived: list[PastEvent], wanted: ForwardSettings) -> Iterator[Event]:
    """Those that are to be sent. One without a topic could not be read, and one without a body cannot be sent."""
    for one in arrived:
        store, topic = one.event.store, one.event.topic
        if topic in ("", PROBE) or one.content is None:
            continue
        if any(matches(each, store) for each in wanted.stores) and any(matches(each, topic) for each in wanted.topics):
            yield one.event
