"""doctor on real processes: a healthy installation has no failures; a broken one is reported with fault and fix."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from receiver.config import load
from receiver.config.values import Bounds
from receiver.contract.intake import read_delivery
from receiver.inbox import Administration, Inbox, connect
from receiver.inbox.queries.health import HealthQueries
from receiver.inbox.redis.connecting import socket_path
from receiver.spool import Refusal, open_refusals
from tests.support.command_in_process import run_in_process
from tests.support.faked_clock import clock_from, needs_faketime
from tests.support.harness import OTHER_SECRET, SECRET, Server, System, children_of, eventually, free_port, own_server
from tests.support.installations import (
    BROKEN,
    Breakage,
    Installation,
    no_worker,
    plugin_that_hangs,
    store_that_hangs,
)
from tests.support.proxy import Proxy
from tests.support.raw_server import RawServer
from tests.support.tls_proxy import TlsProxy
from workers.operations.doctor import local_facts
from workers.operations.doctor.examination import gather_facts
from workers.operations.doctor.network_facts import probe_public_url
from workers.storeapi.errors import Unreachable
from workers.storeapi.transport import http

FAILING = """
from workers import Fail, Router
router = Router("erp")

@router.on("order.created")
def export(event, ctx):
    raise Fail("unknown SKU")
