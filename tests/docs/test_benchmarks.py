"""The evaluation of the benchmarks: spread, outcomes, tables, and that every target is included."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks import console_pages, load, performance_page, tables
from benchmarks.__main__ import COMPARISONS, arguments
from benchmarks.comparison import select, targets_of
from benchmarks.evaluation import Figures, evaluate, ratios, spread
from benchmarks.targets import FLAT, TARGETS, Target
from tests.support.programs import ROOT

GOALS = {
    ("ingest", "naive"): (8.5, 10),
    ("ingest", "adnanh"): (1.6, 2),
    ("ingest", "fastapi"): (2.5, 5),
    ("p99", "naive"): (0.5, 0.3),
    ("steady", "naive"): (4.5, 6),
    ("links TLS", "TCP"): (0.8, 0.95),
    ("links replica", "TCP"): (0.8, 0.95),
    ("judging", "standard library"): (1.2, 1.0),
    ("workers", "rq simple"): (15, 40),
    ("workers", "celery"): (5, 15),
    ("workers", "dramatiq"): (2, 5),
    ("workers", "huey"): (1.2, 3),
    ("order", "not ordered"): (0.6, 0.8),
    ("order", "one child process"): (0.8, 1.0),
    ("latency", "naive"): (0.4, 0.2),
    ("fanout", "enqueue_many"): (7, 10),
    ("memory", "naive"): (0.4, 0.25),
    ("growth ingest", "few"): (1.3, FLAT),
    ("growth claim", "few"): (1.3, FLAT),
    ("growth page", "few"): (1.3, FLAT),
    ("moved", "at most"): (1, 0.95),
    ("moving rate", "not moving"): (0.95, 0.99),
    ("moving runs", "not moving"): (0.95, 0.99),
    ("moving maximum", "not moving"): (0.9, 0.95),
    ("two", "one"): (1.7, 1.95),
}
FASTER = Target("ours", "workers", "rate", "us", "them", "more", 2, 4)
SMALLER = Target("ours", "memory", "bytes", "us", "them", "less", 0.5, 0.25)


def measured(ours: list[float], theirs: list[float], figure: str = "rate") -> dict[str, Figures]:
    return {"us": {figure: ours}, "them": {figure: theirs}}


def test_every_target_has_its_goal_and_stretch_goal() -> None:
    def key(target: Target) -> tuple[str, str]:
        name = target.comparison
        parts = {"growth": target.figure, "moving": target.figure, "links": target.ours}
        return f"{name} {parts[name]}" if name in parts else name, target.theirs

    assert {key(target): (target.target, target.stretch) for target in TARGETS} == GOALS


def test_every_target_belongs_to_a_comparison_with_its_systems() -> None:
    comparisons = {comparison.name: comparison for comparison in COMPARISONS}
    for target in TARGETS:
        assert target.comparison in comparisons
        systems = comparisons[target.comparison].systems
        if systems:  # the ingest comparison sets them when it starts: it checks first which peers are installed
            assert {target.ours, target.theirs} <= set(systems)


def test_a_stretch_goal_is_harder_than_the_goal() -> None:
    assert all((target.stretch > target.target) == (target.better == "more") for target in TARGETS)


@pytest.mark.parametrize(
    ("ours", "outcome"),
    [([410, 400, 405], "stretch met"), ([210, 200, 205], "met"), ([190, 199, 195], "falls short")],
)
def test_a_target_is_met_or_falls_short(ours: list[float], outcome: str) -> None:
    assert evaluate(FASTER, measured(ours, [100, 100, 100])).outcome == outcome


def test_a_target_where_less_is_better() -> None:
    assert evaluate(SMALLER, measured([40, 40, 40], [100, 100, 100], "bytes")).outcome == "met"
    assert evaluate(SMALLER, measured([60, 60, 60], [100, 100, 100], "bytes")).outcome == "falls short"
    assert evaluate(SMALLER, measured([20, 20, 20], [100, 100, 100], "bytes")).outcome == "stretch met"


def test_ratios_that_spread_too_widely_are_too_noisy() -> None:
    evaluation = evaluate(FASTER, measured([300, 900, 300, 900], [100, 100, 100, 100]))
    assert (evaluation.outcome, evaluation.conclusive) == ("too noisy", False)
    assert evaluation.spread > FASTER.max_spread


def test_a_slow_round_does_not_change_the_ratio() -> None:
    evaluation = evaluate(FASTER, measured([300, 150, 30], [100, 50, 10]))
    assert (evaluation.outcome, evaluation.ratio, evaluation.spread) == ("met", 3, 0)


def test_one_bad_round_of_five_does_not_widen_the_spread() -> None:
    assert spread([100, 101, 99, 100, 10]) < 0.05
    assert spread([100, 101]) == float("inf")


def test_a_peer_that_is_not_installed_is_skipped() -> None:
    evaluation = evaluate(FASTER, {"us": {"rate": [1, 2, 3]}})
    assert (evaluation.outcome, evaluation.conclusive) == ("skipped", True)


def test_there_is_one_ratio_for_each_round() -> None:
    assert ratios([10, 30], [5, 10]) == [2, 3]


def test_a_missed_target_is_shown_as_falling_short() -> None:
    evaluations = [
        evaluate(FASTER, measured([190, 190, 190], [100, 100, 100])),
        evaluate(FASTER, measured([500, 500, 500], [100, 100, 100])),
        evaluate(FASTER, {}),
    ]
    lines = [tables.HEAD, *map(tables.evaluation_line, evaluations)]
    assert "| ours | 190 | 100 | 1.90 x | 0% | ≥ 2 x | ≥ 4 x | falls short |" in tables.markdown(lines).splitlines()
    assert [line.split()[-1] for line in tables.plain(lines).splitlines()[1:]] == ["short", "met", "skipped"]
    assert tables.summary(evaluations) == "1 of 3 targets met, 1 with the stretch goal; falls short: 1; skipped: 1"


def test_systems_are_shown_with_median_and_spread() -> None:
    lines = tables.system_lines({"us": {"rate": [90, 100, 110]}}, {"us, tuned": {"rate": 12.34}})
    assert lines == [("", "rate"), ("us", "100 ±5%"), ("us, tuned", "12.3")]


def test_comparisons_are_selected_by_name() -> None:
    assert [comparison.name for comparison in select(COMPARISONS, ["memory"])] == ["memory"]
    assert select(COMPARISONS, []) == list(COMPARISONS)
    assert targets_of("memory")


def test_requests_are_signed_distinct_and_about_two_kibibytes() -> None:
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
def test_complete_and_partial_answers_are_parsed(text: bytes, found: tuple[int, int, bool]) -> None:
    assert load.read_answer(text) == found


def test_the_peers_packages_are_not_in_the_products_environment() -> None:
    locked = (ROOT / "requirements" / "dev.txt").read_text()
    assert not [
        name for name in ("celery", "dramatiq", "huey", "arq", "fastapi", "matplotlib") if f"\n{name}==" in locked
    ]


def test_figures_are_written_between_the_markers_of_the_page() -> None:
    page = performance_page.PAGE.read_text()
    assert page.count(performance_page.BEGIN) == page.count(performance_page.END) == 1
    again = performance_page.with_figures(performance_page.with_figures(page, "first"), "second")
    assert again == performance_page.with_figures(page, "second")
    assert "first" not in again.partition(performance_page.BEGIN)[2].partition(performance_page.END)[0]
    assert again.partition(performance_page.BEGIN)[0] == page.partition(performance_page.BEGIN)[0]
    assert again.partition(performance_page.END)[2] == page.partition(performance_page.END)[2]


def test_the_page_shows_every_target_and_its_plots_exist() -> None:
    page = performance_page.PAGE.read_text()
    assert [target.title for target in TARGETS if target.title not in page] == []
    named = re.findall(r"\]\((performance/[^)]+\.png)\)", page)
    assert named
    assert [name for name in named if not (performance_page.PAGE.parent / name).is_file()] == []


def test_the_commands_and_options_on_the_page_exist() -> None:
    page, makefile = performance_page.PAGE.read_text(), (ROOT / "Makefile").read_text()
    help_text = arguments().format_help() + console_pages.arguments().format_help()
    assert {name for name in re.findall(r"make (bench[a-z-]*)", page) if f"\n{name}:" not in makefile} == set()
    options = set(re.findall(r"(?<=[ =\"`])--[a-z]+", page))
    assert options >= {"--docs", "--rows", "--runs"}
    assert {option for option in options if option not in help_text} == set()
