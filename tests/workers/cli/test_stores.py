"""stores list, show, add and remove, against a real sandbox store, a real receiver and real workers."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import Result

from receiver.config import load
from receiver.contract.compose import compose
from receiver.contract.errors import ConfigError, NotFound
from receiver.inbox import Administration, Outcome
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.subscription_checks import SubscriptionChecks
from receiver.process.process_files import held
from receiver.spool import open_refusals
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.command_in_process import run_in_process
from tests.support.harness import (
    OTHER_SECRET,
    SECRET,
    System,
    eventually,
    free_port,
    own_server,
    port_is_free,
    sandbox_config,
)
from tests.support.programs import start_command
from workers.cli import store_steps
from workers.operations.store_files import Draft, as_toml, check_folder, file_of, path_for
from workers.storeapi import client_for_store
from workers.subscriptions.managed_store import declared_handlers
from workers.subscriptions.repair import SubscriptionCheck

PLUGIN = """
from workers import Router
router = Router("erp")

@router.on("order.created", "order.paid")
def export(event, ctx):
    return "exported"
"""
SANDBOX = """
[redis]
url = "{redis}"
data_dir = "{data}"
[receiver]
public_url = "http://127.0.0.1:{port}"
"""
RETRIES = 'retries = ["100ms", "100ms", "200ms", "500ms"]'


class StoreSetup:
    """A running installation, and a sandbox store that is not in its config yet."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "data").mkdir()
        # The housekeeper's check would create the subscriptions before a slow `stores add` does.
        self.system = System(folder, url, plugin=PLUGIN, more='[subscriptions]\ncheck = "off"\n')
        self.system.start("web", "supervisor")
        self.port = free_port()
        config = folder / "sandbox.toml"
        head = SANDBOX.format(redis=url, data=folder / "sandbox-data", port=self.system.port)
        config.write_text(head + sandbox_config(self.port, store="east", more=RETRIES))
        arguments = ("sandbox", "--store", "east", "--no-shopper", "--no-subscriptions")
        self.process = start_command(*arguments, config=config, log=folder / "sandbox.log")
        self.system.processes.append(self.process)
        self.store_config = load(config, {})
        self.api = client_for_store(self.store_config, "east")
        eventually(self._api_answers, 20, what="the sandbox answers")
        (folder / "east.secret").write_text(SECRET + "\n")

    def _api_answers(self) -> bool:
        try:
            return list(self.api.webhooks.list()) == []
        except Exception:  # noqa: BLE001  not started yet
            return False

    @property
    def file(self) -> Path:
        return self.system.folder / "stores.d" / "east.toml"

    def cli(self, *arguments: str, **how: Any) -> Result:
        given = [*arguments, "--config", str(self.system.config_file)]
        return run_in_process(*given, **how)

    def add(self, *more: str, client_secret: str = "file:client.secret", **how: Any) -> Result:
        (self.system.folder / "client.secret").write_text("right\n")
        (self.system.folder / "wrong.secret").write_text("wrong\n")
        url = f"http://127.0.0.1:{self.port}"
        return self.cli(
            *("stores", "add", "east", "--base-url", url, "--allow-private", "--secret", "file:east.secret", "--yes"),
            *("--client-id", "app", "--client-secret", client_secret, *more),
            **how,
        )

    def subscribed_topics(self) -> list[str]:
        return sorted(one.topic for one in self.api.webhooks.list())


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreSetup]:
    with own_server(tmp_path_factory.mktemp("server")) as server:
        setup = StoreSetup(tmp_path_factory.mktemp("setup"), server.url)
        yield setup
        setup.system.close()