"""


@dataclass
class Report:
    """The output of doctor."""

    code: int
    text: str
    findings: list[dict[str, Any]] = field(default_factory=list)

    def lines(self, level: str) -> list[str]:
        return [
            f"{finding['check']}: {finding['text']} | {finding['fix']}"
            for finding in self.findings
            if finding["level"] == level
        ]


def doctor(config: Path, *options: str, env: dict[str, str] | None = None) -> Report:
    arguments = ["doctor", "--config", str(config), *options]
    done = run_in_process(*arguments, env=env, catch_exceptions=False)
    findings = json.loads(done.stdout)["findings"] if "--json" in options else []
    return Report(done.exit_code, done.output, findings)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("installation")
    (folder / "data").mkdir()
    with own_server(tmp_path_factory.mktemp("server")) as server:
        installation = Installation(folder, server)
        yield installation
        installation.system.close()


def test_a_healthy_installation_has_no_failures(installation: Installation) -> None:
    report = eventually(
        lambda: (r := doctor(installation.config_file)).code == 0 and "1 of 1" in r.text and r, 20, what="a check"
    )
    assert "0 problems, 0 warnings" in report.text
    assert "FAIL" not in report.text
    for name in ("config", "server", "memory", "disk", "handlers", "workers", "housekeeper", "public url", "north"):
        assert f"ok    {name} " in report.text, report.text
    assert "token 59 min" in report.text or "token 1 h" in report.text
    assert SECRET not in report.text


@pytest.mark.parametrize(
    ("breakage", "code", "check", "says", "fix"), BROKEN, ids=[f"{row[0].__name__}-{row[2]}" for row in BROKEN]
)
def test_a_broken_installation_is_reported_with_its_fix(
    installation: Installation, tmp_path: Path, breakage: Breakage, code: int, check: str, says: list[str], fix: str
) -> None:
    hangs = breakage is store_that_hangs  # what answers may take its time on a busy machine
    with breakage(installation, tmp_path) as config:
        started = time.monotonic()
        report = doctor(config, "--json", "--timeout", "2.5s" if hangs else "20s")
        took = time.monotonic() - started
    found = [line for line in report.lines("fail") if line.startswith(f"{check}: ")]
    assert any(all(part in line for part in says) and fix in line for line in found), report.findings
    assert report.code == code
    assert not {one["check"] for one in report.findings if one["level"] == "fail"} & {
        one["check"] for one in report.findings if one["level"] == "ok"
    }, "one area is not both"
    assert not hangs or took < 12, f"{took:.1f} s"
    assert SECRET not in report.text
    assert OTHER_SECRET not in report.text
    if breakage is no_worker:
        assert any(line.startswith("housekeeper: no housekeeper is running") for line in report.lines("fail"))


def test_plugins_that_load_slowly_are_a_warning(installation: Installation, tmp_path: Path) -> None:
    """Workers wait longer for them than doctor does, so they may run."""
    with plugin_that_hangs(installation, tmp_path) as config:
        report = doctor(config, "--json", "--timeout", "2.5s")
    (line,) = [line for line in report.lines("warn") if line.startswith("handlers: ")]
    assert "takes longer than doctor waits" in line
    assert "--timeout 1m" in line


def test_the_web_process_is_found_where_its_environment_makes_it_listen(make_system: Callable[..., System]) -> None:
    """honcho and many platforms set PORT for the web process only, which then listens there on every interface."""
    system = make_system()
    other, port = free_port(), system.port
    system.config_file.write_text(system.config_file.read_text().replace(f"127.0.0.1:{port}", f"127.0.0.1:{other}"))
    web, _, _ = system.start("web", "worker", "housekeeper", env={"PORT": str(port)})
    (line,) = [line for line in web.output().splitlines() if "web listens" in line]
    assert {"address": f"0.0.0.0:{port}", "set_by": "$PORT"}.items() <= json.loads(line).items()

    (found,) = [one for one in doctor(system.config_file, "--json").findings if one["check"] == "public url"]
    assert found["level"] == "fail"
    assert found["text"].startswith(f"http://127.0.0.1:{other} does not answer: ")
    assert found["more"] == [
        f"the web process itself answers at 0.0.0.0:{port}, not at [receiver] bind 127.0.0.1:{other}"
    ]
    assert "to the address that stores send to; or start `storehooks web` without PORT" in found["fix"]
    sent = system.run_cli("send", "order.created", "--store", "north")
    assert sent.returncode == 2
    assert f"the web process listens at 0.0.0.0:{port}" in sent.stderr


def test_the_web_process_is_asked_although_reading_redis_takes_all_the_time(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = make_system()
    system.start("web", "worker", "housekeeper")
    read = local_facts.inbox_facts

    def slow(*args: Any) -> Any:
        time.sleep(2.0)  # what a server far away takes
        return read(*args)

    monkeypatch.setattr(local_facts, "inbox_facts", slow)
    (found,) = [
        one
        for one in doctor(system.config_file, "--json", "--timeout", "1.5s").findings
        if one["check"] == "public url"
    ]
    assert (found["level"], "answered in" in found["text"]) == ("ok", True), found


@pytest.mark.timed
@pytest.mark.parametrize(("delay", "level"), [(0.55, "warn"), (1.0, "fail")])
def test_on_a_slow_link_doctor_is_quick_and_names_the_round_trip(
    make_system: Callable[..., System], own_redis: Server, delay: float, level: str
) -> None:
    """It read one thing after the other."""
    near = make_system(url=own_redis.url)
    near.start("worker", "housekeeper")
    activity = HealthQueries(own_redis.client)
    eventually(lambda: activity.workers() and activity.housekeeper(), 20, what="reports")
    proxy = Proxy(own_redis.data_dir, str(socket_path(own_redis.data_dir)))
    proxy.delay = delay
    far = make_system(url=proxy.url)
    with_long_timeout = far.config_file.read_text().replace("[redis]", '[redis]\ntimeout = "1s"')
    far.config_file.write_text(with_long_timeout)  # a busy machine adds a tenth of a second or two to each round trip
    started = time.monotonic()
    report = doctor(far.config_file, "--json")
    took = time.monotonic() - started
    proxy.close()
    (server,) = [one for one in report.findings if one["check"] == "server"]
    assert server["level"] == level, server
    assert re.search(r"takes 1?\d\d\d ms.* timeout is 1000 ms", server["text"])
    workers = [one["level"] for one in report.findings if one["check"] == "workers"]
    assert workers == (["ok"] if level == "warn" else []), report.findings
    assert took < 18, f"{took:.1f} s"


@needs_faketime
def test_a_worker_whose_clock_is_behind_is_running(make_system: Callable[..., System]) -> None:
    """It was reported as dead, and was to be started, while it handled every event."""
    system = make_system()
    (system.folder / "clock").write_text("-60")
    system.start("worker", env=clock_from(system.folder / "clock"))
    (worker,) = eventually(HealthQueries(system.client).workers, what="its heartbeat")
    assert abs(worker.clock_ahead + 60) < 4
    assert abs(worker.at.timestamp() - time.time()) < 20
    findings = [one for one in doctor(system.config_file, "--json").findings if one["check"] in ("clock", "workers")]
    assert [one["level"] for one in findings] == ["warn", "ok"], findings
    assert re.search(r"^the clock of the worker on \S+ is (1 min|[56]\d s) behind this machine's$", findings[0]["text"])


NO_RATE_LIMIT = "resetkeys ~rq:* ~sh: ~sh:[^a]* ~sh:a[^p]* ~sh:api:[^r]*"


@pytest.mark.parametrize(
    ("rules", "check", "says", "fix"),
    [
        ("-evalsha", "server", "may not run EVALSHA", "give it +@scripting"),
        (NO_RATE_LIMIT, "north", "its API was not called: .* user limited may not", "give it the rights that docs/"),
    ],
)
def test_the_store_is_not_blamed_for_a_right_that_is_missing_in_redis(
    installation: Installation, rules: str, check: str, says: str, fix: str
) -> None:
    """Each call to its API takes a slot of the rate limit in Redis first."""
    rights = ["reset", "on", ">pw", "~*", "&*", "+@all", *rules.split()]
    installation.server.client.execute_command("ACL", "SETUSER", "limited", *rights)
    url = installation.server.url.replace("//", "//limited:pw@")
    found = doctor(installation.config_file, "--json", env={"REDIS_URL": url}).findings
    failed = [one for one in found if one["level"] == "fail"]
    assert [one["check"] for one in failed] == [check], failed
    assert re.search(says, failed[0]["text"])
    assert fix in failed[0]["fix"]


def test_a_web_process_that_hangs_is_not_to_be_started(make_system: Callable[..., System]) -> None:
    system = make_system()
    (web,) = system.start("web")
    eventually(system.ledger.spools, what="it has reported")
    stopped = [web.pid, *children_of(web.pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        report = doctor(system.config_file, "--json")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    (line,) = [line for line in report.lines("fail") if line.startswith("public url: ")]
    assert "`storehooks web` runs, and does not answer" in line
    assert "start `storehooks web`" not in line


def test_a_server_that_refuses_writes_is_the_only_fault_named(
    make_system: Callable[..., System], own_redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process can report there. Each was called dead, and was to be started again or forgotten."""
    system = make_system(url=own_redis.url)
    system.start("web", "worker", "housekeeper")
    activity = HealthQueries(own_redis.client)
    eventually(lambda: activity.workers() and activity.housekeeper() and system.ledger.spools(), 20, what="reports")
    Inbox(own_redis.client).publish_spool("elsewhere:/data", 3, 0.0)
    own_redis.client.config_set("min-replicas-to-write", 1)
    monkeypatch.setattr("receiver.inbox.queries.health.WORKER_SECONDS", 0)
    monkeypatch.setattr("receiver.inbox.queries.events.SILENT_SECONDS", 0.5)
    eventually(lambda: not activity.housekeeper() and len(silent_hosts(system)) == 2, what="all are silent")
    report = doctor(system.config_file, "--json")
    (line,) = report.lines("fail")
    assert line.startswith("server: ")
    assert "refuses writes: NOREPLICAS Not enough good replicas to write" in line
    assert "min-replicas-to-write" in line
    unknown = [line for line in report.lines("warn") if line.endswith("see server above")]
    assert [line.partition(": ")[0] for line in unknown] == ["spool", "spool", "workers", "housekeeper", "public url"]
    assert all("cannot be written" in line for line in unknown[:4]), unknown
    advice = "\n".join(line.rpartition(" | ")[2] for line in report.lines("warn"))
    assert not re.search("start|forget|retire", advice), advice
    listed = run_in_process("hosts", "--config", str(system.config_file))
    assert "silent" in listed.output
    assert "forget" not in listed.output
    assert "refuses writes: NOREPLICAS" in listed.output
    said = eventually(lambda: re.findall(r'"why": *"[^"]*NOREPLICAS[^"]*"', system.log("web")), what="web's log")
    assert "Not enough good replicas" in said[0]


