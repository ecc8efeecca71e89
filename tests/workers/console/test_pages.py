"""The pages and actions of a console beside a real receiver and worker, with friendly and hostile content."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from receiver.contract.compose import Request, compose
from receiver.inbox import keys
from receiver.inbox.host_refusals import publish_refusals
from receiver.inbox.queries.failures import FailureFilter, FailureQueries
from receiver.inbox.sampling import Sampler
from receiver.spool import Refusal, open_refusals
from tests.support.console import Browser, RunningConsole, plain, running_console
from tests.support.harness import OTHER_SECRET, SECRET, eventually
from workers.console.findings_process import read_findings


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("console"), "web", "worker", "housekeeper") as found:
        yield found


@pytest.fixture(autouse=True)
def broken(console: RunningConsole) -> None:
    console.break_again()


@pytest.fixture(scope="module")
def operator(console: RunningConsole) -> Browser:
    return console.browser().log_in()


def settled(console: RunningConsole, **how: Any) -> str:
    event_id = console.system.deliver(**how)
    console.system.settled(event_id, 30)
    return event_id


def refuse(console: RunningConsole, *, data: Any = None) -> Request:
    """A delivery that is signed with another store's secret, so that it is refused."""
    known = console.config.known_stores["south"]
    request = compose(known, topic="order.created", delivery_id="msg_refused", data=data or {"id": 1}, now=1e9)
    before = console.system.refusals().count()
    assert console.system.post(request, "north").status_code == 401
    eventually(lambda: console.system.refusals().count() > before, what="the refusal is stored")
    return request


def group_of(operator: Browser, error: str) -> str:
    operator.get("/failures")
    found = re.search(rf'href="(/failures/[^"]+)">[^<]*{error}', operator.page)
    assert found, plain(operator.page)
    return found[1]


# Pages


def test_the_overview_counts_and_leads_to_what_it_counts(console: RunningConsole, operator: Browser) -> None:
    settled(console)
    total = console.system.ledger.counters().total
    text = operator.text("/")
    assert f"accepted {total['accepted']} = settled {total['settled']} + open {total['open']} +" in text
    assert 'href="/events?status=settled"' in operator.page
    rows = re.findall(r'href="/events/(\w+)"', operator.get("/events?status=settled&store=north").text)
    assert len(rows) == total["settled"]


def sample(console: RunningConsole, *ages: int) -> None:
    """Write the counters of now as samples of some seconds ago."""
    sampler, now = Sampler(console.system.client), int(time.time())
    for age in ages:
        sampler.write(now - age)


@pytest.mark.parametrize(("span", "step"), [("1h", 60), ("24h", 300), ("7d", 3600)])
def test_charts_and_their_figures_agree(console: RunningConsole, operator: Browser, span: str, step: int) -> None:
    sample(console, 3 * step)
    settled(console)
    sample(console, 0)
    page = operator.get(f"/?range={span}").text
    found = re.search(r'data-series="([^"]+)"', page)
    assert found
    data = json.loads(unescape(found[1]))
    total = console.system.ledger.counters().total
    assert {len(data[name]) for name in ("at", "accepted", "open", "failed")} == {len(data["at"])}
    assert data["failed"][-1] == total["failed"]
    assert f'aria-current="true">{ {"1h": "1 hour", "24h": "24 hours", "7d": "7 days"}[span] }' in page
    assert "erp.export" in page, "the first version of a handler is a deploy"
    links = re.findall(r'href="(/events\?since=[^"]+)"', page)
    assert operator.get(unescape(links[0])).status_code == 200, "a figure leads to its events"


def test_failures_show_their_trend_and_a_store_its_week(console: RunningConsole, operator: Browser) -> None:
    settled(console, data=console.broken_order())
    path = group_of(operator, "KeyError")
    assert re.search(r'<svg class="trend".*<title>\d+ in the last 24 hours', operator.page)
    assert re.search(r"Last 24 hours \d+ in the last 24 hours", operator.text(path))
    sample(console, 7200, 3600)
    text = operator.text("/stores/north")
    assert operator.page.count('<svg class="band" ') == 7
    assert "UTC: normal," in text