def test_a_store_is_added_and_removed_without_a_restart(setup: StoreSetup) -> None:
    web, supervisor = (process.pid for process in setup.system.processes[:2])
    foreign = setup.api.webhooks.create(topic="order.created", url="https://mailer.example.net/hook")
    done = setup.add("--json", "--test-event")
    added = json.loads(done.stdout)
    assert done.exit_code == 0, done.output
    assert added["left"] == []
    assert {one["name"] for one in added["reloaded"]} == {"web", "worker"}
    assert [one["pid"] for one in added["reloaded"]] == [web, supervisor]
    assert added["other_hosts"] == "if there are any: copy the change to their config, then send HUP to web and worker"
    assert added["subscriptions"] == ["order.created", "order.paid"]
    assert setup.system.settled(added["test_event"]) == "settled"
    assert setup.file.stat().st_mode & 0o077 == 0
    assert setup.system.processes[0].alive

    shown = json.loads(setup.cli("stores", "show", "east", "--json").stdout)
    assert shown["subscriptions"]["changes"] == []
    assert (shown["subscriptions"]["wanted"], shown["subscriptions"]["existing"]) == (2, 2)
    assert shown["token"]["state"] == "fine"
    assert shown["token"]["seconds_left"] > 3000
    assert shown["last_event"]["id"] == added["test_event"]
    assert shown["secrets"][0]["origin"].endswith("east.toml:5")

    again = setup.add()
    assert again.exit_code == 2 or isinstance(again.exception, ConfigError)

    refused = setup.cli("stores", "remove", "east")
    assert isinstance(refused.exception, ConfigError)
    assert "--yes" in str(refused.exception)
    gone = setup.cli("stores", "remove", "east", "--yes", "--json")
    assert gone.exit_code == 0, gone.output
    assert json.loads(gone.stdout)["subscriptions"] == ["order.created", "order.paid"]
    assert not setup.file.exists()
    assert [one.id for one in setup.api.webhooks.list()] == [foreign.id]
    assert "east" in SubscriptionChecks(setup.system.client).removed()
    setup.api.webhooks.delete(foreign.id)
    refused = setup.system.ledger.counters().total["refused"]
    assert refused == 0, "the probe must come after the reload"


def test_the_store_sends_a_test_event_only_if_asked_to(setup: StoreSetup) -> None:
    """It always did. Handlers get it like any other: they failed on its data, or wrote record 0 to their target."""
    queries = setup.system.ledger
    url = f"http://127.0.0.1:{setup.system.port}/webhooks/east"
    there = setup.api.webhooks.create(topic="order.created", url=url)
    before = {one.id for one in queries.events(store="east")}
    done = setup.add()
    try:
        assert done.exit_code == 0, done.output
        assert re.search(r"^receiver +accepted a probe at ", done.output, re.MULTILINE)
        assert re.search(r"^subscriptions +2 in place, 1 of them created now$", done.output, re.MULTILINE), done.output
        new = [one.topic for one in queries.events(store="east") if one.id not in before]
        assert new == ["storehooks-probe.sent"]
        hint = f"storehooks api webhooks send_test {there.id} --store east"
        assert re.search(rf"{hint}\S* .*\n? +have the store send a test event; handlers get it", done.output), (
            done.output
        )
        later = setup.cli(*hint.split()[1:], "--yes")
        assert later.exit_code == 0, later.output
        eventually(
            lambda: queries.events(store="east", limit=1)[0].topic == "order.created",
            what="the test event arrives",
        )
    finally:
        assert setup.cli("stores", "remove", "east", "--yes").exit_code == 0


@pytest.mark.parametrize("more", [["--no-subscribe"], ["--base-url", ""]])
def test_a_test_event_without_a_subscription_is_refused(setup: StoreSetup, more: list[str]) -> None:
    done = setup.add("--test-event", *more)
    assert "--test-event needs a subscription" in str(done.exception)
    assert not setup.file.exists()


def test_nothing_is_written_when_the_token_is_refused(setup: StoreSetup) -> None:
    done = setup.add(client_secret="file:wrong.secret")
    assert done.exit_code == 1
    assert "401" in done.output
    assert "nothing was written" in done.output
    assert not setup.file.exists()
    assert list(setup.system.folder.glob("**/.*.new")) == []
    assert setup.subscribed_topics() == []


