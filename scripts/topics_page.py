"""Generates docs/topics.md from the code: the records with their fields, and every topic with its names at stores.

`make reference` writes the page; a test checks that it is current.
"""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from pathlib import Path

from receiver.contract.records import Customer, Order, OrderLine, Product, Record
from receiver.contract.signing.presets import PRESETS
from workers.storeapi.sandbox.shop import TOPICS

PAGE = Path(__file__).parent.parent / "docs/topics.md"
RECORDS: dict[str, type[Record]] = {"order": Order, "product": Product, "customer": Customer}
HEAD = """\
# Topics and records

Generated from the code by `make reference`. A topic is `resource.action`. A handler names topics or patterns
(`order.*`), and gets the events of every store, whatever that store calls them. A store's name that is not in its
preset's list becomes a topic by a rule: `orders/create`, `ORDER_CREATED` and `OrderCreated` are `order.created`.
`storehooks topics` lists what your stores really send, and the topic that each name became.
"""
RECORD_HEAD = """\
## Records

The first word of a topic decides what `event.record` is. Its fields are the same for every store. For other topics it
is a `Record` with `id` alone; `event.data` has the store's own JSON. A field that the store does not send raises
`RecordError`; `record.get("field")` reads any field by the store's own name. [Record
fields](schemes.md#record-fields) says which presets send which fields, and how to set them for a store of your own.
"""
TOPICS_HEAD = """\
## Topics

The second column has the store's own name for each preset that lists it. The sandbox store sends the topics in
**bold**, and `storehooks send TOPIC` sends any of them.
"""


def page() -> str:
    records = [_record(found) for found in (Order, OrderLine, Product, Customer)]
    known = _names_by_topic()
    tables = [
        _table(f"{kind.capitalize()}s", known.pop(kind), f"`event.record` is of the type `{found.__name__}`.")
        for kind, found in RECORDS.items()
    ]
    others = {topic: names for of_kind in known.values() for topic, names in of_kind.items()}
    tables.append(_table("Others", others, "`event.record` is of the type `Record`, with `id` alone."))
    return "\n".join([HEAD, RECORD_HEAD, *records, TOPICS_HEAD, *tables])


def _record(found: type[Record]) -> str:
    fields = [(name, value) for owner in reversed(found.__mro__) for name, value in vars(owner).items()]
    rows = [
        f"| `{name}` | `{_type(value)}` | {inspect.getdoc(value)} |"
        for name, value in fields
        if isinstance(value, property)
    ]
    where = {"OrderLine": "one item of `order.lines`", "Customer": "a customer, and `order.customer`"}
    said = where.get(found.__name__, f"a {found.kind}" if found.kind != "order" else "an order")
    return f"### `{found.__name__}`: {said}\n\n| Field | Type | |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _type(value: property) -> str:
    assert value.fget
    return str(inspect.signature(value.fget).return_annotation).replace("|", "\\|")


def _names_by_topic() -> dict[str, dict[str, dict[str, list[str]]]]:
    """By resource and topic, the names of each preset."""
    found: dict[str, dict[str, dict[str, list[str]]]] = defaultdict(dict)
    for topic in TOPICS:
        found[topic.partition(".")[0]][topic] = {}
    for preset, scheme in PRESETS.items():
        for theirs, topic in scheme.topics.items():
            names = found[topic.partition(".")[0]].setdefault(topic, {})
            names.setdefault(preset, []).append(theirs)
    return found


def _table(title: str, topics: dict[str, dict[str, list[str]]], note: str) -> str:
    rows = []
    for topic, presets in sorted(topics.items(), key=lambda item: (item[0] not in TOPICS, item[0])):
        shown = f"**`{topic}`**" if topic in TOPICS else f"`{topic}`"
        names = [f"{preset} {', '.join(f'`{name}`' for name in theirs)}" for preset, theirs in presets.items()]
        rows.append(f"| {shown} | {'; '.join(names)} |")
    return f"### {title}\n\n{note}\n\n| Topic | Store's name |\n|---|---|\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}", file=sys.stderr)
