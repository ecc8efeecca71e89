"""init: a config with a fresh secret and a first plugin, in this folder."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

import click

from receiver.config.values import is_store_name
from receiver.contract.errors import ConfigError
from workers.cli.output import next_command

CONFIG = """\
# storehooks. Every key that may stand here, with its default: config.example.toml in the project's repository.

[receiver]
bind = "127.0.0.1:8000"
# The address stores send to, as they see it.
public_url = "http://127.0.0.1:8000"

[workers]
plugins = ["plugins/hello.py"]

[stores.{store}]
# The store signs with this; give it the same. Better kept in "env:NAME" or "file:PATH".
signing_secrets = ["{secret}"]
# Its API, for handlers (ctx.api), `storehooks api` and `storehooks subscriptions`. This is the sandbox store that
# `storehooks dev` runs; for a real one: its address, its client_id and client_secret, and no allow_private.
base_url = "http://127.0.0.1:8002"
auth = {{ url = "/oauth/token", client_id = "sandbox", client_secret = "sandbox-secret" }}
allow_private = true
"""

PLUGIN = '''\
"""A first plugin: edit it, save it, and `storehooks dev` loads it again."""

from workers import Context, Event, Router

router = Router("hello")


@router.on("*")
def greet(event: Event, ctx: Context) -> str:
    return f"hello, {ctx.store}"
'''


@click.command()
@click.option("--store", default="demo", show_default=True, help="The first store's name.")
def init(store: str) -> None:
    """Write config.toml with a fresh secret, and plugins/hello.py."""
    if not is_store_name(store):
        raise ConfigError(f"{store[:64]}: a store's name is lower-case letters, digits, - and _, at most 63")
    config, plugin = Path("config.toml"), Path("plugins/hello.py")
    for path in (config, plugin):
        if path.exists():
            raise ConfigError(f"{path} is here already, and it is not overwritten; remove it first, or go elsewhere")
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
    config.touch(mode=0o600)
    config.write_text(CONFIG.format(store=store, secret=secret))
    plugin.parent.mkdir(exist_ok=True)
    plugin.write_text(PLUGIN)
    click.echo(f"wrote {config} (store {store}, a fresh secret) and {plugin}")
    next_command(
        "storehooks dev                    start it, with a sandbox store",
        "storehooks handlers               what is loaded",
        "storehooks new-plugin NAME        a plugin with settings, tests and an entry point",
    )
