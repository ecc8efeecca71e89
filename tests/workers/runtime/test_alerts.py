"""Alerts: each fires once and recovers once, whatever becomes of the housekeeper and of the target."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis
from standardwebhooks import Webhook

from receiver.config import load
from receiver.contract.errors import ConfigError
from receiver.inbox import Declaration, Outcome, alert_store, keys
from receiver.inbox.alert_store import MAX_ALERTS, Alert, AlertMessage, AlertStore
from receiver.inbox.counter_buffer import CounterBuffer
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.queries.handlers import DECLARATION_SILENT_MS
from receiver.inbox.run_statistics import RunStatistics
from receiver.inbox.subscription_checks import CheckResult, SubscriptionChecks
from tests.receiver.inbox.test_remembered import HANDLER, run_of
from tests.support.forward_target import HangingTarget, Target
from tests.support.harness import SECRET, Server, System, eventually
from tests.support.logged_lines import capture_logs
from tests.support.programs import ROOT, typed
from workers.runtime import maintenance
from workers.runtime.alerting import alert_messages, alert_sending

QUICKLY = {
    "workers.runtime.maintenance.ALERTS_EVERY": 0.1,
    "workers.runtime.alerting.alert_sending.ROUND_EVERY": 0.05,
    "workers.runtime.alerting.alert_sending.FIRST_DELAY": 0.05,
    "workers.runtime.alerting.alert_sending.LONGEST_DELAY": 0.2,
    "workers.runtime.alerting.alert_sending.SEND_SECONDS": 0.5,
    "workers.runtime.alerting.alert_sending.HEARTBEAT_EVERY": 0.1,
    "receiver.inbox.alert_store.LEASE_MS": 10_000,
}
FULL = {"memory|": "full"}
SILENT = '[alerts.rules]\nsilent = {"*" = "2h"}\n'
PAGE = (ROOT / "docs/operating/alerts.md").read_text()


def targets_of(*targets: Target) -> str:
    lines = '[alerts.targets.t{}]\nurl = "{}/alerts"\nsecret = "{}"\nallow_private = true\n'
    return SILENT + "".join(lines.format(number, one.url, SECRET) for number, one in enumerate(targets))


def judge(system: System) -> list[AlertMessage]:
    """Judge once; the messages that wait to be sent."""
    maintenance.alerts(system.housekeeping, system.config)
    return AlertStore(system.client).messages()


def judge_as(client: Redis, firing: Mapping[str, str], target: str = "t0") -> tuple[int, int]:
    store = AlertStore(client)
    return store.judge(firing, [target], last=store.last_judgement(), marks={})


def be_silent(system: System, store: str = "north", hours: float = 3) -> None:
    system.accept(store=store)
    set_last_event(system, store, hours)


def set_last_event(system: System, store: str, hours: float) -> None:
    at = int((time.time() - hours * 3600) * 1000)
    names: Any = system.client.hkeys(keys.EVENT_NAMES + store)
    system.client.hset(keys.EVENT_NAMES + store, mapping={name: at for name in names if name.startswith(b"l:")})


# The rules


def run_attempts(system: System, kind: OutcomeKind, number: int) -> None:
    system.declare_as_worker(Declaration(HANDLER, "1", ("*",), ("*",)))
    statistics, run = RunStatistics(system.client), run_of(system)
    for _ in range(number):
        statistics.add(Outcome(run, kind, {"ms": 1.0}), time.time() * 1000)
    statistics.flush()


def fail_mostly(system: System) -> None:
    run_attempts(system, OutcomeKind.RETRY, 12)
    run_attempts(system, OutcomeKind.DONE, 3)


def refuse(system: System, number: int) -> None:
    judge(system)
    count_refused(system, number)


def count_refused(system: System, number: int) -> None:
    buffer = CounterBuffer(system.client)
    buffer.add("north", "refused", number=number)
    buffer.flush()


def report_spool(system: System, count: int) -> None:
    at = time.time()
    report = {"state": "receiving", "count": count, "oldest": at - 90 if count else 0, "at": at}
    system.client.hset(keys.SPOOLS, "web-1:/data", json.dumps(report))


def wait_long(system: System) -> None:
    system.client.zincrby(keys.INDEX, -7200e6, run_of(system).stored.id)


def finish_all(system: System) -> None:
    for name in system.client.scan_iter(f"{keys.EVENT}*"):
        system.client.hset(name, "state", "settled")


def check_subscriptions(system: System, unknown: str) -> None:
    SubscriptionChecks(system.client).store_result(CheckResult("north", time.time(), unknown=unknown))


def limit_memory(system: System, share: float) -> None:
    used = int(system.client.info("memory")["used_memory"])
    system.client.config_set("maxmemory", int(used / share) if share else 0)


@dataclass(frozen=True)
class Case:
    rule: str
    subject: str
    text: str
    page: str
    begin: Callable[[System], None]
    end: Callable[[System], None]


CASES = [
    Case(
        "failing",
        HANDLER,
        "80% of the last 15 attempts failed",
        f"/failures?handler={HANDLER}",
        fail_mostly,
        lambda system: run_attempts(system, OutcomeKind.DONE, 50),
    ),
    Case("oldest_open", "", "has waited for 2 h", "/events?status=open", wait_long, finish_all),
    Case(
        "refused_in_a_row",
        "north",
        "25 deliveries in a row were refused",
        "/refused?store=north",
        lambda system: refuse(system, 25),
        lambda system: system.accept() and None,
    ),
    Case("silent", "north", "no event for 3 h", "/stores/north", be_silent, lambda s: set_last_event(s, "north", 1)),
    Case(
        "spooled",
        "web-1:/data",
        "4 deliveries in its spool",
        "/workers",
        lambda system: report_spool(system, 4),
        lambda system: report_spool(system, 0),
    ),
    Case(
        "repair_failed",
        "north",
        "could not be checked",
        "/stores/north",
        lambda system: check_subscriptions(system, "its API does not answer"),
        lambda system: check_subscriptions(system, ""),
    ),
    Case("memory", "", "Redis uses 9", "/", lambda s: limit_memory(s, 0.95), lambda s: limit_memory(s, 0)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_rule_fires_once_and_recovers_once(case: Case, make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    assert judge(system) == []
    try:
        case.begin(system)
        (fired,) = judge(system)
        assert (fired.rule, fired.what, fired.number) == (case.rule, "fired", 1)
        assert fired.alerts[0].subject == case.subject
        assert case.text in fired.alerts[0].text
        assert alert_messages.link(system.config, fired) == system.config.console.address + case.page
        assert judge(system) == [fired], "only once"
        assert [one.name for one in AlertStore(system.client).firing()] == [f"{case.rule}|{case.subject}"]
        case.end(system)
        (_, recovered) = judge(system)
    finally:
        system.client.config_set("maxmemory", 0)
    assert (recovered.rule, recovered.what) == (case.rule, "recovered")
    assert [(one.subject, one.since) for one in recovered.alerts] == [(case.subject, fired.alerts[0].since)]
    assert len(judge(system)) == 2
    assert AlertStore(system.client).firing() == []


def test_every_rule_of_the_config_is_judged_worded_and_linked() -> None:
    rules = set(load(ROOT / "config.example.toml", {}).alerts.rules.model_dump())
    assert rules == set(alert_messages.TITLES) == {case.rule for case in CASES}
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) == rules


def test_rules_that_are_off_find_nothing(make_system: Callable[..., System], target: Target) -> None:
    off = 'failing = "off"\noldest_open = "off"\nrefused_in_a_row = 0\nspooled = "off"\nrepair_failed = false\n'
    system = make_system(more=targets_of(target).replace('silent = {"*" = "2h"}\n', off))
    for case in CASES[:-1]:
        case.begin(system)
    assert judge(system) == []


def test_a_failing_handler_without_attempts_goes_on_failing(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    begin_without_attempts(system)
    assert len(judge(system)) == 1, "nothing has succeeded"
    run_attempts(system, OutcomeKind.DONE, 1)
    assert [one.what for one in judge(system)] == ["fired", "recovered"]


def begin_without_attempts(system: System) -> None:
    """The alert fires, runs have failed, and there are no attempts any more."""
    run_attempts(system, OutcomeKind.FAILED, 10)
    assert len(judge(system)) == 1
    system.client.zadd(keys.GROUPS, {"a-group": 1})
    system.client.hset(f"{keys.GROUP}a-group", mapping={"handler": HANDLER, "failed": 3, "retrying": 0})
    for key in system.client.scan_iter(f"{keys.RUNS}recent*"):
        system.client.delete(key)


def test_a_failing_handler_without_attempts_recovers_when_no_run_is_failed_or_retried(
    make_system: Callable[..., System], target: Target
) -> None:
    """It went on for days if the replays ended in the same minutes as the failures."""
    system = make_system(more=targets_of(target))
    begin_without_attempts(system)
    assert len(judge(system)) == 1
    system.client.hset(f"{keys.GROUP}a-group", "failed", 0)
    assert [one.what for one in judge(system)] == ["fired", "recovered"]


def test_a_failing_handler_that_no_worker_has_any_more_recovers(
    make_system: Callable[..., System], target: Target
) -> None:
    """It went on for as long as its runs waited."""
    system = make_system(more=targets_of(target))
    run_attempts(system, OutcomeKind.FAILED, 12)
    assert len(judge(system)) == 1
    system.declare_as_worker(Declaration("shop.other", "1", ("*",), ("*",)), worker="host-2-2")
    silent = int(system.client.time()[0] * 1000) - 2 * DECLARATION_SILENT_MS
    for name in system.client.hkeys(keys.DECLARED_AT):
        if name.startswith(HANDLER.encode()):
            system.client.hset(keys.DECLARED_AT, name, silent)
    assert [one.what for one in judge(system)] == ["fired", "recovered"]


def test_a_failing_handler_whose_failures_were_all_replayed_recovers(
    make_system: Callable[..., System], target: Target
) -> None:
    system = make_system(more=targets_of(target))
    run_attempts(system, OutcomeKind.FAILED, 12)
    run_attempts(system, OutcomeKind.DONE, 11)
    assert len(judge(system)) == 1
    run_attempts(system, OutcomeKind.DONE, 1)
    for _ in range(2):
        assert [one.what for one in judge(system)] == ["fired", "recovered"]


def test_an_alert_that_goes_on_shows_its_last_figures(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    fail_mostly(system)
    (fired,) = judge(system)
    run_attempts(system, OutcomeKind.FAILED, 15)
    assert judge(system) == [fired]
    (alert,) = AlertStore(system.client).firing()
    assert (alert.text, alert.since) == ("90% of the last 30 attempts failed", fired.alerts[0].since)
    assert "90% of the last 30" in system.run_cli("alerts").stdout


def test_few_attempts_and_few_refusals_are_no_alert(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    run_attempts(system, OutcomeKind.FAILED, 9)
    refuse(system, 19)
    assert judge(system) == []
    count_refused(system, 1)
    system.accept()
    assert judge(system) == [], "one was accepted in between"


def test_the_first_refusals_of_a_store_that_has_sent_events_are_counted(
    make_system: Callable[..., System], target: Target
) -> None:
    system = make_system(more=targets_of(target))
    system.accept()
    refuse(system, 12)
    assert judge(system) == []
    count_refused(system, 8)
    (fired,) = judge(system)
    assert fired.alerts[0].text == "20 deliveries in a row were refused"


def test_refusals_before_the_first_judgement_do_not_count(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    count_refused(system, 25)
    assert judge(system) == []
    count_refused(system, 19)
    assert judge(system) == []
    count_refused(system, 1)
    assert [one.rule for one in judge(system)] == ["refused_in_a_row"]


def test_alerts_that_begin_together_are_one_message(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    firing = {f"silent|store-{number:03d}": "no event" for number in range(120)}
    assert judge_as(system.client, firing) == (120, 0)
    (message,) = AlertStore(system.client).messages()
    assert (message.number, len(message.alerts)) == (120, MAX_ALERTS)
    text = alert_messages.text_of(message)
    assert text.count("\n") == 11
    assert text.endswith("and 110 more")
    assert alert_messages.link(system.config, message) == f"{system.config.console.address}/"


def test_a_damaged_key_hides_no_other_alert(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    be_silent(system)
    for name in (keys.SPOOLS, keys.DECLARATIONS):
        system.client.sadd(name, "damaged")
    for name in (keys.ALERT_MARKS, f"{keys.CHECKED}north"):
        system.client.set(name, "{")
    system.client.hset(keys.ALERTS, mapping={"failing|x": "{", "nothing": "{}"})
    assert [one.rule for one in judge(system)] == ["silent"]
    system.client.delete(keys.ALERTS)
    system.client.set(keys.ALERTS, "damaged")
    judge(system)  # ticks go on


# What is sent


SINCE = datetime(2026, 11, 16, 3, 12, 9, 412000, tzinfo=UTC)
MESSAGE = AlertMessage(
    "alert_1",
    "ops",
    "failing",
    "fired",
    (Alert("failing", "erp.export", "80% of the last 40 attempts failed", SINCE),),
    1,
    SINCE,
)


def sent(system: System, target: Target, format_: str) -> Any:
    """What a target of a format gets."""
    (settings,) = system.config.alerts.targets.values()
    alert_sending.send(system.config, settings.model_copy(update={"format": format_}), MESSAGE)
    return json.loads(target.received[-1].body)


def test_a_webhook_is_signed_and_says_what_the_page_says(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    body = sent(system, target, "webhook")
    received = target.received[-1]
    Webhook(SECRET).verify(received.body, received.headers)
    assert received.headers["webhook-id"] == "alert_1"
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    expected = json.loads(shown)
    assert body["data"].pop("url") == f"{system.config.console.address}/failures?handler=erp.export"
    assert expected["data"].pop("url").endswith("/failures?handler=erp.export")
    assert body == expected


def test_slack_gets_text_with_a_link(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    text = sent(system, target, "slack")["text"]
    assert text.startswith("storehooks: A handler fails\nerp.export: 80% of the last 40")
    assert text.endswith(f"<{system.config.console.address}/failures?handler=erp.export|Open the console>")


def test_teams_gets_a_card(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    body = sent(system, target, "teams")
    card = body["attachments"][0]["content"]
    assert body["type"] == "message"
    assert [one["text"] for one in card["body"]] == alert_messages.text_of(MESSAGE).split("\n")
    assert card["actions"][0]["url"].endswith("/failures?handler=erp.export")


def test_a_recovery_says_how_long_it_lasted() -> None:
    ended = MESSAGE.alerts[0].since + timedelta(minutes=12)
    message = AlertMessage("a", "ops", "failing", "recovered", MESSAGE.alerts, 1, ended)
    title, line = alert_messages.text_of(message).split("\n")
    assert title == "storehooks: Recovered: A handler fails"
    assert line == "erp.export: it lasted 12 min; before it ended: 80% of the last 40 attempts failed"


# Real housekeepers


def ids(target: Target, kind: str) -> Counter[str]:
    """The ids of the messages of a type that a target got, each with how often."""
    return Counter(
        one.headers["webhook-id"] for one in list(target.received) if json.loads(one.body)["type"] == f"alert.{kind}"
    )


def test_two_housekeepers_of_which_the_leader_is_killed_send_each_alert_once(
    make_system: Callable[..., System], target: Target
) -> None:
    system = make_system(more=targets_of(target))
    first, second = system.start("housekeeper", "housekeeper", quicker=QUICKLY)
    be_silent(system)
    eventually(lambda: ids(target, "fired"), what="it fired")
    for process in (first, second):
        process.kill()
    set_last_event(system, "north", 1)
    system.start("housekeeper", "housekeeper", quicker=QUICKLY)
    eventually(lambda: ids(target, "recovered"), 20, what=f"it recovered; {system.log('housekeeper')[-500:]}")
    be_silent(system, "south")
    eventually(lambda: len(ids(target, "fired")) == 2, 20, what="the next alert fired")
    assert (len(ids(target, "fired")), len(ids(target, "recovered"))) == (2, 1), "a repeat has the same id"
    eventually(lambda: AlertStore(system.client).messages() == [], what="all are accepted")


def test_a_housekeeper_that_is_killed_while_it_sends_repeats_the_same_id(make_system: Callable[..., System]) -> None:
    target = HangingTarget()
    system = make_system(more=targets_of(target))
    short_lease = QUICKLY | {"receiver.inbox.alert_store.LEASE_MS": 1000}
    patient = short_lease | {"workers.runtime.alerting.alert_sending.SEND_SECONDS": 30}
    (process,) = system.start("housekeeper", quicker=patient)
    be_silent(system)
    eventually(lambda: target.received, what="the target got it")
    process.kill()
    system.start("housekeeper", quicker=short_lease)
    eventually(lambda: len(target.received) >= 2, 20, what="it is sent again")
    target.answers.set()
    eventually(lambda: AlertStore(system.client).messages() == [], what="it is accepted")
    assert len(ids(target, "fired")) == 1
    target.server_close()


@pytest.mark.parametrize("kind", ["500", "hangs", "closes"])
def test_a_target_that_fails_delays_nothing_and_is_shown(
    kind: str, make_system: Callable[..., System], target: Target
) -> None:
    bad = HangingTarget() if kind == "hangs" else Target()
    bad.answer = {"500": (500, {}, b""), "hangs": (200, {}, b""), "closes": None}[kind]
    system = make_system(more=targets_of(target, bad))
    run = run_of(system)
    system.start("housekeeper", quicker=QUICKLY)
    be_silent(system)
    eventually(lambda: ids(target, "fired"), what="the other target gets it")
    eventually(lambda: len(bad.received) >= 2, 20, what="it is sent again")
    system.inbox.renew([run])
    system.inbox.finish([Outcome(run, OutcomeKind.RETRY, {"error": "no"}, delay=0.2)])
    began = time.monotonic()
    eventually(lambda: system.client.zscore(keys.READY + HANDLER, run.item) is not None, what="the tick makes it ready")
    assert time.monotonic() - began < 5
    (given_up,) = eventually(
        lambda: [one for one in AlertStore(system.client).messages() if one.next_at is None], 30, what="it is given up"
    )
    assert given_up.tries == alert_sending.TRIES
    if isinstance(bad, HangingTarget):
        bad.answers.set()
    assert len(ids(bad, "fired")) == 1, "always under the same id"
    assert len(ids(target, "fired")) == 1
    shown = system.run_cli("alerts", "--json")
    (message,) = json.loads(shown.stdout)["messages"]
    assert message["target"] == "t1"
    assert message["next_try"] is None
    assert {"500": "answered 500", "hangs": "timed out", "closes": "no response"}[kind] in message["error"]
    assert "given up" in system.run_cli("alerts").stdout
    assert "/alerts" not in shown.stdout + system.log("housekeeper"), "the path may be a secret"
    bad.server_close()


def test_the_heartbeat_stops_with_redis(make_system: Callable[..., System], own_redis: Server, target: Target) -> None:
    more = f'[alerts]\nheartbeat_url = "{target.url}/ping"\nheartbeat_private = true\n'
    system = make_system(url=own_redis.url, more=more)
    system.start("housekeeper", quicker=QUICKLY | {"workers.runtime.alerting.alert_sending.STUCK_SECONDS": 0.8})
    eventually(lambda: len(target.received) > 3, what="it is called again and again")
    assert {one.path for one in target.received} == {"/ping"}
    own_redis.kill()

    def stopped() -> bool:
        before = len(target.received)
        time.sleep(0.5)  # five times as long as the pause between two calls
        return len(target.received) == before

    eventually(stopped, what="it is not called any more")
    own_redis.start()
    before = len(target.received)
    eventually(lambda: len(target.received) > before, 20, what="it is called again")


def test_a_heartbeat_to_a_private_address_names_its_own_key(
    make_system: Callable[..., System],
) -> None:
    system = make_system(more='[alerts]\nheartbeat_url = "https://127.0.0.1:9/ping"\n')
    with capture_logs() as lines:
        alert_sending.AlertThread(lambda: system.config).round()
        (line,) = eventually(lambda: lines, what="it was called")
    assert 'set heartbeat_private = ["127.0.0.1/32"]' in line["why"]


# The command


def test_the_commands_of_the_page(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    be_silent(system)
    judge(system)
    env = {"STOREHOOKS_CONFIG": str(system.config_file)}
    listed, tested = (typed(line, env=env) for line in re.findall(r"^storehooks .*$", PAGE, flags=re.MULTILINE))
    assert listed.returncode == tested.returncode == 0, listed.stderr + tested.stderr
    assert re.search(r"silent +.*firing +north +no event for 3 h", listed.stdout), listed.stdout
    assert "t0: accepted" in tested.stdout
    body = json.loads(target.received[-1].body)
    assert "this is a test" in body["data"]["text"]
    target.answer = (503, {}, b"")
    refused = system.run_cli("alerts", "test", "memory")
    assert refused.returncode == 1
    assert "t0: not accepted: 127.0.0.1 answered 503" in refused.stdout
    target.answer = (302, {"location": "https://ops.example/new"}, b"")
    moved = system.run_cli("alerts", "test", "memory")
    assert "127.0.0.1 answered 302, a redirect to ops.example; set the new URL" in " ".join(moved.stdout.split())


def test_a_test_needs_a_rule_and_a_target(system: System) -> None:
    unknown = system.run_cli("alerts", "test", "nothing")
    assert unknown.returncode == 2
    assert "the rules are failing, oldest_open" in unknown.stderr
    none = system.run_cli("alerts", "test", "silent")
    assert none.returncode == 2
    assert "no [alerts.targets.NAME]" in none.stderr
    assert "No message is sent" in system.run_cli("alerts").stdout


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ('[alerts.rules]\nfailing = "a lot"', 'write "20%"'),
        ('[alerts.rules]\nsilent = {west = "1h"}', "west, which is no store"),
        (
            '[alerts.targets.x]\nurl = "http://ops.example/x"',
            "alerts.targets.x.url is not https; use https, or set allow_",
        ),
        ('[alerts.targets.x]\nurl = "HTTP://ops.example/x"', "is not https"),
        ('[alerts.targets.x]\nurl = "https://me:pw@ops.example/x"', "targets.x.url has a user or a password"),
        (
            '[alerts]\nheartbeat_url = "http://127.0.0.1:25100/x"',
            "alerts.heartbeat_url is not https; use https, or set heartbeat_private = true",
        ),
        ('[alerts]\nheartbeat_url = "https://me@hc.example/x"', "alerts.heartbeat_url has a user or a password"),
        ('[alerts.targets.x]\nurl = "ops"', "not a URL"),
        ('[alerts.targets.x]\nurl = "https://ops.example"\nsecret = "whsec_"', "24 to 64 random bytes"),
    ],
)
def test_a_wrong_config_says_the_fix(system: System, lines: str, why: str) -> None:
    system.config_file.write_text(f"{system.config_file.read_text()}\n{lines}\n")
    with pytest.raises(ConfigError, match=re.escape(why)):
        _ = system.config


def test_the_urls_are_in_no_text_about_the_config(make_system: Callable[..., System], target: Target) -> None:
    config = make_system(more=targets_of(target)).config
    assert "/alerts" not in repr(config.alerts)
    assert SECRET not in repr(config.alerts)


def test_a_message_to_an_unknown_target_is_postponed(make_system: Callable[..., System], redis: Redis) -> None:
    system = make_system(more=targets_of(Target()))
    judge_as(redis, FULL, "another")
    thread = alert_sending.AlertThread(lambda: system.config)
    thread.round()
    (message,) = eventually(lambda: [one for one in AlertStore(redis).messages() if one.tries], what="it was tried")
    assert message.error == "the config of this housekeeper has no such target"
    assert message.next_at, "another housekeeper may have the target"


def test_threads_that_cannot_be_started_end_neither_alerts_nor_the_heartbeat(
    make_system: Callable[..., System], redis: Redis, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one ended the thread that sends, and nothing said so; each one took a place for good."""
    heartbeat = f'[alerts]\nheartbeat_url = "{target.url}/ping"\nheartbeat_private = true\n'
    system = make_system(more=heartbeat + targets_of(target))
    for name, value in {"ROUND_EVERY": 0.01, "HEARTBEAT_EVERY": 0.1}.items():
        monkeypatch.setattr(alert_sending, name, value)
    monkeypatch.setattr(alert_store, "LEASE_MS", 50)
    start, failed = threading.Thread.start, []

    def at_the_limit(thread: threading.Thread) -> None:
        if thread.name == "alert" and len(failed) < 3 * alert_sending.THREADS:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", at_the_limit)
    judge_as(redis, FULL)
    sending = alert_sending.AlertThread(lambda: system.config)
    sending.rounded(leads=True)
    with capture_logs() as lines:
        sending.start()
        eventually(lambda: {one.path for one in target.received} >= {"/ping", "/alerts"}, what="both are sent")
        eventually(lambda: len(lines) == 2, what="the end of the outage is logged")
    sending.stop()
    assert len(failed) == 3 * alert_sending.THREADS
    said = [(line["event"], line.get("why")) for line in lines]
    assert said == [
        ("alerts and the heartbeat cannot be sent", "RuntimeError"),
        ("alerts and the heartbeat can be sent again", None),
    ]