def test_what_doctor_finds_is_on_the_overview_with_a_button(console: RunningConsole, operator: Browser) -> None:
    settled(console, data=console.broken_order())
    operator.get("/handlers")
    operator.press("/handlers/erp.vip/pause")

    def found() -> bool:
        findings = read_findings(console.config.data_dir)
        return findings is not None and any("erp.vip is paused" in one["text"] for one in findings.found)

    eventually(found, 60, what="doctor has seen the pause")
    text = operator.text("/")
    assert "failed for good" in text
    assert 'href="/failures"' in operator.page
    assert "erp.vip is paused; its runs wait" in text
    assert 'action="/handlers/erp.vip/resume"' in operator.page
    operator.press("/handlers/erp.vip/resume")
    assert "handler:erp.vip" not in console.system.administration.paused()


def test_events_are_filtered_and_go_on_by_cursor(console: RunningConsole, operator: Browser) -> None:
    for number in range(60):
        console.system.accept("product.updated", store="south", data={"id": number, "total": str(number)})
    first = operator.get("/events?store=south&topic=product.*").text
    assert len(set(re.findall(r'href="/events/(\w+)"', first))) == 50
    following = re.search(r'href="(/events\?before=[^"]+)">Older events', first)
    assert following
    second = operator.get(following[1].replace("&amp;", "&")).text
    assert len(set(re.findall(r'href="/events/(\w+)"', second))) == 10
    assert "Older events" not in second
    assert len(set(re.findall(r'href="/events/(\w+)"', operator.get("/events?where=total%3E57&store=south").text))) == 2


class LivePage:
    """What the script of a live page does."""

    def __init__(self, operator: Browser, filters: str = "") -> None:
        self.operator, self.shown = operator, operator.get(f"/events?live=on{filters}").text
        found = re.search(r'data-tail="([^"]+)" data-place="([^"]+)"', self.shown)
        assert found, plain(self.shown)
        self.address, self.place = unescape(found[1]), found[2]

    def step(self, rows: str = "") -> dict[str, Any]:
        sign = "&" if "?" in self.address else "?"
        answer = self.operator.get(f"{self.address}{sign}place={self.place}&rows={rows}")
        assert answer.status_code == 200, plain(answer.text)
        found: dict[str, Any] = answer.json()
        self.place = found["place"]
        return found

    def new(self) -> list[str]:
        return [one["event"] for one in self.step()["rows"]]


def test_a_live_page_shows_each_event_once(console: RunningConsole, operator: Browser) -> None:
    before = settled(console)
    live = LivePage(operator)
    assert f"/events/{before}" in live.shown
    assert live.new() == []
    events = [settled(console, data={"id": number}) for number in range(3)]
    assert live.new() == events
    assert live.new() == []
    console.system.accept(store="south")
    (row,) = live.step()["rows"]
    assert (row["store"], row["topic"], row["utc"][-4:]) == ("south", "order.created", " UTC")
    eventually(lambda: live.step(row["at"])["statuses"] == {row["at"]: "settled"}, 20, what="its row is refreshed")


@pytest.mark.full
def test_a_live_page_has_filters(console: RunningConsole, operator: Browser) -> None:
    south = LivePage(operator, "&store=south&topic=order.*")
    failed = LivePage(operator, "&status=failed")
    events = [settled(console, data=console.broken_order()), settled(console, store="south")]
    settled(console, store="south", topic="product.updated")
    assert south.new() == events[1:]
    assert failed.new() == events[:1]
    assert failed.new() == []
    assert "data-tail" not in operator.get("/events?live=on&until=2100-01-01T00:00").text, "no event is after it"


def test_text_of_a_live_page_is_visible(console: RunningConsole, operator: Browser) -> None:
    live = LivePage(operator)
    settled(console, data={"id": "<b>\u202e7\x00"})
    (row,) = live.step()["rows"]
    assert row["resource"] == "<b>[U+202E]7[U+0000]"


def test_an_event_is_found_by_its_delivery(console: RunningConsole, operator: Browser) -> None:
    event_id = settled(console, delivery_id="msg_to_be_found")
    answer = operator.get("/events?find=msg_to_be_found")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/events/{event_id}")
    assert operator.get("/events?find=no-such-thing").status_code == 404


def test_an_event_shows_its_runs_and_why_others_were_not_called(console: RunningConsole, operator: Browser) -> None:
    data = {"id": 7, "lines": [{"sku": "A"}], "big": 9007199254740993}
    event_id = settled(console, topic="order.paid", data=data)
    text = operator.text(f"/events/{event_id}")
    assert "erp.export done attempt 1" in text
    assert 'done, attempt 1: "exported"' in text
    assert "erp.vip it listens to order.created, not order.paid" in text
    assert "9007199254740993" in text, "every digit as it was sent"


