"""Who may see and do what: every route of the app, against visitors who may not."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from redis import Redis
from werkzeug.test import TestResponse

from receiver.config import Config, load
from receiver.contract.errors import ConfigError
from receiver.inbox import keys
from receiver.inbox.console_logins import ConsoleLogins
from tests.support.console import PASSWORD, VIEWER, RunningConsole, running_console
from tests.support.harness import SECRET, System, children_of, comm, eventually, free_port
from workers.console.access import allowed_origins, new_link, require_safe
from workers.console.application import PUBLIC, create_app

FOREIGN = "http://evil.example"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    with running_console(tmp_path_factory.mktemp("console")) as found:
        found.system.accept()
        yield found


@dataclass(frozen=True)
class Route:
    endpoint: str
    path: str
    method: str


def routes(config: Config) -> list[Route]:
    """Every route of the app's own map, with a value for each place."""
    values = {"filename": "console.css", "refusal_id": "1", "store": "north", "name": "north", "handler": "erp.export"}
    found = []
    for rule in create_app(config).url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", lambda match: values.get(match[1], "abc234"), rule.rule)
        found += [Route(rule.endpoint, path, method) for method in (rule.methods or ()) if method in ("GET", "POST")]
    return found


def test_every_route_is_refused_without_a_login(console: RunningConsole) -> None:
    before, visitor = console.contents(), console.browser()
    visitor.get("/login")
    for route in routes(console.config):
        if route.method == "GET":
            answer = visitor.http.get(route.path)
            expected = 404 if route.endpoint == "metrics.page" else 200 if route.endpoint in PUBLIC else 303
            assert answer.status_code == expected, route
            assert expected != 303 or answer.headers["location"].startswith("/login?next="), route
        elif route.endpoint not in PUBLIC:
            assert visitor.post(route.path).status_code == 403, route
    assert console.contents() == before


def test_a_viewer_may_look_and_change_nothing(console: RunningConsole) -> None:
    viewer = console.browser().log_in(VIEWER)
    before = console.contents()
    posts = [one for one in routes(console.config) if one.method == "POST" and one.endpoint not in PUBLIC]
    assert len(posts) >= 10
    for route in posts:
        if route.endpoint != "login.log_out":
            assert viewer.post(route.path, reason="r").status_code == 403, route
    for route in routes(console.config):
        if route.method == "GET":
            assert viewer.http.get(route.path).status_code in (200, 404), route
    assert console.contents() == before
    for path in ("/events", "/events/tail"):
        assert viewer.get(f"{path}?where=customer.email%3Da@b.example").status_code == 403, "it would tell the value"
    assert "Payload field" not in viewer.text("/events")
    viewer.get("/handlers")
    assert "<form" not in viewer.page.replace('<form class="find"', "").replace('<form class="leave"', "")


@pytest.mark.parametrize("kind", ["no token", "another token", "no origin", "foreign origin", "null origin"])
def test_every_post_needs_the_token_and_our_origin(console: RunningConsole, kind: str) -> None:
    operator = console.browser().log_in()
    before = console.contents()
    origins = {"no origin": "", "foreign origin": FOREIGN, "null origin": "null"}
    tokens = {"no token": "", "another token": "0" * 32}
    for route in (one for one in routes(console.config) if one.method == "POST"):
        answer = operator.post(
            route.path, origin=origins.get(kind), token=tokens.get(kind), password=PASSWORD, reason="r"
        )
        assert answer.status_code == 403, route
    assert console.contents() == before


def test_an_unknown_host_is_refused_on_every_route(console: RunningConsole) -> None:
    operator = console.browser().log_in()
    before = console.contents()
    paths = [*routes(console.config), Route("", "/nothing", "GET"), Route("", "/nothing", "POST")]
    for route in paths:
        for host in ("evil.example", f"evil.example:{console.url.rpartition(':')[2]}", "127.0.0.1"):
            answer = operator.http.request(route.method, route.path, headers={"Host": host, "Origin": f"http://{host}"})
            assert answer.status_code == 400, route
            assert f"Unknown Host: {host}. Open" in answer.text
    assert console.contents() == before


def test_every_answer_forbids_what_is_not_ours(console: RunningConsole) -> None:
    operator = console.browser().log_in()
    for path in ("/", "/events", "/static/console.css", "/nothing", "/events/unknown"):
        headers = operator.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'"), path
        assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy.replace("https", "")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("public, max-age=3600" if "static" in path else "no-store")