@pytest.mark.full
def test_a_replica_that_hangs_is_a_failure_until_it_answers(make_system: Callable[..., System], tmp_path: Path) -> None:
    port, folders = free_port(), [tmp_path / name for name in ("primary", "replica")]
    for folder in folders:
        folder.mkdir()
    listening, following = ("--port", str(port), "--repl-diskless-sync-delay", "0"), ("--replicaof", "127.0.0.1")
    with own_server(folders[0], *listening) as primary, own_server(folders[1], *following, str(port)) as replica:
        system = make_system(url=primary.url)
        text = system.config_file.read_text()
        system.config_file.write_text(text.replace("[redis]", '[redis]\nack = "replica"', 1))

        def server_row() -> str:
            report = doctor(system.config_file, "--json")
            return "\n".join(line for state in ("ok", "fail") for line in report.lines(state) if "server: " in line)

        state = primary.client.info
        eventually(
            lambda: state("replication").get("slave0", {}).get("state") == "online", what="the replica is online"
        )
        assert "appendfsync always, answers" in server_row()
        assert replica.process
        replica.process.send(signal.SIGSTOP)
        said = eventually(lambda: "every delivery goes to the spool" in (row := server_row()) and row)
        assert 'ack = "replica", and no connected replica answers' in said
        assert "restart the replica" in said
        replica.process.send(signal.SIGCONT)
        eventually(lambda: "appendfsync always, answers" in server_row(), what="the replica answers again")


