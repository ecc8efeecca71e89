"""Failure groups: messages that differ only in their variables have one pattern, other messages do not."""

from __future__ import annotations

import time

import pytest

from receiver.contract.failure_groups import group_id, message_pattern

SAME = [
    ("no such customer 17", "no such customer 18,204"),
    ("order A-1001 has no lines", "order B-7/2 has no lines"),
    ("unknown product 'Red Shoe'", "unknown product 'Blue Shoe, Size M'"),
    ('unknown SKU "Red"', 'unknown SKU "BLUE-SOCK"'),
    ("no customer 'Anna Miller'", "no customer 'Bob'"),
    ('ERP answered {"code": 17, "id": "a"}', 'ERP answered {"code": 17, "id": "bcd"}'),
    ('ERP answered {"error": "no stock of 17 items"}', 'ERP answered {"error": "no stock of 3 items"}'),
    ("discount code SAVE20 is unknown", "discount code WINTER5 is unknown"),
    ("error: 3 lines are invalid", "error: 12 lines are invalid"),
    ("error 1234567 of order", "error 7654321 of order"),
    ("Kunde „Müller“ fehlt", "Kunde „Meier“ fehlt"),
    ("client « Dupont » introuvable", "client « Durand » introuvable"),
    ("顧客123が見つかりません", "顧客4567が見つかりません"),
    ("顧客「田中」が見つかりません", "顧客「鈴木」が見つかりません"),
    ("заказ 17 не найден", "заказ 18 не найден"),
    ("cannot mail anna@example.com", "cannot mail bob.miller+shop@mail.example"),
    ("GET https://erp.example/customers/anna failed", "GET https://erp.example/customers/bob?x=y failed"),
    ("no such file: /srv/exports/north", "no such file: /srv/exports/south/today"),
    ("lock held by 3f2b8c1e-0d7a-4c55-9a3e-8d1f00aa11bb", "lock held by 00000000-1111-4222-8333-444444444444"),
    ("object at 0x7f3a2b1c5d90 is closed", "object at 0x55d0c8a1b2f0 is closed"),
    ("due 2026-11-15T01:41:26.000Z has passed", "due 2025-01-02T11:00:00+02:00 has passed"),
    ("not before Mon, 12 Jan 2026 10:00:00 GMT", "not before Fri, 3 Apr 2026 09:15:42 GMT"),
    ("not before January 12", "not before May 3"),
    ("missing skus: ['A-1', 'B-2']", "missing skus: ['C-3']"),
    ("missing skus: A1, B2 and C3", "missing skus: D4, E5 and F6"),
    ("Expecting value: line 1 column 1 (char 0)", "Expecting value: line 3 column 17 (char 204)"),
    ("invalid literal for int() with base 10: 'abc'", "invalid literal for int() with base 10: 'xy'"),
    (
        "Client error '404 Not Found' for url 'https://erp.example/c/17'\nFor more information check: https://x.example/404",
        "Client error '404 Not Found' for url 'https://erp.example/c/18'\nFor more information check: https://x.example/404",
    ),
    (
        'duplicate key value violates unique constraint "c_1"\nDETAIL:  Key (name)=(Anna Miller) already exists.',
        'duplicate key value violates unique constraint "c_1"\nDETAIL:  Key (name)=(Bob) already exists.',
    ),
    (
        "HTTPSConnectionPool(host='erp.example', port=443): Max retries exceeded with url: /c/17 (Caused by "
        "NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x7f3a>: Failed'))",
        "HTTPSConnectionPool(host='erp.example', port=443): Max retries exceeded with url: /c/18 (Caused by "
        "NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x55d0>: Failed'))",
    ),
    ("[Errno 2] No such file or directory: '/tmp/a'", "[Errno 2] No such file or directory: '/tmp/b c'"),
    ("b'\\x00abc' is not text", "b'other' is not text"),
]
DIFFERENT = [
    ("no such customer", "the ERP refuses our key"),
    ("no such customer 17", "no such order 17"),
    ("Client error '404 Not Found' for url 'https://e/1'", "Client error '401 Unauthorized' for url 'https://e/1'"),
    ("orders.get: answered 422, no stock", "orders.get: answered 409, no stock"),
    ("HTTP 500", "HTTP 503"),
    ('{"error":"no such customer"}', '{"error":"your key is refused"}'),
    ('{"error": "Not Found", "id": 3}', '{"error": "Access Denied", "id": 3}'),
    ('ERP says "no such customer"', 'ERP says "your key is refused"'),
    ("ERP says 'Access denied'", "ERP says 'Invalid API key'"),
    ("le serveur dit « carte refusée »", "le serveur dit « client inconnu »"),
    ("field 'vat' is missing", "field 'street' is missing"),
    ("missing field: 'vat'", "missing field: 'street'"),
    ("ERP error E1001", "ERP error E2044"),
    ("ERP error 17", "ERP error 18"),
    ('{"code":"E1001","id":"bcd"}', '{"code":"E2044","id":"bcd"}'),
    ("SQLSTATE[23000]: failed", "SQLSTATE[42P01]: failed"),
    ("[Errno 111] x", "[Errno 113] x"),
    ("error code: 17", "error code: 18"),
    ("the customer's order can't be paid", "the customer's order can't be shipped"),
    ("顧客123が見つかりません", "顧客123は無効です"),
    ("заказ 17 не найден", "заказ 17 не оплачен"),
    ("", "no reason given"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_a_message_with_other_variables_is_the_same_cause(one: str, other: str) -> None:
    assert message_pattern(one) == message_pattern(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_another_message_is_another_cause(one: str, other: str) -> None:
    assert message_pattern(one) != message_pattern(other)


def test_a_pattern_is_readable_and_has_no_variables() -> None:
    assert message_pattern("order 17 of anna@example.com has no 'vat id'") == "order * of * has no vat id"


def test_names_of_fields_and_code_are_part_of_the_cause_where_the_type_quotes_them() -> None:
    assert group_id("h", "KeyError", "'vat_id'") != group_id("h", "KeyError", "'email'")
    assert group_id("h", "KeyError", "'order-17'") == group_id("h", "KeyError", "'order-18'")
    assert group_id("h", "ValueError", "unknown: 'red'") == group_id("h", "ValueError", "unknown: 'blue'")
    assert group_id("h", "KeyError", "'VatId'") != group_id("h", "KeyError", "'Email'")


def test_handler_type_and_function_are_part_of_the_cause() -> None:
    group = group_id("a", "Fail", "x", function="f")
    others = {group_id("b", "Fail", "x", function="f"), group_id("a", "Retry", "x", function="f")}
    assert group not in others | {group_id("a", "Fail", "x", function="g")}


def test_values_of_the_event_are_variables_wherever_the_message_has_them() -> None:
    one = group_id("h", "Fail", "orders.get at north: no ACME there", known=("north", "ACME", ""))
    assert one == group_id("h", "Fail", "orders.get at south: no RED there", known=("south", "RED", ""))


@pytest.mark.parametrize(
    "message",
    [
        "no connection to 127.0.0.1:8080",
        "due 2026-11-15 has passed",
        "timed out after 3. Try later",
        "[Errno 1] x",
        "HTTP 500",
        "error code: 17",
    ],
)
def test_a_number_that_is_an_id_by_chance_does_not_split_a_group(message: str) -> None:
    ids = ("0", "1", "2", "3", "11", "17", "127", "500", "2026", "8080", "4711000000001")
    assert {message_pattern(message, known=("north", one)) for one in ids} == {message_pattern(message)}


@pytest.mark.parametrize("length", [4, 5, 6, 13])
@pytest.mark.parametrize(
    "message",
    ["no order {}", "no order {}.", "order-{}: failed", "order #{} of 3", "'{}'", "error {}", "return code {}", "[{}]"],
)
def test_an_id_of_digits_is_a_variable_also_where_a_code_is_usual(message: str, length: int) -> None:
    ids = ("1" * length, "2" * length)
    assert len({message_pattern(message.format(one), known=("north", one)) for one in ids}) == 1


@pytest.mark.parametrize("text", ["'" * 100_000, "/" * 100_000, "a1" * 100_000, "a@" * 100_000, "\ud800 lone"])
def test_no_message_takes_long(text: str) -> None:
    began = time.process_time()
    group_id("h", "Fail", text)
    assert time.process_time() - began < 1


def seconds_of(text: str) -> float:
    """CPU time of one pattern, the least of five."""
    times = []
    for _ in range(5):
        began = time.process_time()
        message_pattern(text, known=("north", "x" * 26))
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.parametrize(
    "part",
    [
        "a",
        "a-",
        "a.",
        "%",
        "„",
        "“",
        "«",
        "\u2018",
        "「",
        "'a",
        "* ",
        "Mon ",
        "error:   ",
        "1,",
        "code:",
        "'a b' ",
        ": 'a'",
    ],
)
def test_the_time_grows_with_the_length_of_a_message_and_not_with_its_square(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("receiver.contract.failure_groups.MAX_LINE", 100_000)
    assert seconds_of(part * (8_000 // len(part))) < 24 * seconds_of(part * (1_000 // len(part)))


def test_a_long_word_before_its_first_digit_is_still_a_variable() -> None:
    word = "a" * 60
    assert message_pattern(f"token {word}7 of {word}@example.com at {'x' * 20}://example") == "token * of * at *"
