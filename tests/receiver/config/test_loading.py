"""Config: files and environment give one validated Config, or an error with the place and the fix."""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from pathlib import Path

import pytest

from receiver import config
from receiver.config import Config
from receiver.config.loading import find_config_file
from receiver.contract.errors import ConfigError
from tests.support.harness import SECRET
from tests.support.programs import ROOT

STORE = f'[stores.north]\nsigning_secrets = ["{SECRET}"]\n'


def load(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> Config:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return config.load(path, environ or {})


def error_of(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environ)
    return str(caught.value).replace(str(tmp_path) + "/", "")


def test_the_example_has_the_defaults_and_the_sandbox_store() -> None:
    example = config.load(ROOT / "config.example.toml", {}).model_dump()
    defaults = Config().model_dump()
    assert set(example.pop("stores")) == {"demo"}
    assert set(example.pop("plugins")) == {"hello"}
    assert example["workers"].pop("plugins") == ("examples/hello.py",)
    for gone in ("stores", "plugins"):
        defaults.pop(gone)
    defaults["workers"].pop("plugins")
    assert example["redis"].pop("data_dir") == str(ROOT / "data")
    assert defaults["redis"].pop("data_dir") == ""
    assert example == defaults


def test_the_example_shows_every_key_with_a_comment() -> None:
    text = (ROOT / "config.example.toml").read_text()
    shown = tomllib.loads(text)
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    for name in ("redis", "receiver", "workers", "retention", "secrets", "subscriptions", "api", "sandbox"):
        assert set(shown[name]) == set(sections[name].model_fields)  # type: ignore[union-attr]
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if "=" in line and not line.startswith("#"):
            assert any(above.startswith("#") for above in lines[max(0, number - 2) : number]), line


@pytest.mark.parametrize("port", ["+443", " 443", "٤٤٣", "99999", "-1", "0", "http"])
@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("receiver", "public_url"),
        ("receiver", "former_urls"),
        ("stores.a", "base_url"),
        ("stores.a", "url"),
        ("stores.a.auth", "url"),
    ],
)
def test_a_url_with_an_invalid_port_is_an_error_with_its_place(tmp_path: Path, table: str, key: str, port: str) -> None:
    url = f'"https://shop.example:{port}"'
    text = f"[{table}]\n{key} = {f'[{url}]' if key == 'former_urls' else url}\n"
    with pytest.raises(ConfigError, match=rf"config.toml:2: {table}.{key}.*: not a URL; write"):
        load(tmp_path, text)


@pytest.mark.parametrize("path", ["*email*", "lines.*.email", "*"])
def test_a_path_of_redact_with_a_star_is_refused(tmp_path: Path, path: str) -> None:
    """It removed nothing: a star stands for other names in other keys only."""
    with pytest.raises(ConfigError, match=r'config.toml:2: redact.paths.*: "\*" stands for no other name here'):
        load(tmp_path, f'[redact]\npaths = ["email", "{path}"]\n')


def test_a_redis_timeout_of_zero_is_refused(tmp_path: Path) -> None:
    """No connection was possible with it, and the advice was to start Redis."""
    with pytest.raises(ConfigError, match=r"config.toml:2: redis.timeout"):
        load(tmp_path, "[redis]\ntimeout = 0\n")


