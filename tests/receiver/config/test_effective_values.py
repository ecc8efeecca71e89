"""`storehooks config show`: every key, its value, and what set it; never a secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from receiver.config import load
from receiver.config.effective_values import _without_credentials, effective_values
from tests.support.programs import ROOT, storehooks

TEXT = """
include = []
[redis]
url = "redis://user:hunter2@redis.example:6379/0"
[receiver]
max_body = "2MB"
dedupe_window = "10d"
refused = "12h, 8MB"
[network]
proxy = "http://user:hunter2@proxy.example:3128"
[history]
url = "env:HISTORY"
[limits.erp]
rate = "5/s"
[forward.erp]
url = "https://erp.example/hunter2?x=hunter2"
topics = ["order.*"]
secret = "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg=="
[alerts.targets.ops]
url = "https://ops.example/hunter2"
[plugins.crm]
url = "https://crm.example"
api_key = "hunter2"
login = { user = "me", password = "hunter2" }
place = "env:PLACE"
[store_defaults]
scheme = "shopify"
[stores.north]
signing_secrets = ["hunter2hunter2", { value = "hunter2old", not_after = 2030-01-01T00:00:00Z }]
auth = { url = "https://x.example/token", client_id = "me", client_secret = "hunter2", extra = { api_key = "hunter2" } }
[stores.north.catalogue]
headers = { x-api-key = "hunter2", accept-language = "en" }
[stores.north.plugins.crm]
token = "hunter2"
"""
ENVIRON = {
    "HISTORY": "postgresql://user:hunter2@db.example/h",
    "PLACE": "hunter2",
    "PORT": "5000",
    "STOREHOOKS_WORKERS__PROCESSES": "3",
    "STOREHOOKS_STORES__SOUTH__SIGNING_SECRETS": '["hunter2south"]',
}


def test_each_value_says_where_it_comes_from_and_no_secret_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(TEXT)
    shown = {
        one.key: (one.value, one.set_by.replace(str(tmp_path), "")) for one in effective_values(load(file, ENVIRON))
    }

    def line(start: str) -> str:
        return f"/config.toml:{next(n for n, one in enumerate(TEXT.splitlines(), 1) if one.startswith(start))}"

    expected = {
        "redis.url": ("redis://(hidden)@redis.example:6379/0", line("url")),
        "redis.timeout": ("500ms", "default"),
        "redis.data_dir": (str(tmp_path / "data"), "default"),
        "receiver.bind": ("0.0.0.0:5000", "$PORT"),
        "receiver.max_body": ("2MB", line("max_body")),
        "receiver.dedupe_window": ("10d", line("dedupe_window")),
        "receiver.refused": ("12h, 8MB", line("refused")),
        "receiver.processes": (2, "default"),
        "network.proxy": ("(hidden)", line("proxy")),
        "workers.processes": (3, "$STOREHOOKS_WORKERS__PROCESSES"),
        "history.url": ("(hidden)", line('url = "env')),
        "limits.erp.rate": ("5/s", line("rate")),
        "limits.erp.concurrency": (0, "default"),
        "forward.erp.url": ("https://erp.example/(hidden)", line('url = "https://erp')),
        "forward.erp.secret": ("(hidden)", line("secret")),
        "alerts.targets.ops.url": ("(hidden)", line('url = "https://ops')),
        "plugins.crm.url": ("(hidden)", line('url = "https://crm')),
        "plugins.crm.api_key": ("(hidden)", line("api_key")),
        "plugins.crm.login.user": ("(hidden)", line("login")),
        "plugins.crm.login.password": ("(hidden)", line("login")),
        "plugins.crm.place": ("(hidden)", line("place")),
        "stores.north.scheme": ("shopify", line("scheme")),
        "stores.north.signing_secrets": (["(hidden)", "(hidden) until 2030-01-01T00:00:00+00:00"], line("signing")),
        "stores.north.auth.client_secret": ("(hidden)", line("auth")),
        "stores.north.auth.client_id": ("me", line("auth")),
        "stores.north.auth.extra.api_key": ("(hidden)", line("auth")),
        "stores.north.catalogue.headers.x-api-key": ("(hidden)", line("headers")),
        "stores.north.catalogue.headers.accept-language": ("(hidden)", line("headers")),
        "stores.north.plugins.crm.token": ("(hidden)", line("token")),
        "stores.south.signing_secrets": (["(hidden)"], "$STOREHOOKS_STORES__SOUTH__SIGNING_SECRETS"),
        "console.password": ("", "default"),
    }
    assert {key: shown.get(key) for key in expected} == expected
    assert "hunter2" not in repr(shown)
    json.dumps(shown)


def test_what_is_shown_of_the_example_is_the_example_again(tmp_path: Path) -> None:
    """Every value is written as a config file may have it: loaded again, it is the same config."""
    example = load(ROOT / "config.example.toml", {})
    for one in effective_values(example):
        assert one.value != "(hidden)" or "secret" in one.key or one.key.startswith("plugins."), one
    values = {one.key: one.value for one in effective_values(example)}
    environ = {
        f"STOREHOOKS_{key.replace('.', '__').upper()}": value if isinstance(value, str) else json.dumps(value)
        for key, value in values.items()
        if value not in ("", []) and not key.startswith(("stores.", "plugins.", "include"))
    }
    again = load(None, environ)
    tables = ("receiver", "redis", "console", "workers", "retention", "history", "alerts", "subscriptions", "sandbox")
    for table in tables:
        assert getattr(again, table) == getattr(example, table), table


def test_the_command_shows_what_is_set(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[stores.north]\nsigning_secrets = ["hunter2hunter2"]\nscheme = "shopify"\n')
    environ = {"STOREHOOKS_CONFIG": "config.toml", "STOREHOOKS_RECEIVER__MAX_BODY": "2MB"}
    rows = json.loads(storehooks("config", "show", "--changed", "--json", env=environ, cwd=tmp_path).stdout)
    assert rows == [
        {"key": "receiver.max_body", "value": "2MB", "set_by": "$STOREHOOKS_RECEIVER__MAX_BODY"},
        {"key": "stores.north.scheme", "value": "shopify", "set_by": "config.toml:3"},
        {"key": "stores.north.signing_secrets", "value": ["(hidden)"], "set_by": "config.toml:2"},
    ]
    table = storehooks("config", env=environ, cwd=tmp_path).stdout
    assert "hunter2" not in table
    assert any(line.split() == ["receiver.processes", "2", "default"] for line in table.splitlines()), table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:p@ss@host:1/0", "redis://(hidden)@host:1/0"),
        ("postgresql://host/x?user=u&password=p@ss", "postgresql://host/x?(hidden)"),
        ("https://hooks.example", "https://hooks.example"),
    ],
)
def test_a_url_is_shown_without_user_password_and_query(text: str, shown: str) -> None:
    assert _without_credentials(text) == shown


def test_no_text_of_a_plugin_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[plugins.erp]\nretries = 3\nsmtp_pass = "hunter2"\naccounts = [{ password = "hunter2" }]\n')
    shown = {one.key: one.value for one in effective_values(load(file, {}))}
    assert "hunter2" not in repr(shown)
    assert shown["plugins.erp.retries"] == 3
