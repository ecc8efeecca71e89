"""Configured client: builds the client of a store in config, for `ctx.api`, the commands and the housekeeper."""

from __future__ import annotations

from urllib.parse import urljoin

from redis import Redis

from receiver.config import Config, load_from_environment
from receiver.contract.errors import ConfigError
from receiver.inbox import connect_to
from workers.storeapi.catalogue import configured_catalogue
from workers.storeapi.client import CALL_SECONDS, Client
from workers.storeapi.transport.auth import Credentials
from workers.storeapi.transport.call_sender import TokenHeader
from workers.storeapi.writes import WriteWatcher

REDIS_SECONDS = 5.0


def client_for_store(
    config: Config,
    store: str,
    redis: Redis | None = None,
    *,
    timeout: float = CALL_SECONDS,
    watcher: WriteWatcher | None = None,
) -> Client:
    """The client of a store in config. With Redis, all processes share its token and its rate limit."""
    if store not in config.stores:
        raise ConfigError(f"this config has no store {store}")
    given = config.stores[store]
    if not given.base_url:
        raise ConfigError(
            f"{config.place('stores', store)}: stores.{store} has no base_url (the URL of its API); "
            f"set base_url and auth there. {sandbox_hint(config)}"
        )
    return Client(
        given.base_url,
        token=given.auth.token.get_secret_value(),
        token_header=TokenHeader(given.auth.header, given.auth.scheme),
        auth=credentials_for_store(config, store),
        store=store,
        catalogue=configured_catalogue(config, store),
        redis=redis,
        rate_limit=given.rate_limit,
        overall_rate=config.api.rate_limit,
        allow_private=given.allow_private,
        timeout=timeout,
        network=config.network,
        watcher=watcher,
    )


def client_from_config(store: str, path: str | None = None) -> Client:
    """The client of a store in the config file: this one, else $STOREHOOKS_CONFIG, else ./config.toml.

    It has the store's credentials and rate limit, and the token that all processes share.
    """
    config = load_from_environment(path)
    return client_for_store(config, store, connect_to(config.redis, timeout=REDIS_SECONDS))


def credentials_for_store(config: Config, store: str) -> Credentials | None:
    """The credentials that fetch a token; None where config has the token itself."""
    given = config.stores[store]
    auth = given.auth
    if auth.token.get_secret_value():
        return None
    if not (auth.url and auth.client_id):
        raise ConfigError(
            f"{config.place('stores', store, 'auth')}: stores.{store}.auth needs url, client_id and client_secret "
            f"(from the developer portal), or a token. {sandbox_hint(config)}"
        )
    return Credentials(
        url=urljoin(given.base_url, auth.url),
        client_id=auth.client_id,
        client_secret=auth.client_secret.get_secret_value(),
        style=auth.style,
        scope=auth.scope,
        extra=auth.extra,
        token_path=auth.token_path,
        scheme=auth.scheme,
        seal_key=config.secrets.key.get_secret_value(),
    )


def sandbox_hint(config: Config) -> str:
    """The settings to use before there is a real store."""
    return (
        f'The sandbox store of `storehooks dev` (or `sandbox`) has base_url = "http://{config.sandbox.bind}", '
        'auth = { url = "/oauth/token", client_id = "sandbox", client_secret = "sandbox-secret" }, allow_private = true'
    )
