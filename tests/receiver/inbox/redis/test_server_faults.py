"""A Redis server that cannot be used: the sentence says what is wrong and how to correct it, in every process."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from receiver.config.settings import RedisSettings
from receiver.contract.errors import ServerUnreachable, ServerUnusable
from receiver.inbox import connect_to, keys
from receiver.inbox.redis.connecting import check, socket_path
from receiver.inbox.redis.server_faults import fault_of_error
from tests.support.harness import Server, System, eventually, free_port, own_server
from tests.support.sentinels import NAME, Sentinels
from tests.support.tls_proxy import TlsProxy


@dataclass
class Locked:
    """A server that requires a password, and its TCP port."""

    server: Server
    port: int

    def url(self, user: str = "", database: str = "") -> str:
        return f"redis://{user}127.0.0.1:{self.port}{database}"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    port = free_port()
    with own_server(tmp_path_factory.mktemp("locked"), "--port", str(port)) as server:
        server.client.acl_setuser("reader", enabled=True, passwords=["+word"], commands=["+ping", "+get"], keys=["*"])
        server.client.acl_setuser("default", enabled=True, passwords=["+opensesame"], reset_passwords=True)
        yield Locked(server, port)


@pytest.fixture(scope="module")
def open_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The TCP port of a server without a password."""
    port = free_port()
    with own_server(tmp_path_factory.mktemp("open"), "--port", str(port)):
        yield port


def refusal(url: str, *, kind: type[ServerUnusable] = ServerUnusable, **more: object) -> str:
    given = RedisSettings.model_validate({"url": url, **more})
    with pytest.raises(ServerUnusable) as raised:
        check(connect_to(given, timeout=1.0))
    assert raised.type is kind
    assert "opensesame" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("user", "said", "fix"),
    [
        ("", "requires a password", "put it into [redis] url (or REDIS_URL): redis://USER:PASSWORD@HOST:PORT"),
        (":wrong@", "refuses the password of the user default", "correct them in [redis] url (or REDIS_URL)"),
        ("me:wrong@", "refuses the password of the user me", "special characters percent-encoded"),
        ("reader:word@", "the user reader may not run INFO", "give it the rights that docs/operating/redis.md lists"),
    ],
)
def test_a_wrong_password_is_named(locked: Locked, user: str, said: str, fix: str) -> None:
    sentence = refusal(locked.url(user))
    assert said in sentence
    assert fix in sentence
    assert "start it" not in sentence.lower()


def test_a_password_that_the_server_does_not_have_is_named(open_port: int) -> None:
    assert "has no password, and [redis] url (or REDIS_URL) has one" in refusal(f"redis://:x@127.0.0.1:{open_port}")


def test_a_database_that_the_server_does_not_have_is_named(open_port: int) -> None:
    assert "has no database 99" in refusal(f"redis://127.0.0.1:{open_port}/99")


def test_tls_to_a_port_without_tls_is_named(open_port: int) -> None:
    sentence = refusal(f"rediss://127.0.0.1:{open_port}", kind=ServerUnreachable)
    assert "does not complete the TLS handshake" in sentence
    assert "redis://" in sentence


def test_a_server_that_is_away_is_still_a_server_that_does_not_answer() -> None:
    sentence = refusal(f"redis://127.0.0.1:{free_port()}", kind=ServerUnreachable)
    assert "does not answer: " in sentence
    assert "Connection refused; start it, or set [redis] url" in sentence


def test_a_connection_that_is_closed_may_be_a_proxy_without_its_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def close_each() -> None:
            with contextlib.suppress(OSError):
                while True:
                    proxy.accept()[0].close()

        threading.Thread(target=close_each, daemon=True).start()
        sentence = refusal(f"redis://127.0.0.1:{proxy.getsockname()[1]}", kind=ServerUnreachable)
    assert "closes the connection" in sentence
    assert "if a proxy is in front of it, check that the server behind it is up" in sentence
    assert "if the server expects TLS, use rediss://" in sentence


def test_a_password_that_sentinels_refuse_is_named(tmp_path: Path) -> None:
    sentinels = Sentinels(tmp_path / "sentinels").start()
    try:
        given = {"sentinels": sentinels.addresses, "sentinel_name": NAME, "sentinel_password": "unknown"}
        sentence = refusal("", **given)
    finally:
        sentinels.close()
    assert "its sentinels refuse the password" in sentence
    assert "[redis] sentinel_password" in sentence


