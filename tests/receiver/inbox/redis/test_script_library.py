"""Our scripts in the server: as functions, and by EVAL on a full server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from receiver.contract.errors import ServerUnusable
from receiver.inbox import Inbox, Outcome, connect
from receiver.inbox.redis import embedded_server, script_runner
from receiver.inbox.redis.connecting import check
from receiver.inbox.redis.script_library import library, script, sources
from receiver.inbox.redis.script_runner import ScriptCall
from tests.faults.test_damaged_records import restricted_inbox
from tests.support.harness import Process, Server, System, eventually, own_server
from tests.support.proxy import Proxy

ROOT = Path(__file__).parents[4]
PLUGIN = """
from workers import Router
router = Router("shop")

@router.on("order.*")
def greet(event, ctx):
    return ctx.once("greet", lambda: "hello")
"""


@pytest.fixture
def own(make_system: Callable[..., System], own_redis: Server) -> System:
    return make_system(url=own_redis.url)


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process has not removed old libraries yet."""
    monkeypatch.setattr(script_runner._OldLibraries, "removed", False)


def settle_one(inbox: Inbox) -> None:
    (event,) = inbox.claim({"": 1}, capacity=1).runs
    (reply,) = inbox.route([(event, [("shop.greet", "default", False)])], inbox.declarations().version)
    assert reply == ["routed"]
    (run,) = inbox.claim({"shop.greet": 1}, capacity=1).runs
    assert inbox.finish([Outcome(run, "done")]) == [True]


def test_the_server_has_one_function_for_each_script(own: System) -> None:
    own.accept()
    (loaded,) = own.client.function_list("storehooks_*")
    assert len(loaded[loaded.index(b"functions") + 1]) == len(sources())


def test_every_script_compiles_for_eval(own: System) -> None:
    for name in sources():
        own.client.script_load(script(name))


def test_flags_are_the_same_for_fcall_and_eval() -> None:
    assert script("claim").startswith("#!lua flags=allow-oom\n")
    assert script("accept").startswith("#!lua\n")
    assert "_claim', flags = { 'allow-oom' }" in library().text
    assert "_accept', flags = {  }" in library().text


@pytest.mark.parametrize("rule", ["-function", "-function|load", "-fcall"])
def test_a_user_without_the_right_to_functions_is_refused_at_start(own: System, rule: str) -> None:
    with restricted_inbox(own, rule) as restricted, pytest.raises(ServerUnusable, match=r"may not run .* \+@scripting"):
        check(restricted.client)


@pytest.mark.parametrize("direct", [False, True], ids=["pool", "direct"])
def test_a_new_version_at_a_full_server_can_still_drain_it(own: System, direct: bool) -> None:
    waiting = own.accept()
    own.client.function_delete(library().name)
    own.client.config_set("maxmemory", 1)
    inbox = Inbox(own.client, direct=direct)
    settle_one(inbox)
    with pytest.raises(ResponseError, match="maxmemory"):
        inbox.accept([own.delivery()])
    assert own.status(waiting) == "settled"
    assert own.identity_holds()
    assert libraries(own) == set()
    own.client.config_set("maxmemory", 0)
    own.accept()
    assert libraries(own) == {library().name}, "functions are used again as soon as they can be loaded"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
    ],
    ids=["READONLY", "NOREPLICAS"],
)
def test_a_server_that_refuses_writes_for_a_while_gets_the_library_afterwards(
    own: System, wrong: tuple[str, ...], right: tuple[str, ...]
) -> None:
    own.client.execute_command(*wrong)
    with pytest.raises(ResponseError):
        own.inbox.accept([own.delivery()])
    own.client.execute_command(*right)
    own.accept()
    assert libraries(own) == {library().name}


def test_old_libraries_are_removed_and_foreign_ones_are_not(own: System) -> None:
    for name in ("storehooks_1", "storehooks_2", "theirs"):
        register(own, name)
    own.accept()
    assert libraries(own) == {"storehooks_1", "storehooks_2", "theirs", library().name}
    own.client.function_delete(library().name)
    register(own, "storehooks_3")
    own.accept()
    assert libraries(own) == {"theirs", library().name}


def test_old_libraries_that_come_back_are_in_use_and_stay(own: System) -> None:
    names = {"storehooks_1", "storehooks_2", "storehooks_3"}
    for name in names:
        register(own, name)
    own.accept()
    assert libraries(own) == {library().name}
    for name in names:
        register(own, name)
    own.client.function_delete(library().name)
    own.accept()
    assert libraries(own) == {*names, library().name}