def test_an_event_shows_the_earlier_ones_of_its_order_and_what_changed(
    console: RunningConsole, operator: Browser
) -> None:
    order = {"id": "ord_77", "total": "1.00", "lines": [{"sku": "A"}], "email": "a@example.org"}
    first = settled(console, topic="order.created", data=order)
    second = settled(console, topic="order.updated", data={**order, "total": "2.00", "email": "b@example.org"})
    last = settled(console, topic="order.paid", data={**order, "total": "2.00", "email": "b@example.org", "paid": True})
    text = operator.text(f"/events/{last}")
    assert re.search("order.updated settled Changed since: paid nothing → true .* order.created settled", text)
    assert "total 1.00 → 2.00" in text
    assert "email hidden, may be personal" in text
    assert "@example.org" not in text
    links = re.findall(r'href="/events/(\w{26})"', operator.page)
    assert [one for one in links if one in (first, second)] == [second, first]
    assert "Earlier events" not in operator.text(f"/events/{first}")


def test_an_event_shows_its_failed_attempts_and_its_secret(console: RunningConsole, operator: Browser) -> None:
    event_id = settled(console, data=console.broken_order())
    text = operator.text(f"/events/{event_id}")
    assert re.search(r"1 failed attempt .* UTC version \w+, [\d.]+ ms KeyError: 'vat_id'", text)
    assert re.search(r"Signed with secret [0-9a-f]{6}", text)
    assert re.search(r"attempt 1, version \w+, [\d.]+ ms, ended \d", text)


def test_personal_fields_are_folded_until_a_person_asks(console: RunningConsole, operator: Browser) -> None:
    customer = {"name": "Ada L", "firstName": "Ada"}
    data = {"id": 8, "customer": customer, "email": "ada@example.org", "product": {"name": "Mug"}}
    event_id = settled(console, data=data)
    text = operator.text(f"/events/{event_id}")
    assert "Ada" not in text
    assert "ada@" not in text
    assert "Mug" in text
    shown = plain(operator.post(f"/events/{event_id}/personal").text)
    assert "ada@example.org" in shown
    assert "Ada L" in shown
    assert f"show personal fields event {event_id}" in operator.text("/audit")
    raw = operator.post(f"/events/{event_id}/download")
    assert json.loads(raw.content)["data"] == data
    assert raw.headers["content-disposition"].startswith("attachment")


def test_the_other_pages_show_stores_handlers_and_workers(console: RunningConsole, operator: Browser) -> None:
    settled(console)
    assert "order.created order.created" in operator.text("/stores/north")
    assert "erp.export on order.*" in operator.text("/handlers")
    workers = operator.text("/workers")
    assert "loaded" in workers
    assert "receiving" in workers


def test_handlers_show_how_their_runs_ended_and_how_long_they_took(console: RunningConsole, operator: Browser) -> None:
    settled(console)
    settled(console, data=console.broken_order())

    def counted() -> bool:
        text = operator.text("/handlers")
        return bool(re.search(r"erp.export on order\.\* .* [1-9]\d* done [1-9]\d* failed \d+(\.\d)? m?s \d", text))

    eventually(counted, 20, what="workers write their counts every few seconds")


# Actions


def test_a_failed_run_is_replayed_to_its_handler(console: RunningConsole, operator: Browser) -> None:
    event_id = settled(console, data=console.broken_order())
    assert console.system.status(event_id) == "failed"
    console.mend()
    operator.get(f"/events/{event_id}")
    assert "1 run replayed" in operator.press(f"/events/{event_id}/replay", handler="erp.export")
    eventually(lambda: console.system.status(event_id) == "settled", 20, what="it succeeds")
    assert f"console operator 127.0.0.1 replay event {event_id}, handler erp.export 1" in operator.text("/audit")


def test_a_group_is_replayed(console: RunningConsole, operator: Browser) -> None:
    events = [settled(console, data=console.broken_order()) for _ in range(2)]
    path = group_of(operator, "KeyError")
    assert "raise KeyError" in operator.text(path), "one traceback"
    console.mend()
    assert operator.post(f"{path}/replay", first="000100999").status_code == 400
    assert "replayed" in operator.press(f"{path}/replay", first="100")
    eventually(lambda: [console.system.status(one) for one in events] == ["settled"] * 2, 20, what="both succeed")
    assert operator.get(path).status_code == 404, "no run is left in it"