# Order, old readings, damage and a full server


def test_messages_of_a_rule_are_sent_in_order(redis: Redis) -> None:
    store = AlertStore(redis)
    judge_as(redis, FULL)
    fired = store.claim()
    assert fired
    assert fired.what == "fired"
    judge_as(redis, {})
    judge_as(redis, {"failing|x": "it fails"})
    other = store.claim()
    assert other, "another rule does not wait"
    assert (other.rule, store.claim()) == ("failing", None), "fired is being sent"
    store.failed(fired, "500", 60.0)
    assert store.claim() is None, "fired is tried again later"
    store.failed(fired, "500", None)
    recovered = store.claim()
    assert recovered, "fired was given up"
    assert recovered.what == "recovered"
    store.delivered(recovered)
    store.failed(recovered, "a late answer", 1.0)
    assert [one.what for one in store.messages()] == ["fired", "fired"], "an accepted message does not come back"


def test_a_target_that_is_added_while_an_alert_fires_gets_both_messages(redis: Redis) -> None:
    store = AlertStore(redis)

    def judge_with(firing: Mapping[str, str], *targets: str) -> list[tuple[str, str, str]]:
        """The messages that a judgement with these targets makes."""
        before = {one.item for one in store.messages()}
        store.judge(firing, targets, last=store.last_judgement(), marks={})
        return [(one.target, one.what, one.alerts[0].text) for one in store.messages() if one.item not in before]

    assert judge_with({"silent|north": "no event for 2 h"}, "old") == [("old", "fired", "no event for 2 h")]
    (began,) = store.firing()
    both = {"silent|north": "no event for 3 h", "memory|": "full"}
    assert set(judge_with(both, "old", "new")) == {
        ("old", "fired", "full"),
        ("new", "fired", "no event for 3 h"),
        ("new", "fired", "full"),
    }
    (late,) = [one for one in store.messages() if (one.target, one.rule) == ("new", "silent")]
    assert late.alerts[0].since == began.since, "the message says when it began"
    assert set(judge_with({"memory|": "full"}, "old", "newest")) == {
        ("old", "recovered", "no event for 3 h"),
        ("newest", "fired", "full"),
    }


