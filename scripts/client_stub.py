"""Generates workers/storeapi/groups.pyi from the catalogue: a typed method with a docstring for each operation.

`make reference` writes it; a test checks that it is current.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

from receiver.contract.records import KINDS
from workers.storeapi.catalogue import Catalogue, Operation, bundled_catalogue

ROOT = Path(__file__).parent.parent
STUB = ROOT / "workers/storeapi/groups.pyi"
WIDTH = 120
IN_SIGNATURE = ("Required: ", "Optional: ")
"""Lines of a description that an editor shows as the keywords without and with a default."""
TYPES = {
    "text": "str",
    "amount": "Decimal | str",
    "integer": "int",
    "number": "Decimal | int",
    "flag": "bool",
    "object": "Mapping[str, Any]",
    "list": "Rows",
}
HEAD = '''"""The types of groups.py. Written by `make reference` from the catalogue; do not edit it."""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Protocol

from receiver.contract.records import Customer, Order, Product, Record, Subscription
from workers.storeapi.pages import Pages

Id = int | str
Rows = Iterable[Mapping[str, Any]]

class OperationCaller(Protocol):
    def call(self, group: str, name: str, /, *path: Id, **fields: Any) -> Any: ...
    def has_operation(self, group: str, name: str) -> bool: ...

class OperationGroup:
    name: str
    def __init__(self, client: OperationCaller) -> None: ...
    def __getattr__(self, operation: str) -> Callable[..., Any]: ...
'''


def stub(catalogue: Catalogue) -> str:
    """The text of groups.pyi."""
    groups = dict.fromkeys(operation.group for operation in catalogue)
    return HEAD + "".join(_class(catalogue, group) for group in groups)


def _class(catalogue: Catalogue, group: str) -> str:
    methods = "".join(_method(catalogue, one) for one in catalogue if one.group == group)
    return f'\nclass {group.capitalize()}(OperationGroup):\n    """The operations of {group}."""\n\n{methods}'


def _method(catalogue: Catalogue, operation: Operation) -> str:
    first, *rest = operation.description.splitlines()
    rest = [line for line in rest if not line.startswith(IN_SIGNATURE)]
    lines = [f'"""{first}', "", *rest, '"""'] if rest else [f'"""{first}"""']
    doc = indent("\n".join(lines) + "\n", " " * 8)
    given = ["self", *(f"{name}: Id" for name in operation.parameters), "*", *_keywords(catalogue, operation)]
    head = f"    def {operation.name}({', '.join(given)}) -> {_returned(operation)}:\n"
    if len(head) > WIDTH:
        lines = "".join(f"        {one},\n" for one in given)
        head = f"    def {operation.name}(\n{lines}    ) -> {_returned(operation)}:\n"
    return head + doc


def _keywords(catalogue: Catalogue, operation: Operation) -> list[str]:
    """The keywords of a call: required fields, then those that may be left out."""
    types = catalogue.types.get(operation.group, {})

    def typed(name: str) -> str:
        if name == operation.rows:
            return f"{name}: Rows"
        return f"{name}: Id" if name.endswith("_id") else f"{name}: {TYPES[types.get(name, 'text')]}"

    required = [operation.rows] if operation.rows else list(operation.required)
    others = [typed(name) + " = ..." for name in (*operation.query, *operation.optional)]
    key = ["idempotency_key: str = ..."] if operation.idempotency_key else []
    return [*map(typed, required), *others, *key, "timeout: float | None = ...", "**more: Any"]


def _returned(operation: Operation) -> str:
    record = KINDS[operation.record].__name__ if operation.record in KINDS else "Record"
    return {"one": record, "many": f"Pages[{record}]", "none": "None"}[operation.returns]


if __name__ == "__main__":
    STUB.write_text(stub(bundled_catalogue()), encoding="utf-8")
    print(f"wrote {STUB.relative_to(ROOT)}")