@pytest.mark.full
def test_a_wrong_certificate_is_named(open_port: int, tmp_path: Path, own_redis: Server) -> None:
    proxy = TlsProxy(tmp_path, socket_path(own_redis.data_dir))
    trusted = {"ca_file": str(proxy.certificate)}
    sentence = refusal(proxy.url)
    assert "is not trusted: self-signed certificate" in sentence
    assert "set [redis] ca_file" in sentence
    sentence = refusal(proxy.url.replace("127.0.0.1", "localhost"), **trusted)
    assert "is for another host" in sentence
    assert "use the host name of the certificate in [redis] url" in sentence
    assert f"[redis] ca_file {tmp_path}/none.pem cannot be read" in refusal(proxy.url, ca_file=f"{tmp_path}/none.pem")
    assert f"[redis] ca_file {tmp_path}/key.pem contains no cert" in refusal(proxy.url, ca_file=f"{tmp_path}/key.pem")
    sentence = refusal(f"redis://127.0.0.1:{proxy.port}", kind=ServerUnreachable)
    assert "if the server expects TLS, use rediss://" in sentence
    proxy.listener.close()


@pytest.mark.full
def test_an_expired_certificate_does_not_keep_the_receiver_from_starting(tmp_path: Path, own_redis: Server) -> None:
    proxy = TlsProxy(tmp_path, socket_path(own_redis.data_dir), dated="2020-01-01")
    sentence = refusal(proxy.url, kind=ServerUnreachable, ca_file=str(proxy.certificate))
    assert "has expired; renew it at the server" in sentence
    proxy.listener.close()


@pytest.mark.full
def test_a_client_certificate_that_the_server_requires_is_named(tmp_path: Path, own_redis: Server) -> None:
    proxy = TlsProxy(tmp_path, socket_path(own_redis.data_dir), requires_certificate=True)
    ca_file = str(proxy.certificate)
    certificate, key = f"ssl_certfile={tmp_path}/cert.pem", f"ssl_keyfile={tmp_path}/key.pem"
    sentence = refusal(proxy.url, ca_file=ca_file)
    assert "requires a client certificate; add ?ssl_certfile=PATH&ssl_keyfile=PATH to [redis] url" in sentence
    given = RedisSettings(url=f"{proxy.url}?{certificate}&{key}", ca_file=ca_file)
    assert "Valkey" in check(connect_to(given, timeout=1.0))
    missing = f"{tmp_path}/none.pem"
    sentence = refusal(f"{proxy.url}?ssl_certfile={missing}&{key}", ca_file=ca_file)
    assert f"[redis] url: ssl_certfile {missing} cannot be read: No such file" in sentence
    sentence = refusal(f"{proxy.url}?{certificate}&ssl_keyfile={missing}", ca_file=ca_file)
    assert f"[redis] url: ssl_keyfile {missing} cannot be read: No such file" in sentence
    assert "are no certificate with its key" in refusal(f"{proxy.url}?{certificate}", ca_file=ca_file)
    proxy.listener.close()


@pytest.mark.full
def test_a_client_certificate_that_the_server_does_not_trust_is_named(tmp_path: Path, own_redis: Server) -> None:
    folders = [tmp_path / "server", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    proxy, other = (TlsProxy(folder, socket_path(own_redis.data_dir), requires_certificate=True) for folder in folders)
    files = f"ssl_certfile={folders[1]}/cert.pem&ssl_keyfile={folders[1]}/key.pem"
    sentence = refusal(f"{proxy.url}?{files}", ca_file=str(proxy.certificate))
    assert "does not trust the client certificate of ssl_certfile in [redis] url" in sentence
    for one in (proxy, other):
        one.listener.close()


@pytest.mark.full
def test_a_missing_client_certificate_is_named_although_the_alert_is_lost_at_times(
    tmp_path: Path, own_redis: Server
) -> None:
    """A server that closes at once loses its alert in many cases: the first command is unread."""
    proxy = TlsProxy(tmp_path, socket_path(own_redis.data_dir), requires_certificate=True)
    proxy.closed_early = 3
    sentence = refusal(proxy.url, ca_file=str(proxy.certificate))
    assert "requires a client certificate" in sentence
    assert proxy.closed_early == 0
    proxy.listener.close()


def test_a_name_that_the_sentinels_do_not_know_is_named_and_a_primary_that_is_down_is_awaited(tmp_path: Path) -> None:
    sentinels = Sentinels(tmp_path / "sentinels").start()
    try:
        sentence = refusal("", sentinels=sentinels.addresses, sentinel_name="mymaster")
        assert f"the sentinels know no primary of the name mymaster; they know: {NAME}" in sentence
        assert "correct [redis] sentinel_name" in sentence
        for server in (sentinels.replica, sentinels.primary):
            server.kill()
        given = RedisSettings(sentinels=tuple(sentinels.addresses), sentinel_name=NAME)
        client = connect_to(given, timeout=1.0)
        eventually(lambda: "No master found" in _said(client), 20, what="the sentinels know that the primary is down")
        refusal("", kind=ServerUnreachable, sentinels=sentinels.addresses, sentinel_name=NAME)
    finally:
        sentinels.close()


def _said(client: Redis) -> str:
    with pytest.raises(RedisError) as raised:
        client.ping()
    return str(raised.value)


# Missing rights


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("-time", "may not run TIME; give it +time, as docs/operating/redis.md says"),
        ("resetkeys ~sh:*", "may not read keys that begin with rq:; give it ~rq:*, as"),
        ("-time -fcall", "may not run TIME or run FCALL; give it +time +@scripting, as"),
        ("-zadd -hset", "may not run HSET or run ZADD; give it +@write, as"),
    ],
)
@pytest.mark.parametrize("command", ["web", "worker"])
def test_a_user_without_a_right_is_refused_at_start(
    make_system: Callable[..., System], locked: Locked, rule: str, said: str, command: str
) -> None:
    rights = ["reset", "on", ">pw", "~*", "&*", "+@all", *rule.split()]
    locked.server.client.execute_command("ACL", "SETUSER", "limited", *rights)
    done = make_system(url=locked.url("limited:pw@")).refuse_to_start(command)
    assert done.returncode == 2
    assert f"the user limited of the Redis server at 127.0.0.1:{locked.port} {said}" in done.stderr


