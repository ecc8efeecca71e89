"""The console in a real Chromium: looks, keyboard, times, and hostile content that must not run."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from receiver.inbox import keys
from receiver.inbox.audit_trail import AuditTrail
from receiver.inbox.bulk_actions import BulkActions
from receiver.inbox.queries.failures import FailureFilter, FailureQueries
from receiver.inbox.queries.time_series import OF_STORE, RINGS, WEEK, pack_sample
from receiver.inbox.redis import script_runner
from tests.support.console import PASSWORD, PLUGIN, RunningConsole, running_console
from tests.support.harness import System, eventually

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.full,
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromium-driver is missing"),
]
AXE = "axe-core@4.14.0"
NARROW, WIDE = (360, 780), (1280, 900)
SHOTS = os.environ.get("CONSOLE_SHOTS", "")
"""A folder for pictures of the pages, if a person wants to look at them."""
HOSTILE = {
    "id": "<b>7</b>",
    "script": "<script>document.title='run'</script>",
    "image": "<img src=http://203.0.113.1/x onerror=\"document.title='run'\">",
    "link": "javascript:document.title='run'",
    "template": "{{7*7}}",
    "bidi": "gpj.\u202etxe",
    "</script><script>document.title='run'</script>": "\x00",
}
REPORTS = """
window.reports = [];
document.addEventListener("securitypolicyviolation", (event) => window.reports.push(event.violatedDirective));
"""


HANDLERS = {
    "notify_warehouse": "order.fulfilled",
    "print_shipping_label": "shipment.created",
    "push_stock_levels": "inventory.updated",
    "reconcile_refunds": "refund.created",
    "send_confirmation": "checkout.completed",
    "sync_customers": "customer.updated",
}
MANY_HANDLERS = PLUGIN + "".join(
    f"""
@router.on("{topic}", "subscription.cancelled", stores=("north", "wholesale-eu"))
def {name}(event, ctx):
    return "done"