def test_an_alert_of_an_older_version_is_sent_to_no_target_again(redis: Redis) -> None:
    redis.hset(keys.ALERTS, "memory|", json.dumps({"since": 1, "text": "full"}))
    assert judge_as(redis, FULL) == (0, 0)
    assert AlertStore(redis).messages() == []
    assert judge_as(redis, {}) == (0, 1)
    assert [one.what for one in AlertStore(redis).messages()] == ["recovered"]


def test_a_damaged_message_delays_no_other(redis: Redis) -> None:
    store = AlertStore(redis)
    judge_as(redis, FULL)
    (item,) = redis.hkeys(keys.ALERT_MESSAGES)
    redis.hset(keys.ALERT_MESSAGES, item, "{")
    judge_as(redis, {})
    found = store.claim()
    assert found
    assert found.what == "recovered"


def test_what_was_read_before_another_judgement_is_not_judged(redis: Redis) -> None:
    store = AlertStore(redis)
    before = store.last_judgement()
    assert judge_as(redis, FULL) == (1, 0)
    assert judge_as(redis, {}) == (0, 1)
    assert store.judge(FULL, ["t0"], last=before, marks={}) == (0, 0)
    assert store.firing() == []
    assert [one.what for one in store.messages()] == ["fired", "recovered"]


