"""The public endpoint over a real socket, under a real gunicorn."""

from __future__ import annotations

import io
import signal
import socket
from collections.abc import Callable, Iterator

import pytest

from receiver.contract.compose import Request
from receiver.delivery.admission import BodyUnreadable, read_body
from tests.support.harness import Server, System, eventually, free_port

PROBLEM = "application/problem+json"


@pytest.fixture
def web(system: System) -> Iterator[System]:
    system.start("web")
    return system


def test_a_signed_delivery_is_accepted_and_the_same_again_is_a_duplicate(web: System) -> None:
    request = web.request()
    first, second = web.post(request), web.post(request)
    assert (first.status_code, first.json()["status"]) == (200, "accepted")
    assert (second.status_code, second.json()) == (200, {"id": first.json()["id"], "status": "duplicate"})
    assert [event.id for event in web.ledger.events()] == [first.json()["id"]]


def test_a_flipped_byte_is_refused_and_nothing_is_stored(web: System) -> None:
    request = web.request()
    flipped = Request(request.headers, request.body.replace(b"42.00", b"43.00"))
    answer = web.post(flipped)
    assert (answer.status_code, answer.headers["content-type"]) == (401, PROBLEM)
    assert answer.json()["status"] == 401
    assert web.ledger.events() == []
    assert eventually(lambda: web.ledger.counters().stores.get("north", {}).get("refused")) == 1


def test_an_unknown_store_and_a_wrong_signature_get_the_same_answer(web: System) -> None:
    request = web.request()
    unknown = web.post(request, store="unknown")
    wrong = web.post(request, store="south")
    assert unknown.status_code == wrong.status_code == 401
    assert unknown.content == wrong.content
    assert {k: v for k, v in unknown.headers.items() if k != "date"} == {
        k: v for k, v in wrong.headers.items() if k != "date"
    }


def test_refusals_create_no_key_for_unknown_stores(web: System) -> None:
    for name in ("evil-1", "evil-2", "evil-3"):
        web.post(web.request(), store=name)
    eventually(lambda: web.ledger.counters().total["refused"] == 3)
    assert set(web.ledger.counters().stores) == {"?"}


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 413)])
def test_a_body_of_exactly_the_limit_is_accepted_and_one_byte_more_is_not(web: System, extra: int, status: int) -> None:
    limit = web.config.receiver.max_body
    empty = len(web.request(data={"id": 1, "pad": ""}).body)
    request = web.request(data={"id": 1, "pad": "x" * (limit - empty + extra)})
    assert len(request.body) == limit + extra
    assert web.post(request).status_code == status


def test_a_body_shorter_than_announced_is_refused(web: System) -> None:
    with socket.create_connection(("127.0.0.1", web.port)) as connection:
        connection.sendall(b"POST /webhooks/north HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nshort")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_a_chunked_body_is_read_completely(web: System) -> None:
    request = web.request()

    def pieces() -> Iterator[bytes]:
        yield request.body[:10]
        yield request.body[10:]

    answer = web.http.post("/webhooks/north", headers=request.headers, content=pieces())
    assert answer.json()["status"] == "accepted"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/webhooks/north", 405),
        ("PUT", "/webhooks/north", 405),
        ("GET", "/nowhere", 404),
        ("POST", "/webhooks/north/more", 404),
        ("POST", "/webhooks//north", 404),
    ],
)
def test_wrong_paths_and_methods_get_problem_json_and_never_a_redirect(
    web: System, method: str, path: str, status: int
) -> None:
    answer = web.http.request(method, f"http://127.0.0.1:{web.port}{path}")
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
    if status == 405:
        assert "POST" in answer.headers["allow"]