def test_what_the_receiver_refuses_is_not_said_to_be_reloaded(
    setup: StoreSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was, and the command's own probes were stored as refused deliveries."""
    monkeypatch.setattr(store_steps, "RELOAD_SECONDS", 2.0)
    done = setup.add("--json", "--secret", "env:ONLY_HERE", env={"ONLY_HERE": OTHER_SECRET})
    try:
        added = json.loads(done.stdout)
        assert (done.exit_code, added["reloaded"]) == (1, [])
        assert added["left"][0].startswith("the receiver still serves the old config after 2 s; its log says why")
        assert added["left"][-1] == "storehooks subscriptions apply --store east"
        assert "receiver" not in added, "no probe was sent"
    finally:
        monkeypatch.undo()
        left = setup.cli("stores", "remove", "east", "--keep-subscriptions", "--yes", env={"ONLY_HERE": OTHER_SECRET})
    assert left.exit_code == 0, left.output
    assert setup.system.ledger.counters().total["refused"] == 0


def test_subscriptions_are_created_only_after_the_receiver_knows_the_store(setup: StoreSetup) -> None:
    done = setup.add("--no-reload", "--wait", "0s")
    try:
        assert done.exit_code == 1
        said = done.output.partition("left to do:")[2]
        assert "send HUP to `storehooks web` and `storehooks worker`" in said
        assert "answers our own signed event with 401" in said
        assert "storehooks subscriptions apply --store east" in said
        assert setup.file.exists()
        assert setup.subscribed_topics() == []
    finally:
        assert setup.cli("stores", "remove", "east", "--yes").exit_code == 0


def test_an_interrupted_add_can_be_finished_by_what_is_printed(setup: StoreSetup) -> None:
    """The same command said only that the store exists, and doctor named no reload: all deliveries were refused."""
    setup.add("--no-reload", "--no-subscribe")  # what is left if it is killed after it has written the file
    finish = "storehooks subscriptions apply --store east"
    hup = "send HUP to `storehooks web` and `storehooks worker` on each host"
    new = load(setup.system.config_file, {}).known_stores["east"]
    request = compose(new, topic="order.created", delivery_id="interrupted", data={}, now=time.time())
    refusals = open_refusals(setup.system.folder / "data")
    try:
        again = setup.add()
        assert isinstance(again.exception, ConfigError)
        said = str(again.exception)
        assert said.endswith(
            f". To finish a `stores add` that was interrupted: {hup}, to reload the config; then {finish}"
        )

        assert setup.system.post(request, "east").status_code == 401
        eventually(lambda: list(refusals.newest(store="east")), what="the refusal is stored")
        found = setup.cli("doctor", "--timeout", "20s", env={"COLUMNS": "300"}).output
        for command in ("subscriptions plan", "refused release"):
            lines = rf"^ +fix: {hup}, unless they .*; then\n +\S*storehooks {command} --store east --config "
            assert re.search(lines, found, re.MULTILINE), found

        for process in setup.system.processes[:2]:
            process.send(signal.SIGHUP)
        eventually(lambda: setup.system.post(request, "east").status_code == 200, what="web knows the store")
        assert setup.cli(*finish.split()[1:], "--yes").exit_code == 0
        assert setup.subscribed_topics() == ["order.created", "order.paid"]
    finally:
        assert setup.cli("stores", "remove", "east", "--yes").exit_code == 0
        refusals.delete([one.id for one in refusals.newest(store="east")])


def test_a_store_without_an_api_has_no_subscriptions_to_finish(setup: StoreSetup) -> None:
    arguments = ("stores", "add", "west", "--secret", "new", "--yes", "--no-reload", "--no-subscribe")
    setup.cli(*arguments)
    try:
        assert str(setup.cli(*arguments).exception).endswith("on each host, to reload the config")
    finally:
        assert setup.cli("stores", "remove", "west", "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stores", "add", "North West", "--yes"], "a store's name has only lower-case letters"),
        (["stores", "add", "north", "--secret", "new", "--yes"], "config.toml:14: store north already exists$"),
        (
            ["stores", "add", "west", "--scheme", "shopfy", "--secret", "new", "--yes"],
            "there is no scheme shopfy; did you mean",
        ),
        (
            ["stores", "add", "west", "--secret", "env:NO_SUCH_SECRET", "--yes"],
            "west.toml:4: stores.west.signing_secrets[0] refers to",
        ),
        (["stores", "show", "nort"], "no store nort; configured stores: "),
    ],
)
def test_wrong_use_changes_nothing(setup: StoreSetup, arguments: list[str], says: str) -> None:
    done = setup.cli(*arguments)
    assert says in f"{done.exception}$"  # $ is the end: no hint follows where none applies
    assert isinstance(done.exception, ConfigError | NotFound)
    assert not (setup.system.folder / "stores.d" / "west.toml").exists()