def test_a_missing_right_to_read_records_damages_none(locked: Locked, tmp_path: Path) -> None:
    """Sound events were quarantined without HMGET, and stayed so when it was given back."""
    rules = locked.server.client
    rules.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all")
    system = System(tmp_path, locked.url("limited:pw@"))
    ids = {system.accept() for _ in range(3)}
    rules.execute_command("ACL", "SETUSER", "limited", "-hmget")
    with pytest.raises(ResponseError, match="hmget"):
        system.inbox.claim({"": 3}, capacity=3)
    rules.execute_command("ACL", "SETUSER", "limited", "+hmget")
    assert {run.event.id for run in system.inbox.claim({"": 3}, capacity=3).runs} == ids
    assert not rules.exists(keys.QUARANTINED)
    system.close()


@pytest.mark.parametrize("taken", ["set", "hset", "hincrby", "zadd", "rpush", "sadd"])
def test_no_delivery_is_lost_while_a_right_to_write_is_missing(
    make_system: Callable[..., System], locked: Locked, taken: str
) -> None:
    """Without ZADD an event was stored and put in no set: it was answered "duplicate", and never handled."""
    rules = locked.server.client
    rules.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all")
    system = make_system(url=locked.url("limited:pw@"))
    system.start("web")
    system.deliver()
    rules.execute_command("ACL", "SETUSER", "limited", f"-{taken}")
    answers = [system.post(system.request(delivery_id=f"{taken}-{number}")).json() for number in range(3)]
    assert [one["status"] for one in answers] == ["accepted"] * 3
    eventually(lambda: system.http.get("/readyz").json()["stores_in"] == "spool", what="readiness notices it")
    rules.execute_command("ACL", "SETUSER", "limited", f"+{taken}")
    eventually(lambda: all(rules.zscore(keys.READY, one["id"]) is not None for one in answers), what="they are ready")
    assert system.identity_holds()


@pytest.mark.parametrize(
    ("taken", "command", "given"),
    [
        ("-@blocking", "BLMOVE", "+blmove"),
        ("-lrem", "LREM", "+lrem"),
        ("-evalsha", "EVALSHA", "+@scripting"),
        ("-script|load", "SCRIPT LOAD", "+@scripting"),
    ],
)
def test_a_worker_that_lacks_a_right_which_only_workers_need_is_refused_and_web_starts(
    make_system: Callable[..., System], locked: Locked, taken: str, command: str, given: str
) -> None:
    rights = ["reset", "on", ">pw", "~*", "&*", "+@all", taken]
    locked.server.client.execute_command("ACL", "SETUSER", "limited", *rights)
    system = make_system(url=locked.url("limited:pw@"))
    assert f"may not run {command}; give it {given}, as" in system.refuse_to_start("worker").stderr
    system.start("web")


