"""erase: erase what is stored about a person, and show the receipts."""

from __future__ import annotations

from dataclasses import asdict

import click

from receiver.contract.diagnosis.formatting import counted
from receiver.contract.errors import NotFound
from receiver.inbox.audit_trail import AuditTrail
from receiver.inbox.erasures import Erasures, Receipt
from workers.cli import output
from workers.cli.auditing import person
from workers.cli.listing import RowList
from workers.cli.options import Command, choose_store, connect_server, json_option, load_config, yes_option
from workers.operations.erasure.subject import Subject, subject_of
from workers.operations.erasure.survey import PersonalData

PLACES = (
    *("events", "open events", "past events", "bodies", "results and errors", "failures", "once marks", "state"),
    *("memory of resources", "spool", "refused", "audit trail", "other texts"),
)
STEPS = 7
"""Places that are erased one after the other; see erasing.py."""
RECEIPTS = RowList(drop=("who",))


@click.command(cls=Command)
@click.option("--store", help="The store whose customer it is.")
@click.option("--customer", metavar="ID", help="The customer's id: customer events, and orders of this customer.")
@click.option("--resource", metavar="KIND:ID", help="One resource, such as order:1001.")
@click.option("--match", metavar="PATH=VALUE", help="Events with this value in their data, such as customer.email=a@b.")
@click.option("--open", "open_too", is_flag=True, help="Also end and erase events that are open.")
@click.option("--dry-run", is_flag=True, help="Show what would be erased, and change nothing.")
@click.option("--receipts", is_flag=True, help="List the receipts of what was erased.")
@click.option("--receipt", metavar="ID", help="Show one receipt.")
@json_option
@yes_option
def erase(
    store: str | None,
    customer: str | None,
    resource: str | None,
    match: str | None,
    open_too: bool,
    dry_run: bool,
    receipts: bool,
    receipt: str | None,
    json_: bool,
    yes: bool,
) -> None:
    """Erase what is stored about a person; show receipts.

    That is: events, bodies, results, errors, marks, state and refused deliveries. It shows first what it will erase.
    If it is interrupted, run the same command again. What stays of an event is a record that says "erased", so that
    counters and duplicates hold.
    """
    if receipts or receipt:
        _show_receipts(receipt, json_)
        return
    config = load_config()
    subject = subject_of(choose_store(config, store), customer=customer, resource=resource, match=match)
    client = connect_server(config)
    from workers.history.configured_history import open_history
    from workers.operations.erasure.erasing import Erasing
    from workers.operations.erasure.plugin_hooks import PluginHooks
    from workers.operations.erasure.survey import Survey

    survey, hooks = Survey(config, client, open_history(config, client), subject), PluginHooks(config)
    with output.progress("looking for it", survey.size) as bar:
        found = survey.run(bar.advance)
    erasing = Erasing(survey, hooks)
    if not json_:
        _show_found(subject, found, hooks.names, erasing.unfinished)
    if found.has_open and not open_too:
        many = counted(len(found.open) + len(found.spooled), "event")
        output.error(f"{many} of them open: wait until they have ended, or end and erase them with --open")
        raise click.exceptions.Exit(1)
    if dry_run:
        if json_:
            places = {"places": found.counts, "plugins": hooks.names}
            output.as_json({**places, "damaged": found.damaged, "by_hand": found.by_hand})
        return
    output.confirm(f"erase this for good ({subject.words})", yes=yes)
    trail = AuditTrail(client)
    entry = trail.begin(
        person(), "erase", {"store": subject.store, "by": subject.words}, count=found.counts.total() or None
    )
    with output.progress("erasing", STEPS) as bar:
        done = erasing.run(person(), open_too=open_too, step=bar.next_step)
    trail.end(entry, f"receipt {done.id}")
    output.as_json(done) if json_ else _show(done)
    if done.missed:
        output.error(f"{counted(len(done.missed), 'event')} could not be erased; the receipt names them")
        raise click.exceptions.Exit(1)


def _show_found(subject: Subject, found: PersonalData, plugins: list[str], unfinished: Receipt | None) -> None:
    output.line(f"{subject.words} {subject.value} of {subject.store}")
    if unfinished:
        output.line(f"goes on with the erasure that {unfinished.who} began at {unfinished.began}")
    shown = [name for name in PLACES if found.counts[name]]
    for name in shown:
        output.field(name, f"{found.counts[name]:,}", indent=2, wide=22)
    if not shown:
        output.line("nothing is stored")
    if not subject.is_distinctive:
        output.line(
            "the value is too short to be looked for in free text: state, marks and errors of other events are not "
            "searched for it"
        )
    if found.damaged:
        output.line(f"damaged, and cannot be erased: {', '.join(found.damaged)}")
    if plugins:
        output.line(f"plugins that take part: {', '.join(plugins)}")


def _show_receipts(which: str | None, json_: bool) -> None:
    found = Erasures(connect_server(load_config())).receipts()
    if which:
        one = next((one for one in found if one.id.startswith(which)), None)
        if one is None:
            raise NotFound(f"no receipt {which[:64]!r}; `storehooks erase --receipts` lists them")
        output.as_json(one) if json_ else _show(one)
        return
    rows = [{"id": one.id, "store": one.store, "by": one.by, "who": one.who, "ended": one.ended} for one in found]
    RECEIPTS.show(list(map(asdict, found)) if json_ else rows, json_=json_)
    if not json_:
        output.next_command(*(f"storehooks erase --receipt {one.id}  what was erased" for one in found[:1]))


def _show(receipt: Receipt) -> None:
    output.line(output.text(f"receipt {receipt.id}", "bold"))
    for name in ("store", "by", "subject", "salt", "who", "began", "ended"):
        output.field(name, getattr(receipt, name), indent=2, wide=22)
    for name, many in receipt.places.items():
        output.field(name, f"{many:,}", indent=2, wide=22)
    for name, answer in receipt.plugins.items():
        output.field(f"plugin {name}", answer, indent=2, wide=22)
    for line in receipt.files:
        output.line(line, indent=2)
    for line in receipt.missed:
        output.warn(f"not erased: {line}")
    for line in receipt.left:
        output.warn(f"left: {line}")
    output.field("hash", receipt.hash, indent=2, wide=22)
    output.next_command(f"storehooks erase --receipt {receipt.id}  show this again")