def test_a_secret_on_the_command_line_is_refused(setup: StoreSetup) -> None:
    done = setup.cli("stores", "add", "west", "--secret", "whsec_c2VjcmV0", "--yes")
    assert done.exit_code == 2
    assert "do not write a secret on the command line" in done.output


def test_a_new_secret_of_a_store_with_an_api_is_shown_once_too(setup: StoreSetup) -> None:
    done = setup.add("--secret", "new", "--no-subscribe")
    assert done.exit_code == 0, done.output
    try:
        secret = re.search(r"^secret +(whsec_\S+) +give it to the store, unless", done.output, re.MULTILINE)
        assert secret, done.output
        assert secret[1] in setup.file.read_text()
        assert secret[1] not in setup.cli("stores", "show", "east").stdout
    finally:
        assert setup.cli("stores", "remove", "east", "--yes").exit_code == 0


def test_a_store_without_an_api_gets_a_new_secret_that_is_shown_once(setup: StoreSetup) -> None:
    done = setup.cli("stores", "add", "west", "--secret", "new", "--json", "--yes")
    assert done.exit_code == 0, done.output
    secret = json.loads(done.stdout)["secret"]
    try:
        assert secret.startswith("whsec_")
        store = load(setup.system.config_file, {}).known_stores["west"]
        assert store.secrets[0].key == store.scheme.key_of(secret)
        assert secret not in setup.cli("stores", "show", "west").stdout
        assert setup.system.post(setup.system.request(store="west"), "west").status_code == 200
        waits = setup.system.deliver("order.created", store="west")
        assert setup.cli("stores", "pause", "west", "--yes").exit_code == 0
        held = setup.system.deliver("order.created", store="west")
    finally:
        assert setup.cli("stores", "remove", "west", "--yes").exit_code == 0
    assert setup.system.settled(waits) == setup.system.settled(held) == "settled"
    assert not (setup.system.folder / "stores.d" / "west.toml").exists()
    eventually(
        lambda: setup.system.post(other_delivery(setup), "west").status_code == 401,
        what="the store is removed",
    )


def test_missing_options_are_asked_for_on_a_terminal(setup: StoreSetup) -> None:
    answers = {
        "API": f"http://127.0.0.1:{setup.port}",
        "signing scheme": "",
        "signing secret": SECRET,
        "client id": "app",
    }
    answers["client secret"] = "right"
    command = ["stores", "add", "east", "--allow-private", "--config", str(setup.system.config_file), "--yes"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "workers.cli", *command])
    shown = ""
    try:
        for question, answer in answers.items():
            while question not in shown.rpartition("\n")[2] or not shown.rstrip().endswith(":"):
                shown += os.read(terminal, 4096).decode()
            shown += "\n"
            os.write(terminal, f"{answer}\n".encode())
        with suppress(OSError):  # the terminal is closed when the command has ended
            while piece := os.read(terminal, 4096):
                shown += piece.decode()
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, shown
    assert "2 in place, 2 of them created now" in shown
    assert SECRET not in shown
    assert "right" not in shown
    assert setup.cli("stores", "remove", "east", "--yes").exit_code == 0


def other_delivery(setup: StoreSetup) -> Any:
    return setup.system.request(store="north")