def test_a_group_is_dropped_with_a_reason(console: RunningConsole, operator: Browser) -> None:
    event_id = settled(console, data=console.broken_order())
    path = group_of(operator, "KeyError")
    group = path.rpartition("/")[2]
    assert f"Drop {count_of(console, group)}" in operator.text(f"/failures/actions/new?action=drop&group={group}")
    answer = operator.post("/failures/actions/start", action="drop", group=group)
    assert answer.status_code == 400, "a reason is needed"
    assert "Bulk drop" in operator.press(
        "/failures/actions/start", action="drop", group=group, reason="the ERP was told"
    )
    eventually(lambda: console.system.status(event_id) == "settled", 20, what="it is dropped")
    assert console.system.run_of(event_id, "erp.export").result == "the ERP was told"
    assert "reason the ERP was told" in operator.text("/audit")
    assert operator.post("/failures/actions/start", action="drop", group=group, reason="x").status_code == 404


def count_of(console: RunningConsole, group: str) -> int:
    (found,) = FailureQueries(console.system.client).matching(FailureFilter(group=group))
    return found.count


def test_failures_of_a_filter_are_replayed_after_five_have_succeeded(
    console: RunningConsole, operator: Browser
) -> None:
    events = [settled(console, data=console.broken_order()) for _ in range(7)]
    assert "No failures match" in operator.text("/failures?store=south")
    assert "Replay all 7" in operator.text("/failures?store=north&error=keyerror&handler=erp.export")
    form = operator.text("/failures/actions/new?store=north&error=keyerror")
    assert "Replay 7 runs" in form
    assert "store: north error: keyerror" in form
    operator.press("/failures/actions/start", store="north", error="keyerror", **{"try": "1"})
    path = operator.page.partition('action="/failures/actions/')[2].partition("/stop")[0]
    eventually(lambda: "halted" in operator.text(f"/failures/actions/{path}"), 30, what="one of the first fails again")
    assert "of the first 5 runs failed again" in operator.text(f"/failures/actions/{path}")
    assert "Replay what is left" in operator.text(f"/failures/actions/{path}")
    console.system.client.hincrby(f"{keys.BULK}{path}", "began", -100_000)
    assert re.search(r", 0\.0\d+ runs a second", operator.text(f"/failures/actions/{path}")), "not 0 runs a second"
    console.mend()
    operator.press("/failures/actions/start", store="north", error="keyerror", **{"try": "1"})
    eventually(lambda: {console.system.status(one) for one in events} == {"settled"}, 30, what="all succeed")
    assert "done 7 7 console operator 127.0.0.1" in operator.text("/failures/actions")


@pytest.mark.parametrize("rate", ["fast", "-1/s", "5/x"])
def test_a_wrong_rate_is_a_sentence(console: RunningConsole, operator: Browser, rate: str) -> None:
    operator.get("/failures/actions/new")
    answer = operator.post("/failures/actions/start", action="replay", rate=rate)
    assert (answer.status_code, "not a rate" in answer.text) == (400, True)


def test_the_failed_runs_of_an_event_are_dropped(console: RunningConsole, operator: Browser) -> None:
    event_id = settled(console, data=console.broken_order())
    operator.get(f"/events/{event_id}")
    assert "1 run dropped" in operator.press(f"/events/{event_id}/drop", reason="no such order")
    assert console.system.status(event_id) == "settled"
    assert operator.post(f"/events/{event_id}/drop", reason="again").status_code == 404


def test_a_store_and_a_handler_are_paused_and_resumed(console: RunningConsole, operator: Browser) -> None:
    paused = console.system.administration.paused
    operator.get("/stores/south")
    assert "south is paused" in operator.press("/stores/south/pause")
    assert "store:south" in paused()
    assert "south is resumed" in operator.press("/stores/south/resume")
    assert "erp.export is paused" in operator.press("/handlers/erp.export/pause")
    assert "handler:erp.export" in paused()
    assert "erp.export is resumed" in operator.press("/handlers/erp.export/resume")
    assert paused() == set()
    assert operator.post("/handlers/no.such/pause").status_code == 404
    assert operator.post("/stores/nowhere/pause").status_code == 404