@pytest.mark.full
def test_a_worker_whose_right_to_wait_is_taken_away_says_so(make_system: Callable[..., System], locked: Locked) -> None:
    rules = locked.server.client
    rules.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all")
    system = make_system(url=locked.url("limited:pw@"))
    system.start("worker")
    eventually(lambda: rules.info("clients")["blocked_clients"] == 1, what="the worker waits for wake-ups")
    rules.execute_command("ACL", "SETUSER", "limited", "-blmove")
    eventually(lambda: "the Redis server refuses to wait for wake-ups" in system.log("worker"))
    assert "no permissions to run the 'blmove' command" in system.log("worker")
    rules.execute_command("ACL", "SETUSER", "limited", "+blmove")
    eventually(lambda: "waiting for wake-ups is possible again" in system.log("worker"))


def test_a_right_that_is_missing_inside_a_script_is_named(locked: Locked) -> None:
    locked.server.client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "+@all", "-pexpire")
    with connect_to(RedisSettings(url=locked.url("limited:pw@")), timeout=1.0) as client:
        with pytest.raises(RedisError) as raised:
            client.eval("return redis.call('PEXPIRE', KEYS[1], 1)", 1, keys.FORMAT)
        fault = fault_of_error(raised.value, client)
    assert fault.text.endswith("the user limited may not run PEXPIRE")
    assert fault.fix == "give it the rights that docs/operating/redis.md lists"


def test_doctor_names_a_right_that_was_taken_away_and_advises_no_restart(
    make_system: Callable[..., System], locked: Locked
) -> None:
    """A restart would be refused. While web runs, it stores deliveries in the spool."""
    rules = locked.server.client
    rules.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all")
    system = make_system(url=locked.url("limited:pw@"))
    system.start("web", "worker", "housekeeper")
    assert system.status(system.deliver())
    rules.execute_command("ACL", "SETUSER", "limited", "-@scripting")
    assert system.post(system.request()).status_code == 200
    eventually(lambda: "no permissions to run the 'fcall' command" in system.log("web"), what="web's log names it")
    findings = json.loads(system.run_cli("doctor", "--json").stdout)["findings"]
    (server,) = [one for one in findings if one["check"] == "server"]
    assert server["level"] == "fail"
    assert "the user limited" in server["text"]
    assert "may not run FCALL or run FUNCTION LOAD" in server["text"]
    assert "give it +@scripting, as docs/operating/redis.md says" in server["fix"]
    assert "do not restart them" in server["more"][0]
    assert not {one["check"] for one in findings} & {"workers", "housekeeper"}
    assert not [one for one in findings if "start " in one["fix"]]


@pytest.mark.parametrize(
    ("taken", "command", "effect"),
    [
        ("-@blocking", "BLMOVE", "find new events late"),
        ("-evalsha", "EVALSHA", "cannot call the APIs of stores"),
    ],
)
def test_doctor_says_that_only_workers_are_refused_without_a_right_of_theirs(
    make_system: Callable[..., System], locked: Locked, taken: str, command: str, effect: str
) -> None:
    rights = ["reset", "on", ">pw", "~*", "&*", "+@all", taken]
    locked.server.client.execute_command("ACL", "SETUSER", "limited", *rights)
    done = make_system(url=locked.url("limited:pw@")).run_cli("doctor")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert f"may not run {command}" in said
    assert f"workers do not start, so do not restart them; those that run {effect}" in said
    assert "web and worker do not start" not in done.stdout
    assert "start `storehooks worker`" not in done.stdout


@pytest.mark.parametrize("missing", ["sh", "rq"])
def test_a_missing_key_pattern_is_named(locked: Locked, missing: str) -> None:
    """The server says only that it is a key."""
    given = "rq" if missing == "sh" else "sh"
    rights = ["reset", "on", ">pw", f"~{given}:*", "&*", "+@all"]
    locked.server.client.execute_command("ACL", "SETUSER", "limited", *rights)
    client = connect_to(RedisSettings(url=locked.url("limited:pw@")), timeout=1.0)
    with pytest.raises(RedisError) as raised:
        client.get(f"{missing}:any")
    fault = fault_of_error(raised.value, client)
    assert f"the user limited may not use keys that begin with {missing}:" in fault.text
    assert f"give it ~{missing}:*" in fault.fix
    sentence = refusal(locked.url("limited:pw@"))
    assert f"give it ~{missing}:*" in sentence


def test_a_worker_without_client_list_prints_no_warning_of_rq(
    make_system: Callable[..., System], locked: Locked
) -> None:
    rights = ["reset", "on", ">pw", "~*", "&*", "+@all", "-client|list"]
    locked.server.client.execute_command("ACL", "SETUSER", "limited", *rights)
    system = make_system(url=locked.url("limited:pw@"))
    system.start("worker")
    eventually(lambda: b"rq:workers" in locked.server.client.keys("rq:workers"), what="it is registered")
    assert "CLIENT LIST" not in system.log("worker")