def test_a_failed_call_leaves_nothing_to_the_next(own: System) -> None:
    count_and_fail = "return function() count('accepted', 'north', 5) error('no', 0) end"
    text = script("lead").replace(sources()["lead"].text, count_and_fail)
    with pytest.raises(ResponseError, match="no"):
        own.client.eval(text, 1, "sh:")
    own.client.hdel("sh:n", "accepted|north")
    with pytest.raises(ResponseError):
        script_runner.run(own.client, [ScriptCall("claim", ["token"])])
    own.accept()
    assert own.ledger.counters().total["accepted"] == 1
    assert own.identity_holds()


@pytest.mark.full
def test_the_memory_of_lua_does_not_grow_with_its_arguments(own: System) -> None:
    large = {"note": "x" * 100_000}
    for _ in range(20):
        own.inbox.accept([own.delivery(data=large) for _ in range(32)])
        own.inbox.claim({"": 32}, capacity=32)
    assert own.client.info("memory")["used_memory_vm_functions"] < 20_000_000


def test_the_user_in_the_documentation_has_all_rights_that_are_needed(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    text = (ROOT / "docs/operating/redis.md").read_text()
    (rule,) = re.findall(r"^    (ACL SETUSER .*)$", text, re.MULTILINE)
    own_redis.client.execute_command(*rule.replace("PASSWORD", "pw").split())
    system = make_system(url=own_redis.url.replace("unix://", "unix://storehooks:pw@"), plugin=PLUGIN)
    system.start("web", "worker", "housekeeper")
    assert system.settled(system.deliver()) == "settled"
    refused = own_redis.client.execute_command("ACL", "LOG")
    assert refused == []
    assert own_redis.client.info("commandstats")["cmdstat_fcall"]["calls"] > 0


def test_a_user_who_only_reads_may_use_commands_but_runs_no_process(own_redis: Server) -> None:
    rights = ["on", ">pw", "~*", "+@read", "+@connection", "+@transaction", "+info", "+time", "+config|get"]
    own_redis.client.execute_command("ACL", "SETUSER", "reader", *rights)
    client = connect(own_redis.url.replace("unix://", "unix://reader:pw@"), timeout=2.0)
    assert "Valkey" in check(client, runs_scripts=False)
    with pytest.raises(ServerUnusable, match="may not run FCALL or run FUNCTION LOAD"):
        check(client)


def test_a_server_that_is_still_loading_its_data_is_not_refused(tmp_path: Path) -> None:
    """Otherwise no web process would start, and spool, after the server's host was restarted."""
    server = Server(tmp_path).start()
    pipeline = server.client.pipeline(transaction=False)
    for number in range(30_000):
        pipeline.set(f"key-{number}", number)
    pipeline.execute()
    server.stop()
    command = [*embedded_server.command(embedded_server.binary(), tmp_path), "--key-load-delay", "100"]
    loading = Process(command, log=tmp_path / "loading.log")
    try:
        eventually(lambda: is_loading(server.client), 10, what="the server is loading")
        assert "Valkey" in check(server.client)
        assert is_loading(server.client), "it was loading all the time"
    finally:
        loading.kill()


def is_loading(client: Redis) -> bool:
    try:
        return bool(client.info("persistence")["loading"])
    except RedisError:
        return False


def register(own: System, name: str) -> None:
    own.client.function_load(f"#!lua name={name}\nredis.register_function('{name}_f', function() return 1 end)")


def libraries(own: System) -> set[str]:
    return {one[one.index(b"library_name") + 1].decode() for one in own.client.function_list()}


def test_a_read_only_server_is_left_and_the_next_call_connects_again(own: System) -> None:
    direct = Inbox(own.client, direct=True)
    assert direct.claim({"": 1}, capacity=1).runs == ()
    own.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(ReadOnlyError):
        direct.claim({"": 1}, capacity=1)
    own.client.execute_command("REPLICAOF", "NO", "ONE")
    assert direct.claim({"": 1}, capacity=1).runs == ()


def test_a_connection_whose_address_leads_to_a_new_server_is_replaced(own: System, tmp_path: Path) -> None:
    own.accept()
    proxy = Proxy(tmp_path, own.client.connection_pool.connection_kwargs["path"])
    with own_server(tmp_path / "other") as other:
        direct = Inbox(connect(proxy.url, timeout=2.0), direct=True)
        assert len(direct.claim({"": 1}, capacity=1).runs) == 1
        own.client.function_delete(library().name)
        proxy.upstream = other.client.connection_pool.connection_kwargs["path"]
        with pytest.raises(ResponseError, match="not found"):
            direct.claim({"": 1}, capacity=1)
        assert direct.claim({"": 1}, capacity=1).runs == ()
    proxy.close()