"""
    for name, topic in HANDLERS.items()
)
"""With those of PLUGIN, eight. No store sends these topics."""
BROKEN_WORDS = """
const found = [];
const lines = (range) => {
  const tops = [];
  for (const one of range.getClientRects()) {
    if (one.width && !tops.some((top) => Math.abs(top - one.top) < one.height / 2)) tops.push(one.top);
  }
  return tops.length;
};
const texts = (element) => {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  return nodes;
};
for (const one of document.querySelectorAll("thead th, table button, table [role=button]")) {
  const range = document.createRange();
  range.selectNodeContents(one);
  if (lines(range) > 1) found.push("two lines: " + one.textContent);
}
for (const node of [...document.querySelectorAll("tbody th, tbody td")].flatMap(texts)) {
  for (const word of node.data.matchAll(/[A-Za-z0-9]{2,14}(?![A-Za-z0-9])/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    if (lines(range) > 1) found.push(`within a word: ${node.data}`);
  }
}
return found;
"""
"""Headings and buttons of tables on two lines, and short words of their cells that are broken."""


def write_runs(system: System) -> None:
    """Figures of the handlers, as of a busy day."""
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    for name in ("export", *HANDLERS):
        outcomes = {"done": 12_286, "failed": 115, "retry": 4_494, "dropped": 1_165}
        system.client.hset(f"{keys.RUNS}{day}:erp.{name}", mapping={**outcomes, "d13": 9_000, "d17": 900, "w24": 99})


def write_week(system: System) -> None:
    """The counters of a week with days and nights, in all rings: as many events as the server has counters for."""
    now, week = int(time.time()), WEEK.step * WEEK.slots
    total = 60_000
    for name, number in {
        "accepted": total,
        "settled": total,
        "duplicates": total // 90,
        "retried": total // 40,
    }.items():
        system.client.hincrby(keys.COUNTERS, f"{name}|north", number)
    system.client.delete(*(keys.PREFIX + ring.name for ring in RINGS))  # samples of before

    def wave(at: int) -> float:
        return math.sin(at / 86_400 * 2 * math.pi)

    def sample(at: int) -> bytes:
        many = int(total * ((at - now + week) / week + 0.015 * (wave(at) - wave(now))))
        waiting, failed = int(5 + 4 * math.sin(at / 5_000)), 3 + max(0, int(9 * math.sin(at / 40_000)))
        counts = {"accepted": many, "settled": many - waiting - failed, "open": waiting, "failed": failed}
        return pack_sample(at, {**counts, "refused": 0, "duplicates": many // 90, "retried": many // 40})

    for ring in RINGS:
        for at in range(now - ring.step * (ring.slots - 1), now - 20, ring.step):
            script_runner.run_one(system.client, "record_samples", ring.name, ring.size, ring.offset(at), sample(at))
    accepted = refused = 0
    for number, at in enumerate(range(now - week + WEEK.step, now - 3_600, WEEK.step)):
        accepted += {40: 0, 41: 0, 90: 5}.get(number, 60)
        refused += 30 if number == 120 else 0
        packed = pack_sample(at, {"accepted": accepted, "settled": accepted, "refused": refused})
        script_runner.run_one(system.client, "record_samples", f"{OF_STORE}north", WEEK.size, WEEK.offset(at), packed)
    system.client.zadd(f"{keys.VERSIONS}erp.export", {"0.9": (now - 2_000) * 1000, "0.8": (now - 200_000) * 1000})


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(
        tmp_path_factory.mktemp("console"), "web", "worker", "housekeeper", plugin=MANY_HANDLERS
    ) as found:
        system = found.system
        orders = [system.deliver(data={"id": 1000 + number, "total": "42.00"}) for number in range(6)]
        orders += [system.deliver(data=found.broken_order(id=2000 + number)) for number in range(3)]
        orders.append(system.deliver(data=HOSTILE, delivery_id="msg_hostile"))
        for one in orders:
            system.settled(one, 30)
        tampered = system.request(delivery_id="msg_tampered")
        assert system.post(tampered, "south").status_code == 401
        system.refused()
        write_week(system)
        write_runs(system)
        entry = AuditTrail(system.client).begin(
            "console operator 127.0.0.1", "bulk replay", {"error": "no such " * 99}, count=3
        )
        stopped = BulkActions(system.client).start("replay", FailureFilter(error="no such error"), [], entry, first=5)
        BulkActions(system.client).stop(stopped)
        eventually((found.config.data_dir / "findings.json").exists, 60, what="the first findings")
        yield found


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(60)
    driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Pacific/Auckland"})
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": REPORTS})
    yield driver
    driver.quit()


class Person:
    """A person at the browser."""

    def __init__(self, driver: WebDriver, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, path: str) -> Person:
        self.driver.get(self.url + path)
        return self

    def look(self, size: tuple[int, int], scheme: str = "light") -> Person:
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        return self

    @property
    def text(self) -> str:
        return str(self.script("return document.body.innerText"))

    def script(self, code: str) -> Any:
        return self.driver.execute_script(code)  # type: ignore[no-untyped-call]

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def press(self, label: str) -> None:
        """Press the button or link with this text."""
        before = self.find("html")
        self.driver.find_element("xpath", f'//main//*[self::button or self::a][normalize-space()="{label}"]').click()
        eventually(lambda: _is_gone(before), 20, what=f"the page after {label}")

    def type(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def shoot(self, name: str) -> None:
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(f"{SHOTS}/{name}.png")


def _is_gone(element: Any) -> bool:
    from selenium.common.exceptions import WebDriverException

    try:
        element.is_enabled()
    except WebDriverException:
        return True
    return False


@pytest.fixture(scope="module")
def person(console: RunningConsole, chromium: WebDriver) -> Person:
    """Logged in, by the form."""
    found = Person(chromium, console.url).look(WIDE)
    found.open("/events")
    found.shoot("login")
    found.find("input[name=password]").send_keys(PASSWORD)
    found.press("Log in")
    assert "/events" in chromium.current_url, "where one wanted to be"
    return found


def pages(console: RunningConsole) -> dict[str, str]:
    event = console.system.ledger.find_id("msg_hostile")
    failed = console.browser().log_in()
    failed.get("/failures")
    found = re.search(r'href="/failures/([0-9a-f]{8})"', failed.page)
    group = found[1] if found else "none"
    bulk = BulkActions(console.system.client).newest(1)[0].id
    return {
        "overview": "/",
        "overview-week": "/?range=7d",
        "events": "/events",
        "live": "/events?live=on",
        "event": f"/events/{event}",
        "failures": "/failures",
        "group": f"/failures/{group}",
        "refused": "/refused",
        "refusal": "/refused/1",
        "preview": "/refused/1/preview",
        "bulk": f"/failures/actions/{bulk}",
        "bulk-new": f"/failures/actions/new?group={group}",
        "bulk-all": "/failures/actions",
        "composer": "/composer",
        "stores": "/stores",
        "store": "/stores/north",
        "handlers": "/handlers",
        "workers": "/workers",
        "audit": "/audit",
    }


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "360 px"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_and_loads_only_our_files(
    console: RunningConsole, person: Person, size: tuple[int, int], scheme: str
) -> None:
    person.look(size, scheme)
    for name, path in pages(console).items():
        person.open(path)
        person.shoot(f"{name}-{size[0]}-{scheme}")
        assert person.script("return document.documentElement.scrollWidth") <= size[0], f"{name} is too wide"
        assert person.script("return window.reports") == [], name
        ink = person.script("return getComputedStyle(document.body).color")
        paper = person.script("return getComputedStyle(document.documentElement).backgroundColor")
        assert contrast(ink, paper) > 7, (name, ink, paper)
        hosts = person.script("return performance.getEntriesByType('resource').map((one) => new URL(one.name).host)")
        assert set(hosts) <= {console.url.removeprefix("http://")}, name
    assert [one for one in person.driver.get_log("browser") if one["level"] == "SEVERE"] == []
    person.look(WIDE)


@pytest.mark.parametrize("width", [1024, 1280, 1440, 1920])
def test_no_heading_button_or_name_of_a_table_is_broken(console: RunningConsole, person: Person, width: int) -> None:
    person.look((width, 900))
    console.system.administration.pause(handler="erp.sync_customers")  # "Resume" is wider than "Pause"
    broken = {}
    for name, path in pages(console).items():
        person.open(path).shoot(f"{name}-{width}")
        over = "const main = document.querySelector('main'); return main.scrollWidth - main.clientWidth"
        assert person.script(over) <= 0, f"{name} is too wide"
        broken[name] = person.script(BROKEN_WORDS)
    console.system.administration.resume(handler="erp.sync_customers")
    assert {name: found for name, found in broken.items() if found} == {}
    person.look(WIDE)


def contrast(ink: str, paper: str) -> float:
    """The ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [float(one) / 255 for one in colour.partition("(")[2].rstrip(")").split(",")[:3]]
        linear = [one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_hostile_content_runs_nowhere(console: RunningConsole, person: Person) -> None:
    person.open(pages(console)["event"])
    assert "<script>document.title='run'</script>" in person.text
    assert "{{7*7}}" in person.text
    assert "gpj.[U+202E]txe" in person.text
    assert person.driver.title != "run"
    assert person.script("return document.querySelectorAll('main script, main img').length") == 0
    for link in person.driver.find_elements("css selector", "a[href]"):
        assert str(link.get_attribute("href")).startswith(console.url)
    with pytest.raises(Exception, match="TrustedHTML"):
        person.script("document.body.innerHTML = '<b>x</b>'")


def test_times_are_local_and_utc_on_hover(person: Person) -> None:
    person.open("/events")
    shown = person.find("td time")
    utc = str(shown.get_attribute("title"))
    assert utc.endswith(" UTC")
    local = person.script("return new Date(arguments[0] || document.querySelector('td time').dateTime).getHours()")
    assert int(str(shown.text).rsplit(" ", 1)[-1][:2]) == local
    assert utc[11:13] != f"{local:02d}", "Auckland is 12 or 13 hours ahead"


INK = """
return [...document.querySelectorAll("#charts canvas")].map((canvas) => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const found = new Set();
  for (let at = 0; at < pixels.length; at += 4) if (pixels[at + 3] > 200) found.add(pixels.slice(at, at + 3).join(" "));
  return found.size;
});
"""
"""The number of colours in each chart."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_are_drawn(person: Person, scheme: str) -> None:
    for span in ("1h", "24h", "7d"):
        person.look(WIDE, scheme).open(f"/?range={span}")
        assert [colours > 3 for colours in person.script(INK)] == [True, True]
        labels = person.script(
            "return [...document.querySelectorAll('#charts .u-label')].map((one) => one.textContent)"
        )
        assert labels[:3] == ["Until", "accepted", "settled"]
        person.look(NARROW, scheme)
        eventually(
            lambda: person.script("return document.querySelector('#charts canvas').width") <= 360, what="it fits"
        )
        assert person.script("return window.reports") == []
    person.look(WIDE)


def test_the_figures_of_a_chart_are_a_table_too(console: RunningConsole, person: Person) -> None:
    person.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        person.open("/?range=24h")
        person.find("details.figures summary").click()
        assert len(person.driver.find_elements("css selector", "details.figures tbody tr")) >= 24
        assert not person.find("#charts").is_displayed()
        person.find("details.figures td a").click()
        eventually(lambda: "since=" in person.driver.current_url, 20, what="the events of that time")
    finally:
        person.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def rows(person: Person) -> list[str]:
    """The events of the list, from the top."""
    found: list[str] = person.script(
        "return [...document.querySelectorAll('tbody a.id')].map((one) => one.textContent)"
    )
    return found


def test_a_live_page_shows_new_events_once(console: RunningConsole, person: Person) -> None:
    system = console.system
    person.open("/events?topic=order.*")
    person.press("Live")
    before = rows(person)
    events = [system.deliver(data={"id": 5000 + number, "total": "1"}) for number in range(5)]
    system.deliver("product.updated", data={"id": 1})
    eventually(lambda: rows(person)[:5] == events[::-1], 20, what="they are shown, the newest on top")
    states = "return [...document.querySelectorAll('tbody .state')].slice(0, 5).map((one) => one.textContent).join()"
    eventually(lambda: person.script(states) == ",".join(["settled"] * 5), 20, what="their status is refreshed")
    shown = rows(person)
    assert shown == events[::-1] + before, "each once, and no others"
    person.shoot("live")
    assert person.script("return window.reports") == []


def test_a_live_page_that_was_hidden_goes_on_where_it_was(console: RunningConsole, person: Person) -> None:
    person.open("/events?live=on&store=north")
    person.script("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    asked = "return performance.getEntriesByType('resource').filter((one) => one.name.includes('/tail')).length"
    events = [console.system.deliver(data={"id": 6000 + number}) for number in range(3)]
    time.sleep(1.5)  # a poll that has begun may end
    seen, count = rows(person), person.script(asked)
    time.sleep(2.5)
    assert (rows(person), person.script(asked)) == (seen, count), "it is not asked for while it is hidden"
    person.script("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    eventually(lambda: rows(person)[:3] == events[::-1], 20, what="nothing was missed")


def test_a_live_page_waits_while_a_row_has_the_focus(console: RunningConsole, person: Person) -> None:
    person.open("/events?live=on")
    person.script("document.querySelector('tbody a.id').focus()")
    seen = rows(person)
    event = console.system.deliver(data={"id": 7000})
    time.sleep(2.5)
    assert rows(person) == seen
    person.script("document.activeElement.blur()")
    eventually(lambda: rows(person)[0] == event, 20, what="it goes on")


def test_large_and_deep_content_is_text_and_cut(console: RunningConsole, person: Person) -> None:
    deep: Any = "</script><script>document.title='run'</script>"
    for _ in range(200):
        deep = {"<img src=x>": deep}
    texts = (
        {"deep": deep},
        {"text": "<script>document.title='run'</script>" * 27_000},
        {f"<b>{n}": n for n in range(10_000)},
    )
    for data in texts:
        event = console.system.deliver(data={"id": 1, **data})
        person.open(f"/events/{event}")
        assert person.script("return document.querySelectorAll('main script, main img, main b').length") == 0
        assert person.driver.title != "run"
        assert person.script("return document.documentElement.outerHTML.length") < 400_000
        assert person.script("return window.reports") == []


def test_an_event_is_found_and_replayed(console: RunningConsole, person: Person) -> None:
    console.mend()
    event = console.system.deliver(data=console.broken_order(id=3000))
    console.system.settled(event, 30)
    person.open("/")
    person.find("input[name=find]").send_keys("3000", "\n")
    eventually(lambda: event in person.driver.current_url, 20, what="the event's page")
    person.press("Replay to erp.export")
    assert "Replay: 1 run replayed" in person.text
    person.shoot("replayed")


def test_a_group_is_replayed_and_a_handler_paused(console: RunningConsole, person: Person) -> None:
    person.open("/failures")
    person.press("KeyError: 'vat_id'")
    person.press("Pause erp.export")
    assert "erp.export is paused" in person.text
    person.press("Resume")
    assert "erp.export is resumed" in person.text
    console.mend()
    person.open("/failures")
    person.press("KeyError: 'vat_id'")
    person.press("Replay the first 5")
    assert "3 runs replayed" in person.text


def test_many_failures_are_replayed_in_bulk(console: RunningConsole, person: Person) -> None:
    console.break_again()
    events = [console.system.deliver(data=console.broken_order(id=4000 + number)) for number in range(8)]
    for one in events:
        console.system.settled(one, 30)
    console.mend()
    person.open("/failures")
    person.find("input[name=error]").send_keys("KeyError")
    person.press("Filter")
    count = sum(one.count for one in FailureQueries(console.system.client).matching(FailureFilter(error="KeyError")))
    person.press(f"Replay all {count}")
    assert "Try 5 of each handler first" in person.text
    person.shoot("bulk-confirm")
    person.press(f"Replay {count} runs")
    done = f"{count} of {count} runs replayed"
    eventually(lambda: done in person.text, 40, what="the page shows that all are replayed")
    person.shoot("bulk-done")
    assert {console.system.settled(one, 30) for one in events} == {"settled"}


def test_a_refused_delivery_is_explained_previewed_and_released(console: RunningConsole, person: Person) -> None:
    person.open("/refused")
    person.press("Explain 1")
    assert "Verified again, step by step" in person.text
    assert "Not valid." in person.text
    system, config = console.system, console.system.config_file
    wrong = config.read_text()
    secret = 'signing_secrets = ["the secret of east, a long one"]\n'
    east = f'[stores.east]\nscheme = "shopify"\n{secret}'
    config.write_text(f"{wrong}\n{east}")
    request = system.request(store="east", delivery_id="msg_east")
    config.write_text(f"{wrong}\n{east.replace('shopify', 'woocommerce')}")
    processes = [one for one in system.processes if "web" in str(one.command) or "workers.console" in one.command]
    for process in processes:
        process.send(signal.SIGHUP)

    def is_refused() -> bool:
        system.post(request, "east")
        return bool(system.refusals().newest(store="east", limit=1))

    eventually(is_refused, 30, what="it is refused and stored, under the new config")
    eventually(lambda: "east" in person.open("/stores").text, 30, what="the console has the new config")
    person.open("/refused?store=east")
    person.driver.find_element("partial link text", "Explain").click()
    person.press("Try other schemes")
    assert "To use shopify" in person.text
    assert 'scheme = "shopify"' in person.text
    assert str(config) in person.text
    person.shoot("previewed")
    config.write_text(f"{wrong}\n{east}")
    for process in processes:
        process.send(signal.SIGHUP)
    eventually(lambda: "shopify" in person.open("/stores/east").text, 30, what="the console has the corrected config")
    person.open("/refused?store=east")
    person.press("Release what is valid now")
    assert "1 event accepted, with the original time of arrival" in person.text
    person.shoot("released")
    config.write_text(wrong)


def test_an_event_is_edited_copied_and_rehearsed(console: RunningConsole, person: Person) -> None:
    event = console.system.deliver(data={"id": 5000, "total": "42.00", "email": "ada@example.org"})
    console.system.settled(event, 30)
    person.open(f"/events/{event}").press("Copy as curl")
    person.shoot("curl")
    assert "--data-raw" in str(person.find("textarea").get_attribute("value"))
    person.open(f"/events/{event}").press("Edit and resend")
    person.shoot("edit")
    person.press("Send as a new event")
    assert "from edited: made by a person" in person.text
    person.shoot("edited")
    person.open(f"/events/{event}").press("Rehearse")
    assert "Rehearsal of erp.export" in person.text
    assert "What this cannot stop" in person.text
    person.shoot("rehearsal")
    for scheme in ("light", "dark"):
        person.look(NARROW, scheme).shoot(f"rehearsal-360-{scheme}")
        assert person.script("return document.documentElement.scrollWidth") <= NARROW[0]
    person.look(WIDE)
    person.open("/composer").press("Send to " + console.config.public_url_of("north"))
    assert "answered 200 accepted" in person.text
    person.shoot("composed")


def test_by_keyboard_alone(console: RunningConsole, person: Person) -> None:
    from selenium.webdriver.common.keys import Keys

    person.open("/")
    person.type(Keys.TAB)
    assert person.script("return document.activeElement.textContent") == "Skip to the content"
    person.type(Keys.ENTER)
    assert person.script("return document.activeElement.id") == "content"
    person.open("/handlers")
    seen = []
    for _ in range(40):
        person.type(Keys.TAB)
        seen.append(person.script("return document.activeElement.textContent.trim()"))
        outline = person.script("return getComputedStyle(document.activeElement).outlineStyle")
        shadow = person.script("return getComputedStyle(document.activeElement).boxShadow")
        assert outline != "none" or shadow != "none", f"{seen[-1]} does not show that it has the focus"
        if seen[-1] == "Pause":
            break
    assert seen[-1] == "Pause", seen
    person.type(Keys.ENTER)
    eventually(lambda: "is paused" in person.text, 20, what="the pause")
    console.system.administration.resume(handler="erp.export")
    console.system.administration.resume(handler="erp.vip")


def test_without_javascript_everything_is_there(console: RunningConsole, person: Person) -> None:
    person.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        person.open("/events")
        assert "UTC" in str(person.find("td time").text)
        person.find("input[name=topic]").send_keys("order.*")
        person.press("Filter")
        assert "topic=order" in person.driver.current_url
    finally:
        person.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of axe-core, which finds faults that keep people with disabilities out."""
    folder = tmp_path_factory.mktemp("axe")
    try:
        subprocess.run(["npm", "pack", AXE], cwd=folder, check=True, capture_output=True, timeout=60)
        with tarfile.open(next(folder.glob("*.tgz"))) as package:
            member = package.extractfile("package/axe.min.js")
            assert member
            return member.read().decode()
    except (OSError, subprocess.SubprocessError, StopIteration):
        pytest.skip(f"npm cannot load {AXE}")


def faults(person: Person, axe: str) -> list[str]:
    person.script(axe)
    found: list[str] = person.driver.execute_async_script(  # type: ignore[no-untyped-call]
        "const end = arguments[0];"
        "axe.run(document).then((all) => end(all.violations.map((one) => one.id + ': ' + one.nodes[0].html)))"
    )
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(console: RunningConsole, person: Person, axe: str, scheme: str) -> None:
    for size in (WIDE, NARROW):
        person.look(size, scheme)
        for name, path in pages(console).items():
            assert faults(person.open(path), axe) == [], (name, size)
    person.script("document.querySelector('main').append(document.createElement('img'))")
    assert faults(person, axe), "it would find one"
    person.look(WIDE)