# In every process


EVERYWHERE = ("web", "worker", "housekeeper", "dev", "stats")


@pytest.mark.parametrize("command", EVERYWHERE)
def test_every_process_refuses_a_wrong_password(
    make_system: Callable[..., System], locked: Locked, command: str
) -> None:
    system = make_system(url=locked.url(":wrong@"))
    done = system.refuse_to_start(command)
    assert done.returncode == 2
    assert "refuses the password of the user default" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_doctor_names_a_wrong_password(make_system: Callable[..., System], locked: Locked) -> None:
    system = make_system(url=locked.url(":wrong@"))
    done = system.run_cli("doctor")
    assert done.returncode == 1
    assert "refuses the password of the user default" in done.stdout
    assert "correct them in [redis] url" in done.stdout
    assert "start it" not in done.stdout


# Servers that answer and cannot work


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    extra = ("--port", str(port), "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with own_server(tmp_path_factory.mktemp("cluster"), *extra) as server:
        server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        yield server


@pytest.mark.parametrize("command", EVERYWHERE)
def test_every_process_refuses_a_redis_cluster(
    make_system: Callable[..., System], cluster: Server, command: str
) -> None:
    done = make_system(url=cluster.url).refuse_to_start(command)
    assert done.returncode == 2
    assert "is a Redis Cluster" in done.stderr + done.stdout
    assert "use one server, or a primary with replicas and sentinels" in done.stderr + done.stdout


def test_doctor_names_a_redis_cluster(make_system: Callable[..., System], cluster: Server) -> None:
    done = make_system(url=cluster.url).run_cli("doctor")
    assert done.returncode == 1
    assert "is a Redis Cluster" in done.stdout


def test_hup_leaves_web_with_its_redis_server_as_it_leaves_the_workers(system: System, cluster: Server) -> None:
    (web,) = system.start("web")
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace(system.config.redis.url, cluster.url))
    web.send(signal.SIGHUP)
    eventually(lambda: "[redis] has changed; restart `storehooks web`" in system.log("web"), what="the log says so")
    eventually(lambda: system.log("web").count("web listens") == 2, what="the reload is over")
    system.config_file.write_text(text)
    assert system.status(system.deliver()) == "open"


def test_a_server_that_turns_out_to_be_a_cluster_is_named_and_the_spool_takes_over(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    """It was away when the receiver started. An empty group is accepted by a cluster, and a delivery is not."""
    port = free_port()
    system = make_system(url=f"redis://127.0.0.1:{port}")
    system.start("web")
    (tmp_path / "late").mkdir()
    extra = ("--port", str(port), "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with own_server(tmp_path / "late", *extra) as server:
        server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: "is a Redis Cluster, where our scripts cannot run" in system.log("web"), what="a sentence")
        eventually(lambda: server.client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", what="it serves")
        system.deliver()
        ready = eventually(lambda: (found := system.http.get("/readyz").json())["spooled"] and found)
        assert (ready["stores_in"], ready["spooled"]) == ("spool", 1)
        doctor = system.run_cli("doctor")
        assert doctor.returncode == 1
        assert "is a Redis Cluster" in doctor.stdout


def test_a_replica_is_named_and_does_not_keep_the_receiver_from_starting(
    make_system: Callable[..., System], open_port: int, own_redis: Server
) -> None:
    """It may become the primary at any moment."""
    own_redis.client.replicaof("127.0.0.1", open_port)
    system = make_system(url=own_redis.url)
    system.start("supervisor", "web")
    says = f"is a replica of 127.0.0.1:{open_port}, and a replica refuses writes"
    eventually(lambda: says in system.log("supervisor"), what="the workers wait until it is the primary")
    assert "starting without Redis" in system.log("web")
    assert "is a replica of" in system.log("web")
    assert system.post(system.request()).status_code == 200


def test_a_policy_that_evicts_is_refused_where_config_may_not_be_read(own_redis: Server) -> None:
    """Hosted servers often do not allow CONFIG."""
    own_redis.client.config_set("maxmemory-policy", "allkeys-lru")
    own_redis.client.acl_setuser(
        "hosted", enabled=True, passwords=["+x"], commands=["+@all", "-config"], keys=["*"], channels=["*"]
    )
    assert "maxmemory-policy is allkeys-lru" in refusal(own_redis.url.replace("unix://", "unix://hosted:x@"))