def test_an_invalid_file_is_refused_and_the_old_config_stays_in_use(setup: StoreSetup) -> None:
    wrong = setup.file.parent / "wrong.toml"
    wrong.parent.mkdir(exist_ok=True)
    good, other = setup.system.request(store="north"), setup.system.request(store="north")
    wrong.write_text(f'[stores.good]\nsigning_secrets = ["{SECRET}"]\n[stores.bad]\nsheme = "x"\n')
    try:
        setup.system.processes[0].send(1)  # HUP
        eventually(lambda: "config refused, the old one stays" in setup.system.log("web"), what="the log says so")
        assert setup.system.post(good, "north").status_code == 200
        assert setup.system.post(other, "good").status_code == 401
    finally:
        wrong.unlink()


def test_a_store_with_an_unreachable_api_is_shown(setup: StoreSetup) -> None:
    path = setup.system.folder / "away.toml"
    away = f'[stores.away]\nbase_url = "http://127.0.0.1:{free_port()}"\nallow_private = true\nauth = {{token = "t"}}\n'
    path.write_text(setup.system.config_file.read_text() + away + f'signing_secrets = ["{SECRET}"]\n')
    done = run_in_process("stores", "show", "away", "--config", str(path))
    assert done.exit_code == 0, done.output
    assert "unreachable: no response" in done.output
    assert "subscriptions  unknown: no response" in done.output
    assert load(path, {}).known_stores["away"].secrets[0].fingerprint in done.output


def test_a_store_of_the_main_file_is_left_to_the_user(setup: StoreSetup) -> None:
    before = setup.system.config_file.read_text()
    done = setup.cli("stores", "remove", "south", "--yes")
    try:
        assert done.exit_code == 1
        assert "[stores.south] (" in done.output
        assert "delete [stores." in done.output
        assert setup.system.config_file.read_text() == before
    finally:
        SubscriptionChecks(setup.system.client).restore("south")


def test_a_store_whose_removal_was_interrupted_is_resumed(system: System) -> None:
    """Its accepted events stayed open, and the command that `doctor` names said that there is no such store."""
    Administration(system.client).pause(store="gone")
    done = system.run_cli("stores", "resume", "gone", "--yes")
    assert (done.returncode, done.stdout) == (0, "gone is resumed; 0 events or runs wait\n"), done.stderr
    assert system.run_cli("stores", "resume", "gone", "--yes").returncode == 2


def test_a_removed_store_is_not_repaired_by_a_worker_with_the_old_config(setup: StoreSetup) -> None:
    """Only the mark prevents it: without the mark, the same worker creates the subscriptions again."""
    redis = setup.system.client
    checks, check = SubscriptionChecks(redis), SubscriptionCheck(lambda: setup.store_config)
    checks.remove("east")
    for _ in range(3):
        assert check.round() == 0
    check._check_and_reschedule(setup.store_config, "east", declared_handlers(redis))
    assert setup.subscribed_topics() == []
    checks.restore("east")
    check._check_and_reschedule(setup.store_config, "east", declared_handlers(redis))
    assert setup.subscribed_topics() == ["order.created", "order.paid"]
    for one in setup.api.webhooks.list():
        setup.api.webhooks.delete(one.id)
    checks.forget("east")


def test_a_removed_store_leaves_no_notice_of_a_killed_rotation(setup: StoreSetup) -> None:
    """A store of the same name that was added later had its new secrets rotated."""
    added = setup.add()
    assert added.exit_code == 0, added.output
    keyring = Keyring(setup.system.client, setup.system.config.data_dir, "")
    keyring.announce_change("east")
    keyring.announce_change("north")
    done = setup.cli("stores", "remove", "east", "--yes")
    assert done.exit_code == 0, done.output
    assert set(keyring.state().changing) == {"north"}
    keyring.withdraw_change("north")


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        (
            "config.toml",
            '[alerts.rules]\nsilent = {west = "1h"}\n',
            "alerts.rules.silent names west",
        ),
        (
            "stores.d/erp.toml",
            '[stores.west.plugins.erp]\nwarehouse = "w"\n',
            "stores.d/erp.toml:1: stores.west",
        ),
    ],
)
def test_a_store_is_not_removed_where_the_rest_of_the_config_names_it(
    make_system: Callable[..., System], file: str, text: str, reason: str
) -> None:
    """It was, and said that all processes had reloaded; these refused the config, and none could start any more."""
    system = make_system()
    own = system.folder / "stores.d" / "west.toml"
    own.parent.mkdir()
    own.write_text(as_toml("west", {"signing_secrets": [SECRET]}))
    place = system.config_file if file == "config.toml" else system.folder / file
    with place.open("a") as other:
        other.write("\n" * (file == "config.toml") + text)
    done = run_in_process("stores", "remove", "west", "--yes", "--config", str(system.config_file))
    assert isinstance(done.exception, ConfigError)
    assert f"without {own} the config is not valid; change this first: " in str(done.exception)
    assert reason in str(done.exception)
    assert own.exists()
    assert "west" not in SubscriptionChecks(system.client).removed()