@pytest.mark.parametrize("url", ["redis://h:+443/0", "redis://[::1/0", "127.0.0.1:6379", "http://h", "redis:/h"])
def test_a_redis_url_that_cannot_be_parsed_is_an_error_with_its_place(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"config.toml:2: redis.url: not a URL of a Redis server; write"):
        load(tmp_path, f'[redis]\nurl = "{url}"\n')


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss://h?ssl_cert_reqs=none", "the URL has an option that is not supported; the options are db, ssl_cert"),
        ("redis://h?decode_responses=True", "the URL has an option that is not supported"),
        ("redis://h/0?socket_timeout=9", "timeout and ca_file are keys of"),
        ("redis://u:1?sesame@h/0", "is written %3F"),
        ("unix:///run/redis.sock?db=x", "the database is a number"),
        ("redis://h?ssl_certfile=a.pem", "ssl_certfile needs TLS; write rediss://"),
        ("rediss://h?ssl_keyfile=a.pem", "ssl_keyfile needs ssl_certfile"),
    ],
)
def test_an_option_of_the_redis_url_that_would_weaken_ours_is_refused(tmp_path: Path, url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"config.toml:2: redis.url: ") as raised:
        load(tmp_path, f'[redis]\nurl = "{url}"\n')
    assert said in str(raised.value)
    assert "sesame" not in str(raised.value)


@pytest.mark.parametrize("url", ["unix:///run/redis.sock?db=3", "rediss://h/1?ssl_certfile=a.pem&ssl_keyfile=b.pem"])
def test_a_redis_url_may_name_its_database_and_a_client_certificate(tmp_path: Path, url: str) -> None:
    assert load(tmp_path, f'[redis]\nurl = "{url}"\n').redis.url == url


@pytest.mark.parametrize(
    ("redis", "history", "used"),
    [
        ("", "", "sqlite"),
        ("redis://h", "", "off"),
        ("redis://h", "sqlite", "sqlite"),
        ("", "off", "off"),
        ("", "postgresql:///hooks?host=/run/postgresql", "postgresql:///hooks?host=/run/postgresql"),
    ],
)
def test_the_history_is_sqlite_by_default_only_with_the_embedded_server(
    tmp_path: Path, redis: str, history: str, used: str
) -> None:
    assert load(tmp_path, f'redis.url = "{redis}"\nhistory.url = "{history}"\n').history_url == used


@pytest.mark.parametrize("url", ["mysql://h/sesame", "postgresql:h", "postgresql://u:sesame@h:0/x", "on", " off"])
def test_a_history_url_of_another_database_is_an_error_that_does_not_show_it(tmp_path: Path, url: str) -> None:
    with pytest.raises(
        ConfigError, match=r'config.toml:2: history.url: not a history; write "sqlite", "off" or "postgr'
    ) as e:
        load(tmp_path, f'[history]\nurl = "{url}"\n')
    assert "sesame" not in str(e.value)


@pytest.mark.parametrize("bind", ["127.0.0.1:+80", "127.0.0.1: 80", "127.0.0.1:٨٠", "127.0.0.1:65536", ":80", "host:"])
def test_an_address_with_an_invalid_port_is_an_error_with_its_place(tmp_path: Path, bind: str) -> None:
    for text in (
        f'[receiver]\nbind = "{bind}"\n',
        f'[sandbox]\nbind = "{bind}"\n',
        f'[redis]\nsentinels = ["{bind}"]\n',
    ):
        with pytest.raises(ConfigError, match=r"config.toml:2: .*: not an address; write"):
            load(tmp_path, text)


def test_environment_variables_override_the_file(tmp_path: Path) -> None:
    environ = {
        "STOREHOOKS_WORKERS__PROCESSES": "4",
        "STOREHOOKS_STORES__NORTH__DOMAIN": "north.example",
        "REDIS_URL": "redis://elsewhere:6379/2",
        "PORT": "9000",
        "WEB_CONCURRENCY": "3",
    }
    found = load(tmp_path, STORE + '[redis]\nurl = "redis://here"\n[workers]\nprocesses = 1\n', environ)
    assert found.workers.processes == 4
    assert found.stores["north"].domain == "north.example"
    assert found.redis.url == "redis://elsewhere:6379/2"
    assert (found.receiver.bind, found.receiver.processes) == ("0.0.0.0:9000", 3)


