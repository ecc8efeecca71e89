"""events reread: read events again that could not be read, after their store's scheme was corrected."""

from __future__ import annotations

import click

from receiver.contract.diagnosis.formatting import counted
from receiver.inbox import FailureQueries
from receiver.inbox.administration import RereadResult
from workers.cli import output
from workers.cli.auditing import record
from workers.cli.options import Command, all_events, choose_store, connect_server, json_option, load_config, yes_option
from workers.operations.reread import Rereader

NOT_READ = {
    RereadResult.DUPLICATE: ("duplicates", "duplicate", "settled: delivered again and accepted meanwhile"),
    RereadResult.NO_BODY: ("no_body", "failed", "not read: no such event, or its body was deleted by retention"),
    RereadResult.ERASED: ("erased", "failed", "not read: the event was erased, and nothing of its content is left"),
    RereadResult.NOT_UNREADABLE: (
        "not_unreadable",
        "open",
        "not read again: already readable; only unreadable events are read again",
    ),
    RereadResult.DAMAGED: ("damaged", "failed", "not read: the record is damaged"),
}
"""The name in JSON, the state that gives the colour, and the sentence."""


@click.command("reread", cls=Command)
@click.argument("event_ids", metavar="[ID]...", nargs=-1)
@click.option("--store", help="Only events of this store.")
@click.option("--dry-run", is_flag=True, help="Show what could be read, and change nothing.")
@json_option
@yes_option
def reread(event_ids: tuple[str, ...], store: str | None, dry_run: bool, json_: bool, yes: bool) -> None:
    """Read events again that could not be read, and route them.

    They are read with the scheme that the store has in the config now. An event keeps its id. Without IDs, all failures
    of "intake" are read again.
    """
    config = load_config()
    name = choose_store(config, store) if store else None
    client = connect_server(config)
    stored, failures = all_events(config, client), FailureQueries(client)
    given = [stored.find_id(one) for one in event_ids]
    chosen = list(dict.fromkeys(given)) if given else list(failures.unreadable(name))
    total = len(chosen)
    output.confirm(f"read {counted(total, 'event')} again", yes=yes or dry_run or not total)
    if not dry_run:
        record(client, "reread", count=total, events=event_ids, store=name)
    rereader = Rereader(config, client, stored, store=name, dry_run=dry_run)
    with output.progress("reading", total) as bar:
        rereader.read(chosen, bar.advance)
    counts = rereader.counts
    if json_:
        others = {name: counts[one] for one, (name, _, _) in NOT_READ.items()}
        output.as_json({"read": counts[RereadResult.READ], **others, "still_unreadable": rereader.reasons})
    else:
        _show(rereader, name, failures.count_unreadable(), dry_run)
    if counts.keys() - {RereadResult.READ, RereadResult.DUPLICATE}:
        raise click.exceptions.Exit(1)


def _show(rereader: Rereader, store: str | None, unreadable: int, dry_run: bool) -> None:
    """`unreadable` is the number of such events of all stores."""
    counts = rereader.counts
    if not counts:
        others = f"no events of {store} to read again; other stores have {unreadable:,}"
        output.echo(others if store and unreadable else "no events to read again: every event could be read")
        return
    output.line(output.figure(counts[RereadResult.READ], "accepted"), " can be read" if dry_run else " read and routed")
    for reason, number in rereader.reasons.most_common():
        output.line(output.figure(number, "failed"), f" still unreadable: {reason}")
    for result, (_, style, sentence) in NOT_READ.items():
        if counts[result]:
            output.line(output.figure(counts[result], style), f" {sentence}")
    commands = ["storehooks failures  what is still unreadable"]
    if not dry_run:
        commands.insert(0, "storehooks events  the newest events")
    elif counts[RereadResult.READ]:
        chosen = f" --store {store}" if store else ""
        commands.insert(0, f"storehooks events reread{chosen}  read them and route them")
    output.next_command(*commands)