def test_a_refused_delivery_is_explained(console: RunningConsole, operator: Browser) -> None:
    refuse(console)
    assert "signature-mismatch" in operator.text("/refused?store=north")
    found = re.search(r'href="(/refused/\d+)"', operator.page)
    assert found
    text = operator.text(found[1])
    assert " with 401 " in text
    assert "Verified again, step by step" in text
    assert "Not valid." in text
    preview = operator.get(f"{found[1]}/preview").text
    assert "Other schemes for north" in preview
    all_tried = "none makes it valid"  # not if time ran out
    eventually(lambda: all_tried in plain(operator.get(f"{found[1]}/preview").text), 60)
    assert not any(one in preview for one in (SECRET, OTHER_SECRET, SECRET.removeprefix("whsec_")))
    operator.get("/refused")
    assert "still refused" in operator.press("/refused/release", store="north")
    number = found[1].rpartition("/")[2]
    assert "still refused" in operator.press("/refused/release", id=number)
    assert f"release refused {number} 1" in operator.text("/audit")
    assert operator.post("/refused/release", id=number + "x").status_code == 400


def test_what_another_host_keeps_is_listed_with_the_command_to_run_there(
    console: RunningConsole, operator: Browser
) -> None:
    publish_refusals(console.system.client, "web-2:/data", [("north", {"no-signature": 7}, 5, 1e9, 1e9)])
    try:
        text = operator.text("/refused?store=north")
        assert "web-2:/data north no-signature 7 5" in text
        assert "storehooks verify --store north --refused last storehooks refused release --store north" in text
        assert "web-2" not in operator.text("/refused?store=south")
    finally:
        publish_refusals(console.system.client, "web-2:/data", [])


def test_a_delivery_that_was_answered_503_is_shown_so(console: RunningConsole, operator: Browser) -> None:
    with closing(open_refusals(console.config.data_dir)) as stored:
        refusal = Refusal(time.time(), "north", "north", "signature-mismatch", 9, "", "", status=503)
        stored.add([refusal], bounds=console.config.receiver.refused, now=time.time())
        number = stored.last_id()
    text = operator.text(f"/refused/{number}")
    assert f"Refused delivery {number}: signature-mismatch" in text
    assert " with 503, so that the sender tries again " in text


def test_a_delivery_that_is_valid_by_now_is_released(console: RunningConsole, operator: Browser) -> None:
    """It was refused because its store was not in the config."""
    known = console.config.known_stores["north"]
    request = compose(known, topic="order.created", delivery_id="msg_early", data={"id": 5}, now=time.time())
    with closing(open_refusals(console.config.data_dir)) as stored:
        refusal = Refusal(time.time(), "north", "north", "unknown-store", 9, "", "", request.headers, request.body)
        stored.add([refusal], bounds=console.config.receiver.refused, now=time.time())
    operator.get("/refused")
    assert "1 event accepted, with the original time" in operator.press("/refused/release", store="north")
    assert operator.get("/events?find=msg_early").status_code == 303


def test_an_action_is_written_down_before_it_begins(console: RunningConsole, operator: Browser) -> None:
    operator.get("/handlers")
    operator.press("/handlers/erp.vip/pause")
    ended, begun, *_ = json.loads(console.system.run_cli("audit", "--json").stdout)
    assert (begun["action"], begun["selection"]) == ("pause", {"handler": "erp.vip"})
    assert (ended["of"], ended["result"].partition(";")[0]) == (begun["id"], "erp.vip is paused")
    operator.press("/handlers/erp.vip/resume")


# Hostile content


HOSTILE = {
    "script": "<script>alert(1)</script>",
    "end": "</script></pre></html>",
    "link": "javascript:alert(1)",
    "quote": "\" onmouseover=alert(1) x='",
    "template": "{{7*7}}${7*7}<%= 7*7 %>",
    "bidi": "gpj.\u202etxe\u2066",
    "nul": "a\x00b\x1b[31m",
    "<img src=x onerror=alert(1)>": 1,
}


def test_hostile_text_is_shown_as_text(console: RunningConsole, operator: Browser) -> None:
    event_id = settled(console, data={"id": "<b>7</b>", **HOSTILE}, delivery_id="<i>msg</i>")
    for path in (f"/events/{event_id}", "/events", "/events?delivery=<i>msg</i>"):
        page = operator.get(path).text
        for mark in ("<script>alert", "<img", "<b>7", "<i>msg", "onmouseover=alert(1) x='\"", "\u202e", "\x00", "\x1b"):
            assert mark not in page, (path, mark)
    text = operator.text(f"/events/{event_id}")
    assert "<script>alert(1)</script>" in text
    assert "{{7*7}}${7*7}<%= 7*7 %>" in text
    assert "gpj.[U+202E]txe[U+2066]" in text
    assert "a[U+0000]b[U+001B][31m" in text