def silent_hosts(system: System) -> list[str]:
    return [name for name, one in system.ledger.spools().items() if one.state == "silent"]


def test_a_permanent_failure_is_a_problem_until_it_is_dropped(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=FAILING)
    system.start("web", "worker", "housekeeper")
    assert system.settled(system.deliver()) == "failed"
    report = doctor(system.config_file, "--json")
    (line,) = [line for line in report.lines("fail") if line.startswith("failures: ")]
    assert line.startswith("failures: 1 run failed for good; none waits for a retry | storehooks failures; ")
    assert report.code == 1
    dropped = system.run_cli("failures", "drop", "--event", system.ledger.events()[0].id, "--reason", "a test", "--yes")
    assert dropped.returncode == 0, dropped.stdout + dropped.stderr
    assert not [one for one in doctor(system.config_file, "--json").findings if one["check"] == "failures"]


def test_a_warning_exits_1_only_with_strict(installation: Installation) -> None:
    with installation.setting(appendfsync="everysec") as config:
        report = doctor(config)
        assert report.code == 0, report.text
        assert re.search(r"^WARN  server +Valkey [0-9.]+, appendfsync everysec$", report.text, flags=re.M)
        assert "a power cut may lose the last second of accepted events" in report.text
        only_this = "0 problems, 1 warning"  # a busy machine may add one of its own for a moment
        eventually(lambda: only_this in doctor(config).text, 60)
        assert doctor(config, "--strict").code == 1


def test_a_config_file_with_secrets_that_all_users_can_read_is_a_warning(installation: Installation) -> None:
    open_file = installation.broken("processes = 1", "processes = 2", name="open.toml")
    open_file.chmod(0o644)
    report = doctor(open_file)
    assert "open.toml contains secrets and is readable by all users of this machine" in report.text
    assert f"fix: chmod o= {open_file}" in report.text
    open_file.chmod(0o640)
    assert "readable by all users" not in doctor(open_file).text, "the service may read it by its group"
    open_file.chmod(0o644)
    open_file.write_text(
        installation.text.replace(f'"{SECRET}"', '"env:ONE"').replace(f'"{OTHER_SECRET}"', '"env:TWO"')
    )
    text = open_file.read_text().replace('client_secret = "right"', 'client_secret = "env:THREE"')
    open_file.write_text(text)
    assert (
        "readable by all users"
        not in doctor(open_file, env={"ONE": SECRET, "TWO": OTHER_SECRET, "THREE": "right"}).text
    )


def test_a_paused_store_and_an_unconfirmed_operation_are_warnings(installation: Installation) -> None:
    from workers.storeapi import ApiError, client_for_store

    administration = Administration(connect(installation.server.url, timeout=5.0))
    with pytest.raises(ApiError):
        client_for_store(installation.system.config, "north", administration.client).webhooks.get(99)
    administration.pause(store="north")
    try:
        report = doctor(installation.config_file)
    finally:
        administration.resume(store="north")
    assert re.search(r"^WARN  paused +north is paused; its runs wait$", report.text, flags=re.M)
    assert "fix: storehooks stores resume north" in report.text
    assert "webhooks.get is in use; its method and path are assumed" in report.text


@pytest.mark.parametrize(
    ("written", "exposed"),
    [
        ({"secrets": {"key": "a2V5"}}, ["a2V5"]),
        ({"secrets": {"key": "env:KEY"}}, []),
        ({"redis": {"url": "redis://:pw@host/0", "sentinel_password": "s"}}, ["s", "pw"]),
        ({"redis": {"url": "redis://host/0"}}, []),
        ({"redis": {"url": "env:REDIS"}}, []),
    ],
)
def test_keys_and_passwords_written_in_the_file_are_exposed_secrets(
    written: dict[str, Any], exposed: list[str]
) -> None:
    from workers.operations.doctor.local_facts import _secrets_in

    assert list(_secrets_in(written)) == exposed