def test_list_has_the_store_with_most_failures_first(system: System) -> None:
    def listed() -> list[dict[str, Any]]:
        arguments = ["stores", "--json", "--config", str(system.config_file)]
        return list(json.loads(run_in_process(*arguments).stdout))

    system.accept(store="north")
    system.accept(store="south")
    assert [one["store"] for one in listed()] == ["north", "south"]
    run = claim_one(system.inbox)
    (routed,) = route(system.inbox, run, GREET)
    system.inbox.finish([Outcome(routed, "failed", {"error": "no"})])
    worst = listed()[0]
    assert (worst["failed"], worst["store"]) == (1, run.event.store)
    assert worst["last_event"]
    arguments = ["stores", "--config", str(system.config_file)]
    assert "LAST EVENT" in run_in_process(*arguments).stdout


@pytest.mark.full
def test_the_last_event_of_a_store_is_the_one_that_arrived_last(system: System) -> None:
    """An event that is released later arrived earlier, and `stores` never counted it."""
    newest, earlier = system.accept("order.paid", delivery_id="new"), system.delivery(delivery_id="old")
    yesterday = replace(earlier.event, received_at=earlier.event.received_at - timedelta(days=1), source="released")
    system.inbox.accept([replace(earlier, event=yesterday)])
    arguments = ["stores", "show", "north", "--json", "--config", str(system.config_file)]
    assert json.loads(run_in_process(*arguments).stdout)["last_event"]["id"] == newest


def test_dev_loads_a_new_store_without_a_restart(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "config.toml"
    config.write_text(
        f'[redis]\ndata_dir = "{tmp_path}/data"\n[receiver]\nbind = "127.0.0.1:{port}"\nprocesses = 1\n'
        f'public_url = "http://127.0.0.1:{port}"\n[stores.north]\nsigning_secrets = ["{SECRET}"]\n'
        '[console]\nbind = "127.0.0.1:0"\n'
    )
    dev = start_command("dev", "--no-sandbox", config=config, log=tmp_path / "dev.log")
    try:
        eventually(lambda: not port_is_free(port), 20, what="it listens")
        arguments = ["stores", "add", "west", "--secret", "new", "--json", "--config", str(config), "--yes"]
        shown = json.loads(run_in_process(*arguments).stdout)
        assert shown["reloaded"] == [{"name": "dev", "pid": dev.pid}]
        assert "other_hosts" not in shown, "dev runs on one host"
        request = compose(
            load(config, {}).known_stores["west"], topic="order.created", delivery_id="1", data={}, now=time.time()
        )
        url = f"http://127.0.0.1:{port}/webhooks/west"

        def answer() -> int:
            with suppress(httpx2.HTTPError):
                return httpx2.post(url, headers=request.headers, content=request.body).status_code
            return 0

        eventually(lambda: answer() == 200, what="the receiver knows the store")
    finally:
        dev.stop()
    assert list(held(tmp_path / "data")) == []


# The file alone


def test_the_written_file_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f'[stores.north]\nsigning_secrets = ["{OTHER_SECRET}"]\n')
    config = load(tmp_path / "config.toml", {})
    fields = {
        "base_url": 'https://shop.example/"quoted"\\\x7f\t\u00e9',
        "scheme": None,
        "signing_secrets": ("env:ONE", SECRET),
        "allow_private": True,
        "domain": "",
        "auth": {"client_id": "a = b # c", "client_secret": "env:TWO", "style": None},
    }
    draft = Draft(path_for(config, "east"), as_toml("east", fields))
    tried = draft.validate(config, {"ONE": SECRET, "TWO": "two"})
    assert set(load(tmp_path / "config.toml", {}).stores) == {"north"}
    draft.publish()
    found = load(tmp_path / "config.toml", {"ONE": SECRET, "TWO": "two"})
    for one in (tried, found):
        east = one.stores["east"]
        assert east.base_url == fields["base_url"]
        assert (east.auth.client_id, east.auth.client_secret.get_secret_value()) == ("a = b # c", "two")
        assert east.allow_private is True
    assert file_of(found, "east") == tmp_path / "stores.d" / "east.toml"
    assert file_of(found, "north") is None
    with pytest.raises(ConfigError, match="not overwritten"):
        Draft(path_for(config, "east"), as_toml("east", fields)).publish()