def test_no_other_method_is_answered(console: RunningConsole) -> None:
    operator = console.browser().log_in()
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"):
        assert operator.http.request(method, "/").status_code == 405, method


def test_no_get_changes_a_key(console: RunningConsole) -> None:
    operator = console.browser().log_in()
    before = console.contents()
    for route in routes(console.config):
        if route.method == "GET":
            assert operator.http.get(route.path).status_code in (200, 404), route
    assert console.contents() == before


def test_the_cookie_is_closed_to_scripts_and_new_at_each_login(console: RunningConsole) -> None:
    browser = console.browser()
    browser.get("/login")
    before = dict(browser.http.cookies)
    answer = browser.post("/login", password=PASSWORD)
    assert re.search(r"storehooks_\d+=[\w-]{43}; HttpOnly; Path=/; SameSite=Lax", answer.headers["set-cookie"])
    assert dict(browser.http.cookies) != before
    (cookie,) = browser.http.cookies.values()
    stored = b"".join(key + (value or b"") for key, value in console.contents().items())
    assert cookie.encode() not in stored, "Redis has only a digest"
    assert PASSWORD.encode() not in stored


def test_a_logout_ends_the_session(console: RunningConsole) -> None:
    browser = console.browser().log_in()
    (cookie,) = browser.http.cookies.values()
    assert browser.post("/logout").status_code == 303
    browser.http.cookies.clear()
    browser.http.cookies.set(f"storehooks_{console.url.rpartition(':')[2]}", cookie, domain="127.0.0.1")
    assert browser.get("/").status_code == 303


def test_wrong_passwords_are_delayed_more_and_more(console: RunningConsole) -> None:
    browser = console.browser()
    browser.get("/login")
    statuses = []
    for _ in range(200):
        answer = browser.post("/login", password="wrong")
        statuses.append(answer.status_code)
        if answer.status_code == 429:
            break
    assert 3 <= statuses.count(403) <= 5
    assert "Try again in 1 s" in answer.text
    assert browser.post("/login", password=PASSWORD).status_code == 429, "not examined during the wait"
    eventually(lambda: browser.post("/login", password=PASSWORD).status_code == 303, what="the wait ends")
    assert console.browser().log_in()


def test_after_the_login_one_is_where_one_wanted_to_be(console: RunningConsole) -> None:
    browser = console.browser()
    wanted = browser.get("/events?status=failed").headers["location"]
    browser.get(wanted)
    answer = browser.post("/login", password=PASSWORD, next="/events?status=failed")
    assert answer.headers["location"] == "/events?status=failed"


def test_a_long_address_is_not_repeated_in_the_answer_to_a_visitor(console: RunningConsole) -> None:
    """A proxy refuses long headers, and showed no login."""
    answer = console.browser().http.get(f"/events?find={'%C3%A9' * 500}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


@pytest.mark.parametrize("elsewhere", [FOREIGN, "//evil.example", "/\\evil.example", "javascript:alert(1)", "/a\nb"])
def test_a_login_leads_to_no_other_site(console: RunningConsole, elsewhere: str) -> None:
    browser = console.browser()
    browser.get("/login")
    assert browser.post("/login", password=PASSWORD, next=elsewhere).headers["location"] == "/"


# Other configs, in the app itself


class Visitor:
    """A browser at an app in this process."""

    def __init__(self, system: System, settings: str, *, origin: str = "http://127.0.0.1:8001") -> None:
        text = re.sub(r"\[console\][^\[]*", "", system.config_file.read_text())
        system.config_file.write_text(f"{text}\n[console]\n{settings}\n")
        self.config = load(system.config_file, {})
        self.client = create_app(self.config).test_client()
        self.origin = origin

    def get(self, path: str) -> TestResponse:
        return self.client.get(path, base_url=self.origin)

    def post(self, path: str, page: TestResponse, **fields: str) -> TestResponse:
        form = {"token": token_in(page), **fields}
        return self.client.post(path, base_url=self.origin, headers={"Origin": self.origin}, data=form)


def token_in(answer: TestResponse) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{32})"', answer.text)
    assert found
    return found[1]