def test_secrets_are_read_from_variables_or_files_and_are_hidden_in_repr(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("whsec_ZnJvbSBhIGZpbGUsIHF1aXRl\n")
    text = '[stores.a]\nsigning_secrets = ["env:ONE", {value = "file:secret", not_after = 2030-01-01T00:00:00Z}]\n'
    found = load(tmp_path, text, {"ONE": SECRET})
    first, second = found.known_stores["a"].secrets
    assert first.key == b"test secret of one store"
    assert (second.key, second.not_after.year) == (b"from a file, quite", 2030)  # type: ignore[union-attr]
    shown = repr(found) + repr(found.known_stores) + str(found)
    assert SECRET not in shown
    assert "from a file" not in shown


def test_included_files_are_merged(tmp_path: Path) -> None:
    (tmp_path / "stores.d").mkdir()
    for name in ("east", "west"):
        (tmp_path / "stores.d" / f"{name}.toml").write_text(STORE.replace("north", name))
    found = load(tmp_path, 'include = ["stores.d/*.toml"]\n' + STORE)
    assert set(found.stores) == {"north", "east", "west"}
    assert str(found.place("stores", "east", "signing_secrets")).endswith("east.toml:2")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("include", "hidden", "mode", "found"),
    [
        ("stores.d/*.toml", "stores.d", 0o700, "stores.d: this user may not read the folder"),
        ("stores.d/east.toml", "stores.d", 0o711, ""),
        ("etc/*/east.toml", "etc", 0o700, "etc: this user may not read the folder"),
        ("etc/more/*.toml", "etc", 0o700, "more: this user may not read the folder"),
        ("etc/more/east.toml", "etc", 0o700, "more: this user may not read the folder"),
        ("none/*.toml", "stores.d", 0o700, ""),
    ],
)
def test_a_folder_that_may_not_be_read_is_an_error_and_not_an_empty_one(
    include: str, hidden: str, mode: int, found: str
) -> None:
    """Its stores were gone after a reload: every delivery got 401."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for one in ("stores.d", "etc", "etc/more"):
            (folder / one).mkdir()
            (folder / one / "east.toml").write_text(STORE)
        (folder / hidden).chmod(mode)
        (folder / "config.toml").write_text(f'include = ["{include}"]\n')
        child = os.fork()
        if not child:
            told = ""
            try:
                os.setuid(65534)
                config.load(folder / "config.toml", {})
            except ConfigError as error:
                told = str(error)
            finally:
                os._exit(0 if (found in told if found else not told) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_store_defaults_apply_to_every_store(tmp_path: Path) -> None:
    found = load(tmp_path, '[store_defaults]\ndomain = "x.example"\n' + STORE)
    assert found.stores["north"].domain == "x.example"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[redis]\nurll = ''\n", "config.toml:2: unknown key redis.urll; did you mean url?"),
        *(
            (f"[stores.a]\nvolatile_fields = ['{path}']\n" + STORE, "config.toml:2: stores.a.volatile_fields")
            for path in ("", "a..b", "*", "lines.*", ".a")
        ),
        ("[recever]\n", "config.toml:1: unknown key recever; did you mean receiver?"),
        ("[receiver]\nmax_body = '33MB'\n", 'config.toml:2: receiver.max_body: must be at most "32MB", and not 0'),
        ("[receiver]\nmax_body = 0\n", "config.toml:2: receiver.max_body: must be at most"),
        ("[stores.a]\nsheme = 'x'\n" + STORE, "config.toml:2: unknown key stores.a.sheme; did you mean scheme?"),
        ("[workers]\nprocesses = 'many'\n", "config.toml:2: workers.processes: Input should be a valid integer"),
        ("[workers]\ntimeout = inf\n", "config.toml:2: workers.timeout: not a duration"),
        ("[workers]\ntimeout = '1y'\n", 'config.toml:2: workers.timeout: not a duration; write "30s"'),
        ("[receiver]\nbind = '8000'\n", 'config.toml:2: receiver.bind: not an address; write "127.0.0.1:8000"'),
        ("[stores.a]\nsigning_secrets = ['env:NO']\n", "config.toml:2: stores.a.signing_secrets[0] refers to $NO"),
        (
            "[stores.a]\nsigning_secrets = ['file:no']\n",
            "refers to no, which cannot be read: No such file or directory",
        ),
        ("[stores.a]\n", "config.toml:1: stores.a has no signing_secrets"),
        ("[stores.A]\nsigning_secrets = ['x']\n", "a store's name is lower-case letters"),
        (
            STORE + "[receiver]\ndedupe_window = '2d'\nspool_age = '3d'\n",
            "config.toml:5: receiver.spool_age (3 d) is longer than receiver.dedupe_window (2 d)",
        ),
        (
            STORE + "[receiver]\ndedupe_window_unidentified = '0.5ms'\n",
            'config.toml:4: receiver.dedupe_window_unidentified: must be at least "1s"; write 0 if equal bodies',
        ),
        (STORE + "[receiver]\ndedupe_window = '1h'\n", "config.toml:4: receiver.spool_age (3 d) is longer than"),
        ("[redis]\nurl = 'reds://h'\n", "config.toml:2: redis.url: not a URL of a Redis server; write"),
        ("[redis]\nurl = 'redis://h:port'\n", "config.toml:2: redis.url: not a URL of a Redis server; write"),
        ("[redis]\nurl = 'redis://h/abc'\n", "config.toml:2: redis.url: the database is a number, as in"),
        ("[receiver]\npublic_url = 'hooks'\n", "config.toml:2: receiver.public_url: not a URL; write"),
        ("[receiver]\npublic_url = 'https://h:x'\n", "config.toml:2: receiver.public_url: not a URL; write"),
        ("[stores.a]\nurl = 'h.example/w'\nsigning_secrets = ['x']\n", "config.toml:2: stores.a.url: not a URL"),
        ("[stores.a]\nbase_url = 'shop'\nsigning_secrets = ['x']\n", "config.toml:2: stores.a.base_url: not a URL"),
        ("x = \n", "config.toml is not valid TOML"),
        ("include = 'x'\n", "include is a list of file patterns"),
    ],
)
def test_an_invalid_file_is_refused_with_line_key_and_fix(tmp_path: Path, text: str, message: str) -> None:
    assert message in error_of(tmp_path, text)


def test_with_the_spool_off_its_age_is_ignored(tmp_path: Path) -> None:
    found = load(tmp_path, STORE + "[receiver]\ndedupe_window = '1h'\nspool = 'off'\n").receiver
    assert found.dedupe_retention == 3600
    assert load(tmp_path, STORE).receiver.dedupe_retention == (7 + 3) * 86400


def test_a_key_set_in_two_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text(STORE)
    assert "is already set in config.toml:3" in error_of(tmp_path, 'include = ["more.toml"]\n' + STORE)


@pytest.mark.parametrize("more", ["[stores]\n", "stores."])
def test_a_key_that_another_file_sets_in_an_inline_table_is_refused(tmp_path: Path, more: str) -> None:
    (tmp_path / "more.toml").write_text(more + "north = {signing_secrets = ['y']}\n")
    message = f"more.toml:{more.count(chr(10)) + 1}: stores.north.signing_secrets is already set in config.toml:3"
    assert message in error_of(tmp_path, 'include = ["more.toml"]\n' + STORE)


def test_a_value_that_another_file_has_as_a_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text("stores.north = 'x'\n")
    message = "more.toml:1: stores.north is already set in config.toml:2; remove one"
    assert message in error_of(tmp_path, 'include = ["more.toml"]\n' + STORE)


def test_an_unknown_storehooks_variable_is_refused(tmp_path: Path) -> None:
    error = error_of(tmp_path, STORE, {"STOREHOOKS_WORKER__PROCESSES": "4"})
    assert error == "$STOREHOOKS_WORKER__PROCESSES: unknown key worker; did you mean workers?"


@pytest.mark.parametrize("name", ["STOREHOOKS_SERVICE_HOTS", "STOREHOOKS_SERVICE__HOTS", "STOREHOOKS_WHATEVER"])
def test_only_a_close_name_is_suggested(tmp_path: Path, name: str) -> None:
    """The prefix is common to all, and made any name look close."""
    assert "did you mean" not in error_of(tmp_path, STORE, {name: "1"})
    assert error_of(tmp_path, STORE, {"STOREHOOKS_REDIS_URLL": "x"}).endswith("did you mean STOREHOOKS_REDIS__URL?")


KUBERNETES = {
    "STOREHOOKS_SERVICE_HOST": "10.96.4.7",
    "STOREHOOKS_SERVICE_PORT": "8000",
    "STOREHOOKS_SERVICE_PORT_HTTP_WEB": "8000",
    "STOREHOOKS_PORT": "tcp://10.96.4.7:8000",
    "STOREHOOKS_PORT_8000_TCP": "tcp://10.96.4.7:8000",
    "STOREHOOKS_PORT_8000_TCP_PROTO": "tcp",
    "STOREHOOKS_PORT_8000_TCP_PORT": "8000",
    "STOREHOOKS_PORT_8000_TCP_ADDR": "fd00::7",
    "STOREHOOKS_WEB_SERVICE_HOST": "fd00::7",
    "STOREHOOKS_WEB_SERVICE_PORT": "8000",
    "STOREHOOKS_WEB_PORT": "udp://[fd00::7]:8000",
    "STOREHOOKS_WEB_PORT_8000_UDP": "udp://[fd00::7]:8000",
    "STOREHOOKS_REDIS_SERVICE_HOST": "10.96.4.8",
    "STOREHOOKS_REDIS_PORT_6379_TCP_ADDR": "10.96.4.8",
}


def test_the_variables_that_kubernetes_sets_for_our_services_are_ignored(tmp_path: Path) -> None:
    assert load(tmp_path, STORE, KUBERNETES).model_dump() == load(tmp_path, STORE).model_dump()
    for name, value in KUBERNETES.items():
        load(tmp_path, STORE, {name: value})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("STOREHOOKS_REDIS_URL", "redis://h", "unknown key redis_url; did you mean STOREHOOKS_REDIS__URL?"),
        ("STOREHOOKS_RECEIVER_BIND", "0.0.0.0:80", "did you mean STOREHOOKS_RECEIVER__BIND?"),
        ("STOREHOOKS_PORT", "8000", "unknown key port"),
        ("STOREHOOKS_RECEIVER_PORT", "8000", "unknown key receiver_port"),
        ("STOREHOOKS_SERVICE_HOST", "hooks.example.com", "unknown key service_host"),
        ("STOREHOOKS_SERVICE_PORT", "tcp", "unknown key service_port"),
        ("STOREHOOKS_RECEIVER__SERVICE_HOST", "10.96.4.7", "unknown key receiver.service_host"),
    ],
)
def test_a_variable_that_only_looks_like_kubernetes_is_refused(
    tmp_path: Path, name: str, value: str, said: str
) -> None:
    assert said in error_of(tmp_path, STORE, {name: value})


def test_no_error_shows_a_secret(tmp_path: Path) -> None:
    text = '[stores.a]\nscheme = "standard-webhooks"\nsigning_secrets = ["whsec_not*base64*at*all"]\n'
    error = error_of(tmp_path, text)
    assert "signing_secrets[0]" in error
    assert "not*base64" not in error


def test_the_sandbox_secret_is_refused_on_a_public_address(tmp_path: Path) -> None:
    example = (ROOT / "config.example.toml").read_text()
    public = example.replace('public_url = "http://127.0.0.1:8000"', 'public_url = "https://hooks.example.com"')
    assert "uses the sandbox's secret" in error_of(tmp_path, public)
    assert "uses the sandbox's secret" in error_of(tmp_path, example, {"PORT": "8000"})


def test_the_config_file_is_found_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tried = r"tried --config, \$STOREHOOKS_CONFIG, \./config\.toml and \./config\.example\.toml; `storehooks init`"
    with pytest.raises(ConfigError, match=tried):
        find_config_file(None, {})
    for name in ("config.example.toml", "config.toml", "other.toml", "error.toml"):
        (tmp_path / name).write_text("")
    assert find_config_file("error.toml", {"STOREHOOKS_CONFIG": "other.toml"}).name == "error.toml"
    assert find_config_file(None, {"STOREHOOKS_CONFIG": "other.toml"}).name == "other.toml"
    assert find_config_file(None, {}).name == "config.toml"
    (tmp_path / "config.toml").unlink()
    assert find_config_file(None, {}).name == "config.example.toml"
    with pytest.raises(ConfigError, match=r"gone.toml does not exist"):
        find_config_file("gone.toml", {})


def test_the_place_of_a_value_is_the_variable_that_set_it(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[redis]\nurl = "redis://a"\n[receiver]\nbind = "127.0.0.1:1"\n')
    loaded = config.load(path, {"REDIS_URL": "redis://b", "PORT": "5000", "WEB_CONCURRENCY": "3"})
    assert (loaded.redis.url, loaded.receiver.bind) == ("redis://b", "0.0.0.0:5000")
    keys = [("redis", "url"), ("receiver", "bind"), ("receiver", "processes")]
    assert [str(loaded.place(*key)) for key in keys] == ["$REDIS_URL", "$PORT", "$WEB_CONCURRENCY"]
    loaded = config.load(path, {"PORT": "5000", "STOREHOOKS_RECEIVER__BIND": "127.0.0.1:7"})
    assert (loaded.receiver.bind, str(loaded.place("receiver", "bind"))) == (
        "127.0.0.1:7",
        "$STOREHOOKS_RECEIVER__BIND",
    )


def test_the_data_directory_does_not_follow_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, service = tmp_path / "etc", tmp_path / "srv"
    home.mkdir()
    service.mkdir()
    monkeypatch.chdir(service)
    file = home / "config.toml"

    def found(text: str | None, **environ: str) -> tuple[str, str]:
        file.write_text(text or "")
        loaded = config.load(file if text is not None else None, environ)
        return str(loaded.data_dir).replace(str(tmp_path), ""), loaded.data_dir_set_by.replace(str(tmp_path), "")

    state = {"STATE_DIRECTORY": "/var/lib/storehooks:/var/lib/other"}
    assert found("") == ("/etc/data", "default")
    assert found('redis.data_dir = "mine"') == ("/etc/mine", "/etc/config.toml:1")
    assert found('redis.data_dir = "mine"', **state) == ("/etc/mine", "/etc/config.toml:1")
    assert found("", **state) == ("/var/lib/storehooks", "$STATE_DIRECTORY")
    assert found(None, **state) == ("/var/lib/storehooks", "$STATE_DIRECTORY")
    assert found(None, XDG_STATE_HOME="/x", HOME="/h") == ("/x/storehooks", "$XDG_STATE_HOME")
    assert found(None, XDG_STATE_HOME="not/absolute", HOME="/h") == ("/h/.local/state/storehooks", "$HOME")
    assert found("", STOREHOOKS_REDIS__DATA_DIR="/own") == ("/own", "$STOREHOOKS_REDIS__DATA_DIR")


HALF = "[[[ half an edit\n"


@pytest.mark.parametrize(
    ("text", "included", "found"),
    [
        ("", "", "data"),
        ('[redis]\ndata_dir = "mine"\n', "", "mine"),
        ('redis = {data_dir = "mine"}\n', "", "mine"),
        (f'[redis]\ndata_dir = "mine"  # here\n{HALF}', "", "mine"),
        (f'{HALF}redis.data_dir = "mine"\n', "", "mine"),
        (f'{HALF}["redis"]\n"data_dir" = "file:where.txt"\n', "", "mine"),
        (f'# data_dir = "other"\n{HALF}', "", "data"),
        (f'{HALF}[redis]\nurl = "x"\n', '[redis]\ndata_dir = "mine"\n', "mine"),
        (HALF, f'[redis]\ndata_dir = "mine"\n{HALF}', "mine"),
        ('[redis]\ndata_dir = "mine"\n', HALF, "mine"),
        ('include = [\n  "parts/*.toml",\n]\n', 'redis.data_dir = "mine"\n', "mine"),
        (f'include = ["parts/*.toml"]\n{HALF}', 'redis.data_dir = "mine"\n', "mine"),
        (f'include = [\n  "parts/*.toml",\n]\n{HALF}', 'redis.data_dir = "mine"\n', None),
        ('[redis]\ndata_dir "mine"\n', "", None),
        (f'redis = {{data_dir = "mine"}}\n{HALF}', "", None),
        (f'[redis]\ndata_dir = "mine"\n{HALF}data_dir = "other"\n', "", None),
        ('[redis\ndata_dir = "mine"\n', "", None),
        ("[redis]\ndata_dir = 3\n", "", None),
    ],
)
def test_the_data_directory_is_found_where_one_line_of_an_invalid_config_tells_it(
    text: str, included: str, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STATE_DIRECTORY", "STOREHOOKS_REDIS__DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    for folder in ("parts", "stores.d"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part.toml").write_text(included if ("parts" in text) == (folder == "parts") else "")
    (tmp_path / "where.txt").write_text("mine\n")
    file = tmp_path / "config.toml"
    file.write_text(text)
    if found is None:
        with pytest.raises(ConfigError, match=re.escape(str(file))):
            config.data_dir_from_environment(str(file))
    else:
        assert config.data_dir_from_environment(str(file)) == tmp_path / found
    monkeypatch.setenv("STOREHOOKS_REDIS__DATA_DIR", "/own")
    assert config.data_dir_from_environment(str(file)) == Path("/own")
    file.unlink()
    assert config.data_dir_from_environment(str(file)) == Path("/own")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("STOREHOOKS_REDIS__DATA_DIR", "", "is empty"),
        ("STOREHOOKS_REDIS__DATA_DIR", "mine", "'mine', a relative path"),
        ("STOREHOOKS_REDIS", '{"data_dir": "mine"}', "'mine', a relative path"),
        ("STATE_DIRECTORY", "storehooks", "'storehooks', a relative path"),
    ],
)
def test_a_variable_that_leaves_the_data_directory_to_the_working_directory_is_refused(
    variable: str, value: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('redis.data_dir = "data"' if variable.endswith("DATA_DIR") else "")
    with pytest.raises(ConfigError, match=f"{re.escape(f'${variable}')} .*{said}.*; set an absolute path"):
        config.load(file, {variable: value})


def _looped(folder: Path) -> None:
    (folder / "config.toml").unlink()
    (folder / "config.toml").symlink_to("config.toml")


@pytest.mark.parametrize(
    "text",
    [
        "[redis]\ndata_dir = true\n",
        f"[receiver]\ndedupe_window = {'9' * 400}\n",
        f"[workers]\nprocesses = {'9' * 5000}\n",
        'include = ["stores\\u0000.d/*.toml"]\n',
        '[network]\nca_file = "\\u0000"\n',
        f"x = {'[' * 5000}{']' * 5000}\n",
        "",
    ],
    ids=[
        "a number",
        "a long number",
        "more digits than Python reads",
        "NUL",
        "NUL in a path",
        "nested",
        "loop of links",
    ],
)
def test_whatever_is_wrong_with_a_config_is_a_config_error(tmp_path: Path, text: str) -> None:
    """At HUP any other exception ended the process, which should go on with the config that it has."""
    (tmp_path / "config.toml").write_text(text)
    if not text:
        _looped(tmp_path)
    with pytest.raises(ConfigError):
        config.load_from_environment(str(tmp_path / "config.toml"))
