"""Which fields differ between two events of one resource, as a page shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from receiver.config import Config, load
from workers.console.field_changes import MAX_CHANGES, FieldChange, field_changes
from workers.console.payload_tree import PersonalFields

PERSONAL = PersonalFields(["email", "customer"])


def changes(before: Any, after: Any, path: str = "data") -> list[FieldChange]:
    bodies = [json.dumps({"data": one, "sent": number}).encode() for number, one in enumerate((before, after))]
    return field_changes(*bodies, PERSONAL, path)[0]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"id": 1}, {"id": 1}, []),
        ({"total": "1"}, {"total": "2"}, [("total", "1", "2")]),
        ({"total": 1}, {"total": 1.0}, [("total", "1", "1.0")]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, [("a.b.1", "2", "3")]),
        ({"note": "x"}, {}, [("note", "x", "")]),
        ({}, {"lines": [{"sku": "A"}]}, [("lines.0.sku", "", "A")]),
        ({"lines": []}, {"lines": None}, [("lines", "[]", "null")]),
    ],
)
def test_fields_that_differ_are_listed(before: Any, after: Any, expected: list[tuple[str, str, str]]) -> None:
    assert [(one.path, one.before, one.after) for one in changes(before, after)] == expected


def test_a_list_in_the_config_replaces_the_default(tmp_path: Path) -> None:
    """As docs/operating/console.md says for a scheme of your own."""
    file = tmp_path / "config.toml"
    file.write_text('[console]\npersonal = ["kunde"]\n')
    own, default = (PersonalFields(one.console.personal) for one in (load(file, {}), Config()))
    assert [(one.has(["kunde"]), one.has(["email"])) for one in (own, default)] == [(True, False), (False, True)]


def test_personal_fields_are_named_and_not_shown() -> None:
    before, after = (
        {"email": "ada@example.org", "customer": {"x": "Ada"}},
        {"email": "a@example.org", "customer": {"x": "B"}},
    )
    assert changes(before, after) == [FieldChange("customer.x", None, None), FieldChange("email", None, None)]


def test_what_is_around_the_data_is_not_compared() -> None:
    assert changes({"id": 1}, {"id": 1}, path="data") == []
    assert [one.path for one in changes({"id": 1}, {"id": 1}, path="")] == ["sent"]
    assert [one.path for one in changes({"id": 1}, {"id": 1}, path="no.such")] == ["sent"]


def test_the_number_of_changes_is_limited() -> None:
    bodies = [json.dumps({f"f{n}": value for n in range(900)}).encode() for value in (1, 2)]
    found, more, is_whole = field_changes(*bodies, PERSONAL, "")
    assert (len(found), more, is_whole) == (MAX_CHANGES, 200 - MAX_CHANGES, False), (
        "a tree has the first 200 of an object"
    )


@pytest.mark.parametrize("body", [b"", b"\xff", b"[" * 5_000])
def test_a_body_that_cannot_be_read_has_no_changes(body: bytes) -> None:
    assert field_changes(body, b'{"a": 1}', PERSONAL, "") == ([], 0, False)


@pytest.mark.parametrize("rest", [{"note": "x" * 600}, {"lines": [{"n": n} for n in range(300)]}])
def test_it_says_whether_all_was_compared(rest: dict[str, Any]) -> None:
    body = json.dumps({"id": 1, **rest}).encode()
    assert field_changes(body, body, PERSONAL, "") == ([], 0, False)
    assert field_changes(b'{"id": 1}', b'{"id": 1}', PERSONAL, "") == ([], 0, True)


def test_all_below_a_personal_field_is_personal_also_if_the_data_begins_there() -> None:
    bodies = [json.dumps({"customer": {"data": {"x": name}}}).encode() for name in ("Ada", "B")]
    assert field_changes(*bodies, PERSONAL, "customer.data")[0] == [FieldChange("x", None, None)]