def test_a_link_works_once_and_only_by_its_button(system: System, redis: Redis) -> None:
    visitor = Visitor(system, "")
    path = new_link(visitor.config.console, redis).removeprefix("http://127.0.0.1:8001")
    assert re.fullmatch(r"/login\?once=(\w{4}-){3}\w{4}", path)
    for _ in range(3):  # a preview of the link by some program spends nothing
        page = visitor.get(path)
        assert "Open the console" in page.text
    once = path.partition("=")[2]
    assert visitor.post("/login/link", page, once=once).status_code == 303
    assert visitor.get("/").status_code == 200
    other = Visitor(system, "")
    assert other.post("/login/link", other.get(path), once=once).status_code == 403
    assert other.get("/").status_code == 303


def test_a_link_opens_nothing_once_there_is_a_password(system: System, redis: Redis) -> None:
    visitor, once = Visitor(system, f'password = "{PASSWORD}"'), ConsoleLogins(redis).new_link()
    assert visitor.post("/login/link", visitor.get(f"/login?once={once}"), once=once).status_code == 403


def test_a_new_password_ends_the_sessions_of_the_old_one(system: System, redis: Redis) -> None:
    visitor = Visitor(system, 'password = "old"')
    visitor.post("/login", visitor.get("/login"), password="old")
    assert visitor.get("/").status_code == 200
    cookie = visitor.client.get_cookie("storehooks_8001", "127.0.0.1")
    assert cookie
    later = Visitor(system, 'password = "new"')
    later.client.set_cookie("storehooks_8001", cookie.value, domain="127.0.0.1")
    assert later.get("/").status_code == 303


def test_behind_a_proxy_with_a_path(system: System, redis: Redis) -> None:
    settings = f'password = "{PASSWORD}"\nurl = "https://ops.example/console"'
    visitor = Visitor(system, settings, origin="https://ops.example")
    assert visitor.get("/events").status_code == 404
    page = visitor.get("/console/login")
    assert 'href="/console/static/console.css"' in page.text
    answer = visitor.post("/console/login", page, password=PASSWORD, next="/console/events")
    assert answer.headers["location"] == "/console/events"
    assert re.search(r"Secure; HttpOnly; Path=/console; SameSite=Lax", answer.headers["set-cookie"])
    visitor.origin = "http://ops.example:8001"
    assert visitor.get("/console/").status_code == 400


def test_beside_the_proxy_a_forwarded_port_opens_it_without_a_secure_cookie(system: System, redis: Redis) -> None:
    visitor = Visitor(system, f'password = "{PASSWORD}"\nurl = "https://ops.example/console"')
    page = visitor.get("/console/login")
    answer = visitor.post("/console/login", page, password=PASSWORD)
    assert answer.status_code == 303
    for one in (page, answer):  # not every browser keeps a cookie with "Secure" that comes by HTTP
        assert re.search(r"=[\w-]{43}; HttpOnly; Path=/console; SameSite=Lax", one.headers["set-cookie"])
    assert visitor.get("/console/").status_code == 200


@pytest.mark.parametrize(
    "settings", ['bind = "0.0.0.0:8001"', 'url = "https://ops.example"', 'bind = "[::]:8001"\nviewer_password = "v"']
)
def test_without_a_password_only_loopback_is_allowed(tmp_path: Path, settings: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[stores.north]\nsigning_secrets = ["{SECRET}"]\n[console]\n{settings}\n')
    with pytest.raises(ConfigError, match="there is no password"):
        require_safe(load(path, {}).console)


def test_the_console_does_not_start_where_others_could_open_it(system: System) -> None:
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("127.0.0.1:0", "0.0.0.0:0"))
    done = system.run_cli("console")
    assert done.returncode == 2
    assert "set [console] password" in done.stderr


