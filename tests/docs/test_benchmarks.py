"""The benchmarks' own judgement: spread, what is concluded, how it is shown, and that no target is left out."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import docs, load, table
from benchmarks.__main__ import BOUTS, arguments
from benchmarks.bout import pick, targets_of
from benchmarks.targets import FLAT, TARGETS, Target
from benchmarks.verdict import Figures, judge, ratios, spread
from tests.support.programs import ROOT

PROMISED = {
    ("ingest", "naive"): (5, 10),
    ("ingest", "adnanh"): (1.1, 2),
    ("ingest", "fastapi"): (2.5, 5),
    ("p99", "naive"): (0.3, 0.1),
    ("workers", "rq simple"): (15, 40),
    ("workers", "celery"): (5, 15),
    ("workers", "dramatiq"): (2, 5),
    ("workers", "huey"): (1.2, 3),
    ("latency", "naive"): (0.4, 0.2),
    ("fanout", "enqueue_many"): (7, 10),
    ("memory", "naive"): (0.4, 0.25),
    ("growth ingest", "few"): (1.3, FLAT),
    ("growth claim", "few"): (1.3, FLAT),
    ("growth page", "few"): (1.3, FLAT),
    ("two", "one"): (1.7, 1.95),
}
FASTER = Target("ours", "workers", "rate", "us", "them", "more", 2, 4)
SMALLER = Target("ours", "memory", "bytes", "us", "them", "less", 0.5, 0.25)


def measured(ours: list[float], theirs: list[float], figure: str = "rate") -> dict[str, Figures]:
    return {"us": {figure: ours}, "them": {figure: theirs}}


def test_every_promised_line_is_judged_by_its_own_numbers() -> None:
    found = {
        (one.bout if one.bout != "growth" else f"growth {one.figure}", one.theirs): (one.target, one.stretch)
        for one in TARGETS
    }
    assert found == PROMISED


def test_every_target_belongs_to_a_bout_that_has_its_systems() -> None:
    bouts = {one.name: one for one in BOUTS}
    for target in TARGETS:
        assert target.bout in bouts
        if systems := bouts[target.bout].systems:  # the bout of ingest asks first which peers are installed
            assert {target.ours, target.theirs} <= set(systems)


def test_more_is_better_or_less_is() -> None:
    assert all((one.stretch > one.target) == (one.better == "more") for one in TARGETS)


@pytest.mark.parametrize(
    ("ours", "word"),
    [([410, 400, 405], "stretch met"), ([210, 200, 205], "met"), ([190, 199, 195], "falls short")],
)
def test_a_ratio_is_met_or_falls_short(ours: list[float], word: str) -> None:
    assert judge(FASTER, measured(ours, [100, 100, 100])).word == word


def test_less_is_met_from_the_other_side() -> None:
    assert judge(SMALLER, measured([40, 40, 40], [100, 100, 100], "bytes")).word == "met"
    assert judge(SMALLER, measured([60, 60, 60], [100, 100, 100], "bytes")).word == "falls short"
    assert judge(SMALLER, measured([20, 20, 20], [100, 100, 100], "bytes")).word == "stretch met"


def test_nothing_is_concluded_from_rounds_that_disagree() -> None:
    verdict = judge(FASTER, measured([300, 900, 300, 900], [100, 100, 100, 100]))
    assert (verdict.word, verdict.concluded) == ("too noisy", False)
    assert verdict.spread > FASTER.widest


def test_a_machine_that_slows_down_for_a_round_slows_both_sides_of_it() -> None:
    verdict = judge(FASTER, measured([300, 150, 30], [100, 50, 10]))
    assert (verdict.word, verdict.ratio, verdict.spread) == ("met", 3, 0)


def test_one_bad_round_of_five_does_not_spoil_the_others() -> None:
    assert spread([100, 101, 99, 100, 10]) < 0.05
    assert spread([100, 101]) == float("inf")


def test_a_peer_that_is_not_installed_is_skipped_and_not_judged() -> None:
    verdict = judge(FASTER, {"us": {"rate": [1, 2, 3]}})
    assert (verdict.word, verdict.concluded) == ("skipped", True)


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios([10, 30], [5, 10]) == [2, 3]


def test_what_falls_short_is_shown_as_falling_short() -> None:
    verdicts = [
        judge(FASTER, measured([190, 190, 190], [100, 100, 100])),
        judge(FASTER, measured([500, 500, 500], [100, 100, 100])),
        judge(FASTER, {}),
    ]
    lines = [table.HEAD, *map(table.verdict_line, verdicts)]
    assert "| ours | 190 | 100 | 1.90 x | 0% | ≥ 2 x | ≥ 4 x | falls short |" in table.markdown(lines).splitlines()
    assert [line.split()[-1] for line in table.plain(lines).splitlines()[1:]] == ["short", "met", "skipped"]
    assert table.summary(verdicts) == "1 of 3 targets met, 1 of them the stretch; falls short 1; skipped 1"


def test_each_system_is_shown_with_median_and_spread() -> None:
    lines = table.system_lines({"us": {"rate": [90, 100, 110]}}, {"us, otherwise": {"rate": 12.34}})
    assert lines == [("", "rate"), ("us", "100 ±5%"), ("us, otherwise", "12.3")]


def test_rows_are_picked_by_name() -> None:
    assert [one.name for one in pick(BOUTS, ["memory"])] == ["memory"]
    assert pick(BOUTS, []) == list(BOUTS)
    assert targets_of("memory")


def test_requests_are_genuine_distinct_and_about_two_kibibytes() -> None:
    ids, prepared = load.requests("/webhooks/bench", 3)
    assert len(set(ids)) == 3
    body = prepared[0].partition(b"\r\n\r\n")[2]
    assert abs(len(body) - 2048) < 64
    assert json.loads(body)["type"] == "order.created"
    assert load.sign(ids[0], 1, body) != load.sign(ids[1], 1, body)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Le", (0, 0, False)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", (200, 40, False)),
        (b"HTTP/1.1 503 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", (503, 57, True)),
    ],
)
def test_an_answer_is_read_however_it_comes(text: bytes, found: tuple[int, int, bool]) -> None:
    assert load.read_answer(text) == found


def test_what_is_compared_with_stays_out_of_the_products_environment() -> None:
    locked = (ROOT / "requirements" / "dev.txt").read_text()
    assert not [
        name for name in ("celery", "dramatiq", "huey", "arq", "fastapi", "matplotlib") if f"\n{name}==" in locked
    ]


def test_figures_go_between_the_marks_of_the_page_and_nowhere_else() -> None:
    page = docs.PAGE.read_text()
    assert page.count(docs.BEGIN) == page.count(docs.END) == 1
    again = docs.put(docs.put(page, "first"), "second")
    assert again == docs.put(page, "second")
    assert "first" not in again.partition(docs.BEGIN)[2].partition(docs.END)[0]
    assert again.partition(docs.BEGIN)[0] == page.partition(docs.BEGIN)[0]
    assert again.partition(docs.END)[2] == page.partition(docs.END)[2]


def test_the_page_shows_every_target_and_every_plot_it_names() -> None:
    page = docs.PAGE.read_text()
    assert [one.title for one in TARGETS if one.title not in page] == []
    named = re.findall(r"\]\((performance/[^)]+\.png)\)", page)
    assert named
    assert [name for name in named if not (docs.PAGE.parent / name).is_file()] == []


def test_what_the_page_says_to_type_is_there() -> None:
    page, makefile = docs.PAGE.read_text(), (ROOT / "Makefile").read_text()
    help_text = arguments().format_help()
    assert {name for name in re.findall(r"make (bench[a-z-]*)", page) if f"\n{name}:" not in makefile} == set()
    options = set(re.findall(r"(?<=[ =\"`])--[a-z]+", page))
    assert options >= {"--docs", "--rows", "--runs"}
    assert {one for one in options if one not in help_text} == set()