@pytest.mark.parametrize("body", ['<p>"alive"</p>', '["alive"]', '{"status": "alive"}'])
def test_an_answer_of_readyz_that_is_not_ours_is_named_as_such(system: System, body: str) -> None:
    """It was reported as a URL that does not answer in time."""
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    proxy = RawServer(f"{head}{body}".encode())
    config = system.config
    config = config.model_copy(update={"receiver": config.receiver.model_copy(update={"public_url": proxy.url})})
    found = probe_public_url(config, proxy.url, 5.0)
    assert found.fault == "answered /readyz with 200 and no storehooks answer"
    proxy.close()


def test_a_store_whose_accepted_deliveries_were_all_unreadable_has_accepted_some(system: System) -> None:
    """It was said that no delivery was ever accepted."""
    unreadable = system.request()
    body = b"not JSON"
    store = system.config.known_stores["north"]
    delivery = read_delivery(unreadable.headers, body, store=store, now=time.time(), source="webhook")
    assert (delivery.unreadable != "", delivery.theirs) == (True, "")
    Inbox(system.client).accept([delivery])
    refused = Refusal(time.time(), "north", "north", "signature-mismatch", 1, "", "")
    open_refusals(system.folder / "data").add([refused], bounds=Bounds(3600.0, 1 << 20), now=time.time())
    said = system.run_cli("doctor", "--json").stdout
    assert "no delivery was ever accepted" not in said
    assert "signature-mismatch 1; 1 other delivery was accepted and failed: see `storehooks failures`" in said


class Alive(BaseHTTPRequestHandler):
    """Answers as the web process does."""

    def do_GET(self) -> None:
        body = b'{"status": "alive", "stores_in": "redis"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_private_certificate_authority_of_the_environment_is_trusted_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`send` trusted what SSL_CERT_FILE names; doctor, probes and the store's API did not."""
    certificate = tmp_path / "cert.pem"
    TlsProxy(tmp_path, tmp_path / "unused").listener.close()  # it makes the certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, tmp_path / "key.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Alive)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"https://127.0.0.1:{server.server_port}"
    (tmp_path / "config.toml").write_text(f'[receiver]\npublic_url = "{url}"\n')
    config = load(tmp_path / "config.toml", {})
    monkeypatch.setattr(http, "_pools", {})
    try:
        assert "CERTIFICATE_VERIFY_FAILED" in probe_public_url(config, url, 5).fault
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            http.HttpSession(allow_private=True).send("GET", url, headers={}, until=time.monotonic() + 5)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        monkeypatch.setattr(http, "_pools", {})
        assert probe_public_url(config, url, 5).fault == ""
        answer = http.HttpSession(allow_private=True).send("GET", url, headers={}, until=time.monotonic() + 5)
        assert answer.status == 200
    finally:
        server.shutdown()
        server.server_close()


def test_a_handler_that_reads_what_redact_removes_is_a_warning(make_system: Callable[..., System]) -> None:
    plugin = """
from storehooks import Router
router = Router("shop")

@router.on("order.*", order_by="data.customer.email", on_failure="stop")
def book(event, ctx): ...

@router.on("order.*", when={"address.city": "Ulm", "total": "> 1"})
def visit(event, ctx): ...

@router.on("order.*", order_by="data.customer_id", when={"customer.id": "*"})
def unharmed(event, ctx): ...
"""
    system = make_system(plugin=plugin, more='[redact]\npaths = ["customer.email", "address", "customer_i"]\n')
    for command in ("handlers", "doctor"):
        done = system.run_cli(command)
        told = done.stdout + done.stderr
        assert "shop.book reads what [redact] removes: order_by customer.email" in told
        assert "shop.visit reads what [redact] removes: when address.city" in told
        assert "shop.unharmed reads" not in told


def test_without_time_only_apis_that_are_used_count_as_not_checked(tmp_path: Path) -> None:
    stores = f"""
    [redis]
    data_dir = "data"
    [stores.pad]
    signing_secrets = ["{SECRET}"]
    [stores.south]
    signing_secrets = ["{OTHER_SECRET}"]
    base_url = "https://192.0.2.1"
    auth = {{token = "t"}}
    """
    (tmp_path / "config.toml").write_text(stores)
    found = gather_facts(load(tmp_path / "config.toml", {}), timeout=0.0).apis
    assert {name: one.state for name, one in found.items()} == {"pad": "none", "south": "unasked"}