@pytest.mark.parametrize(("mode", "written"), [(0o600, 0o600), (0o644, 0o600), (0o640, 0o640)])
def test_the_file_of_a_store_has_the_permissions_of_the_config(tmp_path: Path, mode: int, written: int) -> None:
    main = tmp_path / "config.toml"
    main.write_text("")
    main.chmod(mode)
    if os.getuid() == 0:
        os.chown(main, 1234, 1235)
    Draft(tmp_path / "east.toml", "", like=main).publish()
    found = (tmp_path / "east.toml").stat()
    assert found.st_mode & 0o777 == written
    assert (found.st_uid, found.st_gid) == (main.stat().st_uid, main.stat().st_gid)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_who_may_not_write_the_file_is_told_so() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "stores.d" / "east.toml"
        check_folder(path)
        child = os.fork()
        if not child:
            try:
                os.setuid(65534)
                check_folder(path)
            except ConfigError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can read what another user cannot")
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_secret_that_only_root_can_read_is_refused_before_anything_is_written(mode: int) -> None:
    """The services run as another user: with the new file they could neither reload nor start again."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "config.toml").write_text('include = ["stores.d/*.toml"]\n[redis]\ndata_dir = "data"\n')
        (base / "secret").write_text(SECRET)
        (base / "data").mkdir()
        for path, owner in ((base, 0), (base / "config.toml", 0), (base / "secret", 0), (base / "data", 65534)):
            os.chown(path, owner, 65534)
        base.chmod(0o750)
        (base / "secret").chmod(mode)
        arguments = ["stores", "add", "east", "--secret", "file:secret", "--no-subscribe", "--no-reload", "--yes"]
        done = run_in_process(*arguments, "--config", str(base / "config.toml"))
        written = [path.name for path in base.glob("stores.d/*")]
        if mode & 0o040:
            assert written == ["east.toml"], (done.output, done.exception)
        else:
            assert isinstance(done.exception, ConfigError)
            assert "stores.east.signing_secrets[0] refers to" in str(done.exception)
            assert "the services may not read: they run as nobody" in str(done.exception)
            assert written == []


def test_a_discarded_draft_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    draft = Draft(path_for(load(tmp_path / "config.toml", {}), "east"), "[stores.east]\n")
    draft.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_a_config_without_include_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("include = []\n")
    with pytest.raises(ConfigError, match="includes no file for east"):
        path_for(load(tmp_path / "config.toml", {}), "east")


@pytest.mark.parametrize("mode", [0o750, 0o755, 0o700])
def test_a_folder_that_is_made_for_the_file_is_readable_by_who_reads_the_config(tmp_path: Path, mode: int) -> None:
    """By the umask that backup.md sets, the service could not read it: all deliveries of the new store got 401."""
    main = tmp_path / "etc" / "config.toml"
    main.parent.mkdir()
    main.write_text("")
    main.parent.chmod(mode)
    if os.getuid() == 0:
        os.chown(main.parent, 1234, 1235)
    before = os.umask(0o077)
    try:
        Draft(main.parent / "stores.d" / "east.toml", "", like=main).publish()
    finally:
        os.umask(before)
    found, like = (main.parent / "stores.d").stat(), main.parent.stat()
    assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (mode, like.st_uid, like.st_gid)