def test_the_origins_that_are_ours(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[console]\nurl = "https://Ops.example:443/x"\nbind = "127.0.0.1:9001"\npassword = "p"\n')
    assert allowed_origins(load(path, {}).console) == {
        "ops.example": "https://ops.example",
        "127.0.0.1:9001": "http://127.0.0.1:9001",
        "localhost:9001": "http://localhost:9001",
    }


def test_links_and_waits_expire(redis: Redis) -> None:
    logins = ConsoleLogins(redis)
    logins.new_link()
    logins.open("operator", "")
    for _ in range(5):
        logins.wait_ms("192.0.2.1")
    names = [
        name for name in redis.keys(keys.PREFIX + "*") if b"session:" in name or b"link:" in name or b"login:" in name
    ]
    assert len(names) == 3
    assert all(redis.ttl(name) > 0 for name in names)


def test_while_redis_is_away_the_page_says_so(system: System) -> None:
    text = system.config_file.read_text()
    system.config_file.write_text(re.sub(r'url = "unix[^"]*"', 'url = "redis://127.0.0.1:1"', text))
    visitor = Visitor(system, f'password = "{PASSWORD}"')
    for path in ("/", "/events", "/failures"):
        visitor.client.set_cookie("storehooks_8001", "x" * 43, domain="127.0.0.1")
        answer = visitor.get(path)
        assert answer.status_code == 503
        assert "Redis does not answer" in answer.text
        assert "Traceback" not in answer.text


def test_hup_loads_the_config_again_and_refuses_a_bad_one(console: RunningConsole) -> None:
    config = console.system.config_file
    (process,) = (one for one in console.system.processes if "workers.console" in one.command)
    text = config.read_text()
    try:
        config.write_text(text.replace(VIEWER, "another viewer's password"))
        process.send(signal.SIGHUP)
        eventually(lambda: login_status(console, "another viewer's password") == 303, 30, what="the new password")
        eventually(lambda: login_status(console, VIEWER) == 403, 30, what="the old password is refused")
        config.write_text(text.replace("[console]", "[consul]"))
        process.send(signal.SIGHUP)
        eventually(lambda: "config refused" in console.system.log("console"), 30, what="the refusal in the log")
        assert login_status(console, PASSWORD) == 303
        web, *_ = (pid for pid in children_of(process.pid) if comm(pid) == "sh-console web")
        os.kill(web, signal.SIGKILL)
        eventually(lambda: login_status(console, "another viewer's password") == 303, 30, what="the config in use")
        assert login_status(console, VIEWER) == 403, "the config of the start was used again"
    finally:
        config.write_text(text)
        process.send(signal.SIGHUP)
        eventually(lambda: login_status(console, VIEWER) == 303, 30, what="the old password again")


def test_hup_refuses_an_address_that_the_console_cannot_listen_on_and_goes_on_at_the_old_one(
    make_system: Callable[..., System],
) -> None:
    """Its web process ended, and again each few seconds, until the file was corrected."""
    system, port = make_system(), free_port()
    given = system.config_file.read_text()

    def use(address: str) -> None:
        section = f'[console]\nbind = "{address}"\npassword = "{PASSWORD}"'
        system.config_file.write_text(given.replace('[console]\nbind = "127.0.0.1:0"', section))

    def shows(port: int) -> bool:
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"http://127.0.0.1:{port}/login", timeout=5).status_code == 200
        return False

    def web_process() -> int:
        return next((pid for pid in children_of(process.pid) if comm(pid) == "sh-console web"), 0)

    use(f"127.0.0.1:{port}")
    (process,) = system.start("console")
    eventually(lambda: shows(port), what="the console answers")
    web = web_process()
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        for address, why in (
            (f"127.0.0.1:{taken}", f"cannot listen on 127.0.0.1:{taken}"),
            (f"0.0.0.0:{port}", f"[console] bind has changed to 0.0.0.0:{port}"),
        ):
            use(address)
            process.send(signal.SIGHUP)
            eventually(lambda why=why: why in system.log("console"), what="the log says so")
    assert shows(port)
    assert (web_process(), "Connection in use" in system.log("console")) == (web, False)
    use(f"127.0.0.1:{(new := free_port())}")
    process.send(signal.SIGHUP)
    eventually(lambda: shows(new), what="it listens on a free port")
    os.kill(web, signal.SIGKILL)
    eventually(lambda: web_process() not in (0, web) and shows(new), what="so does a process that is started later")


def login_status(console: RunningConsole, password: str) -> int:
    """0 if the process that answered is being replaced, and closed the connection."""
    console.system.client.delete(*console.system.client.keys(f"{keys.LOGIN}*"), "sh:wait:none")
    browser = console.browser()
    try:
        browser.get("/login")
        return browser.post("/login", password=password).status_code
    except httpx2.HTTPError:
        return 0
