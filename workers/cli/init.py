"""init: write a config with a new secret, and a first plugin."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from receiver.contract.errors import ConfigError
from receiver.contract.signing.grammar import encode_secret
from receiver.contract.signing.presets import STANDARD_WEBHOOKS
from workers.cli.options import require_store_name
from workers.cli.output import echo, next_command, warn

CONFIG = """\
# storehooks. All keys with their defaults: config.example.toml in the project's repository.

[receiver]
bind = "127.0.0.1:8000"
# The URL that stores send to.
public_url = "http://127.0.0.1:8000"

[workers]
plugins = ["plugins/hello.py"]

[stores.{store}]
# The store signs with the same secret. In production, use "env:NAME" or "file:PATH".
signing_secrets = ["{secret}"]
# Its API, for handlers (ctx.api), `storehooks api` and `storehooks subscriptions`. This is the sandbox store that
# `storehooks dev` runs. For a real store: its URL, its client_id and client_secret, and no allow_private.
base_url = "http://127.0.0.1:8002"
auth = {{ url = "/oauth/token", client_id = "sandbox", client_secret = "sandbox-secret" }}
allow_private = true
"""

PLUGIN = '''\
"""A first plugin. `storehooks dev` reloads it when it is saved."""

from storehooks import Context, Event, Router

router = Router("hello")


@router.on("*")
def greet(event: Event, ctx: Context) -> str:
    return f"hello, {ctx.store}"
'''


@click.command()
@click.option("--store", default="demo", show_default=True, help="The name of the first store.")
def init(store: str) -> None:
    """Write config.toml and plugins/hello.py in this folder."""
    require_store_name(store)
    config, plugin = Path("config.toml"), Path("plugins/hello.py")
    for path in (config, plugin):
        if path.exists():
            raise ConfigError(f"{path} already exists and is not overwritten; remove it, or use another folder")
    secret = encode_secret(STANDARD_WEBHOOKS, secrets.token_bytes(24))
    config.touch(mode=0o600)
    config.write_text(CONFIG.format(store=store, secret=secret))
    plugin.parent.mkdir(exist_ok=True)
    plugin.write_text(PLUGIN)
    data = Path("data")
    data.mkdir(mode=0o700, exist_ok=True)
    (data / ".gitignore").write_text("*\n")  # deliveries of customers, and keys
    echo(f"wrote {config} (store {store}, a new secret) and {plugin}")
    if any((folder / ".git").exists() for folder in (Path.cwd(), *Path.cwd().parents)):
        warn(f"{config} contains a secret: before you commit it, set the secret to env:NAME or file:PATH")
    next_command(
        "storehooks dev  start everything, with a sandbox store",
        "storehooks handlers  list the handlers",
        "storehooks new-plugin NAME  a plugin package with settings and tests",
    )