def test_health_depends_on_nothing_and_readiness_reports_where_it_stores(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = make_system(url=own_redis.url)
    system.start("web")
    assert system.http.get("/readyz").json() == {
        "status": "ready",
        "stores_in": "redis",
        "spooled": 0,
        "waiting_since": None,
    }
    own_redis.kill()
    assert system.http.get("/healthz").status_code == 200
    eventually(lambda: system.http.get("/readyz").json()["stores_in"] == "spool", what="it tries once a second")
    assert system.http.get("/readyz").json() == {
        "status": "ready",
        "stores_in": "spool",
        "spooled": 0,
        "waiting_since": None,
    }


def test_hup_loads_a_new_config_and_refuses_an_invalid_one(web: System) -> None:
    process = web.processes[0]
    good = web.config_file.read_text()
    third = good + '\n[stores.west]\nsigning_secrets = ["whsec_d2VzdCBzZWNyZXQgZm9yIHRlc3Rz"]\n'
    web.config_file.write_text(third)
    request = web.request(store="west")
    assert web.post(request, store="west").status_code == 401
    process.send(signal.SIGHUP)
    eventually(lambda: web.post(request, store="west").status_code == 200)
    web.config_file.write_text(third + "\n[nonsense]\n")
    process.send(signal.SIGHUP)
    eventually(lambda: "config refused, the old one stays" in web.log("web"))
    assert "unknown key nonsense" in web.log("web")
    web.config_file.write_text(third)
    assert eventually(lambda: web.post(web.request(store="west"), store="west").status_code == 200)
    process.send(signal.SIGHUP)
    eventually(lambda: web.log("web").count("Handling signal: hup") == 3)
    assert "web listens" not in web.log("web").split("Handling signal: hup")[2]
    eventually(lambda: "web listens" in web.log("web").split("Handling signal: hup")[3])


def test_hup_leaves_the_data_dir_as_it_is_because_the_spool_is_in_it(web: System) -> None:
    web.config_file.write_text(web.config_file.read_text().replace(str(web.folder / "data"), str(web.folder / "new")))
    web.processes[0].send(signal.SIGHUP)
    said = "[redis] has changed; restart `storehooks web` to use it"
    eventually(lambda: said in web.log("web"), what="the log says so")
    web.deliver()
    assert not (web.folder / "new").exists()


def test_hup_refuses_a_port_in_use_and_goes_on_at_the_old_one(web: System) -> None:
    """gunicorn would end after a few tries, with the old address closed."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        web.config_file.write_text(web.config_file.read_text().replace(f":{web.port}", f":{port}"))
        web.processes[0].send(signal.SIGHUP)
        eventually(lambda: f"cannot listen on 127.0.0.1:{port}" in web.log("web"), what="the log says so")
        web.deliver()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])  # of this host, and of none
def test_hup_refuses_another_host_on_the_same_port_and_goes_on_at_the_old_one(web: System, host: str) -> None:
    """gunicorn ended after a few tries: its workers had the port, or the address was not of this host."""
    text = web.config_file.read_text()
    web.config_file.write_text(text.replace(f'bind = "127.0.0.1:{web.port}"', f'bind = "{host}:{web.port}"'))
    web.processes[0].send(signal.SIGHUP)
    eventually(lambda: f"[receiver] bind has changed to {host}:{web.port}" in web.log("web"), what="the log says so")
    assert "config refused, the old one stays" in web.log("web")
    web.deliver()
    assert "Connection in use" not in web.log("web")


def test_a_port_in_use_is_one_sentence_and_exit_code_2(system: System) -> None:
    with socket.create_server(("127.0.0.1", system.port)):
        done = system.run_cli("web")
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{system.port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"PORT": "tcp://1.2.3.4:80"}, "$PORT must be a number, such as 8000, and is 'tcp://1.2.3.4:80'"),
        ({"STOREHOOKS_RECEIVER__BIND": "203.0.113.7:8000"}, "Cannot assign requested address; set [receiver] bind to"),
        (
            {"STOREHOOKS_RECEIVER__BIND": "no-such-host.invalid:8000"},
            "; set [receiver] bind to an address of this host",
        ),
    ],
)
def test_an_address_that_is_wrong_is_not_said_to_be_in_use(system: System, env: dict[str, str], said: str) -> None:
    done = system.run_cli("web", env=env)
    assert done.returncode == 2
    assert said in done.stderr
    assert "stop what uses it" not in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_spool_an_unreachable_redis_is_one_sentence_and_exit_code_2(
    make_system: Callable[..., System],
) -> None:
    system = make_system(url=f"redis://127.0.0.1:{free_port()}")
    done = system.run_cli("web", env={"STOREHOOKS_RECEIVER__SPOOL": "off"})
    assert done.returncode == 2
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_secret_and_no_payload_is_logged(web: System) -> None:
    request = web.request(data={"id": 5, "total": "1.00", "card": "4111-secret-payload"})
    web.post(request)
    web.post(Request(request.headers, request.body + b" "))
    web.processes[0].stop()
    assert "4111-secret-payload" not in web.log("web")
    assert "dGVzdCBzZWNyZXQ" not in web.log("web")


@pytest.mark.parametrize("length", ["0" * 5_000 + "2", "9" * 5_000, "9" * 30, "-1", "2x", "\u0662"])
def test_a_length_that_is_not_a_number_of_bytes_is_unreadable(length: str) -> None:
    with pytest.raises(BodyUnreadable):
        read_body(io.BytesIO(b"{}").read, length, 100)