def nested(depth: int) -> Any:
    value: Any = "the end"
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "data",
    [
        {"text": "<b>" * 333_333},
        {"x" * 1_000_000: 1},
        {f"<i>{n}": f"</i>{n}" for n in range(10_000)},
        nested(200),
        {"list": [[[]]] * 5_000},
        {"list": json.loads("[" * 252 + "]" * 252)},
    ],
    ids=["a text of 1 MB", "a name of 1 MB", "10,000 keys", "depth 200", "a long list", "lists of depth 252"],
)
def test_large_content_is_cut_at_a_bound(console: RunningConsole, operator: Browser, data: Any) -> None:
    event_id = settled(console, data={"id": 9, **data})
    answer = operator.get(f"/events/{event_id}")
    assert answer.status_code == 200
    assert len(answer.text) < 400_000
    assert "more" in answer.text or "deeper" in answer.text
    assert "<b>" not in answer.text
    assert "<i>" not in answer.text
    for path in ("/events", f"/events?find={event_id}", "/events?where=text"):
        assert len(operator.get(path).text) < 400_000
    assert operator.post(f"/events/{event_id}/personal").status_code == 200


def test_a_body_that_is_no_json_is_shown_on_request_only(console: RunningConsole, operator: Browser) -> None:
    body = b"\xff\xfe<script>alert(1)</script>" + b"[" * 300
    delivery = console.system.delivery(delivery_id="msg_nojson")
    raw = replace(delivery, event=replace(delivery.event, body=body))
    event_id = console.system.inbox.accept([raw])[0].id
    assert "alert(1)" not in operator.text(f"/events/{event_id}")
    shown = operator.post(f"/events/{event_id}/personal").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown


# Bad input


@pytest.mark.parametrize(
    "path",
    [
        "/events?before=forged",
        "/events?live=off",
        "/events/tail?place=forged",
        "/events/tail?place=" + "1" + "-1" * 500,
        "/events/tail?place=1&rows=-1",
        "/events/tail?place=1&rows=" + "1-" * 200 + "1",
        "/?range=1y",
        "/events?before=" + "9" * 400,
        "/events?since=yesterday",
        "/events?until=99999-01-01",
        "/events?status=lost",
        "/events?store=" + "x" * 400,
        "/events?store=a%00b",
        "/events?where=%3E%3E",
        "/events?topic=%E2%80%AE",
        "/failures?before=1-2%203",
        "/failures?handler=%3Cb%3E",
        "/failures/actions/new?action=delete",
        "/refused?before=-1",
        "/stores?page=-1",
        "/stores?page=99999999999",
    ],
)
def test_a_forged_address_is_a_sentence_and_400(operator: Browser, path: str) -> None:
    answer = operator.get(path)
    assert answer.status_code == 400, plain(answer.text)
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/events/unknown",
        "/events/" + "x" * 5_00,
        "/events/a%2e%2e",
        "/failures/none",
        "/failures/actions/none",
        "/refused/999999/preview",
        "/composer?store=none",
        "/refused/999999",
        "/stores/none",
    ],
)
def test_what_is_not_there_is_a_sentence_and_404(operator: Browser, path: str) -> None:
    answer = operator.get(path)
    assert answer.status_code == 404
    assert len(plain(answer.text)) > 60


def test_a_store_that_left_the_config_is_still_shown(console: RunningConsole, operator: Browser) -> None:
    console.system.client.hset("sh:n", "accepted|gone", 3)
    assert "no longer in the config" in operator.text("/stores/gone")
    console.system.client.hdel("sh:n", "accepted|gone")


def test_a_damaged_key_is_named_and_hides_nothing_else(console: RunningConsole, operator: Browser) -> None:
    client = console.system.client
    client.rename("sh:paused", "sh:kept") if client.exists("sh:paused") else None
    client.set("sh:paused", "not a set")
    try:
        text = operator.text("/handlers")
        assert "damaged in Redis: sh:paused" in text
        assert "erp.export" in text
    finally:
        client.delete("sh:paused")
