"""The pipeline of a web process: everything that a delivery meets after it has been read, built from config."""

from __future__ import annotations

import hmac
from dataclasses import astuple, dataclass

from receiver.config import Config
from receiver.contract.sender_address import TrustedProxies
from receiver.contract.stored_headers import SealHeader
from receiver.delivery.admission import Admission
from receiver.delivery.bounded_spool import BoundedSpool
from receiver.delivery.breaker import Breaker
from receiver.delivery.drain import SpoolDrain
from receiver.delivery.inbox_access import InboxAccess
from receiver.delivery.refusal_log import RefusalLog
from receiver.delivery.secret_cache import SecretCache
from receiver.delivery.storage import DeliveryStorage
from receiver.inbox import Inbox, connect_to
from receiver.inbox.counter_buffer import CounterBuffer
from receiver.inbox.host_refusals import publish_refusals
from receiver.inbox.keys import host_of


@dataclass(frozen=True)
class DeliveryPipeline:
    """What the Flask app and the event loop share, so that both treat a delivery alike."""

    admission: Admission
    storage: DeliveryStorage


def start_pipeline(config: Config) -> DeliveryPipeline:
    """Build the pipeline and start its threads. Call it in the process that serves: threads do not survive a fork."""
    client = connect_to(config.redis, timeout=config.redis.timeout)
    storage, drain = open_storage(config, Inbox(client))
    drain.start()
    secrets = SecretCache(config, client)
    secrets.start()
    refusals = RefusalLog(
        config.data_dir,
        config.receiver.refused,
        lambda stores: publish_refusals(client, host_of(config.data_dir), map(astuple, stores)),
    )
    counts, seal, proxies = CounterBuffer(client), header_seal(config), TrustedProxies(config.receiver.trusted_proxies)
    admission = Admission(config.known_stores, imitation_key(config), secrets, counts, refusals, seal, proxies)
    return DeliveryPipeline(admission, storage)


def header_seal(config: Config) -> SealHeader | None:
    key = config.secrets.key.get_secret_value()
    if not key:
        return None
    from receiver.inbox.keyring.header_seal import HeaderSeal  # the cipher takes a while to load

    return HeaderSeal(key).close


def imitation_key(config: Config) -> bytes:
    """A secret that all processes and hosts with this config share, and that few changes of the config change.

    It comes from `[secrets] key`; without it from the signing secret with the smallest hash: most rotations keep it.
    """
    own = config.secrets.key.get_secret_value().encode()
    keys = [own] if own else [secret.key for store in config.known_stores.values() for secret in store.secrets]
    return min((hmac.digest(key, b"storehooks imitation", "sha256") for key in keys), default=b"")


def open_storage(config: Config, inbox: Inbox) -> tuple[DeliveryStorage, SpoolDrain]:
    """Storage and drain, which share the spool and the breaker."""
    to_inbox, spool, breaker = InboxAccess(config, inbox), BoundedSpool(config), Breaker()
    return DeliveryStorage(to_inbox, spool, breaker), SpoolDrain(config, to_inbox, spool, breaker)