def test_numbers_of_judgements_grow_when_the_clock_is_set_back(redis: Redis) -> None:
    ahead = int(time.time() * 1000) + 3_600_000
    redis.set(keys.ALERT_MARKS, json.dumps({"number": ahead, "stores": {}}))
    judge_as(redis, {})
    assert AlertStore(redis).last_judgement().number == ahead + 1


def test_alerts_are_judged_and_postponed_at_maxmemory(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    refuse(system, 25)
    system.client.config_set("maxmemory", "1mb")
    try:
        fired = {one.rule: one for one in judge(system)}
        assert fired.keys() == {"refused_in_a_row", "memory"}
        AlertStore(system.client).failed(fired["memory"], "500", 60.0)
    finally:
        system.client.config_set("maxmemory", 0)
    assert {one.rule: one.tries for one in AlertStore(system.client).messages()} == {"refused_in_a_row": 0, "memory": 1}


def test_no_alert_recovers_because_a_key_is_damaged(make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    fail_mostly(system)
    refuse(system, 25)
    assert [one.what for one in judge(system)] == ["fired", "fired"]
    kept = {name: system.client.dump(name) for name in (keys.DECLARATIONS, keys.COUNTERS)}
    for name in kept:
        system.client.set(name, "damaged")
    for _ in range(2):
        assert [one.what for one in judge(system)] == ["fired", "fired"]
    for name, content in kept.items():
        system.client.restore(name, 0, content, replace=True)
    assert [one.what for one in judge(system)] == ["fired", "fired"], "the marks of refusals are kept too"


@pytest.mark.parametrize("name", [keys.ALERT_MESSAGES, keys.ALERT_DUE, keys.ALERT_MARKS])
def test_an_alert_is_sent_after_its_keys_were_damaged(
    name: str, make_system: Callable[..., System], target: Target
) -> None:
    system = make_system(more=targets_of(target))
    be_silent(system)
    system.client.sadd(name, "damaged")
    maintenance.alerts(system.housekeeping, system.config)
    assert AlertStore(system.client).firing() == [], "not without its message"
    system.housekeeping.tick()
    assert [one.rule for one in judge(system)] == ["silent"]


@pytest.mark.parametrize("text", ["[]", '"x"', "{", '{"number": 1, "stores": {"north": 3}}', '{"stores": []}'])
def test_damaged_marks_are_written_again(text: str, make_system: Callable[..., System], target: Target) -> None:
    system = make_system(more=targets_of(target))
    system.client.set(keys.ALERT_MARKS, text)
    refuse(system, 25)
    assert [one.rule for one in judge(system)] == ["refused_in_a_row"]
