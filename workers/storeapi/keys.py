"""Every Redis key and every script of the client, on one page. The keys share the inbox's prefix.

    api:token:{store}:{f}        hash    the shared token: value (sealed), fingerprint, refresh and expires (ms).
                                         {f} is a fingerprint of the credentials: new credentials get a new token
    api:token_lock:{store}:{f}   string  the process that is fetching a token; expires
    api:token_error:{store}:{f}  string  why the last fetch failed: class and reason. Expires after a moment, or with
                                         the token endpoint's Retry-After; until then no process fetches again
    api:rate_limit:{store}       hash    tat (when the next call is due, us), paused_until (no call before, us), and
                                         of both how far ahead that was when it was written (tat_ahead ...).
                                         The limit of all stores together has the empty name
    api:tried                    hash    store|GROUP.OPERATION|METHOD PATH -> the day it was first called
    api:confirmed                hash    store|GROUP.OPERATION|METHOD PATH -> the day it first answered 2xx
    api:calls                    hash    store|status -> how many calls were answered so; see call_counts.py

get_token.lua    KEYS token, lock, error    ARGV caller id, lock duration (ms), fingerprint of a refused token,
                                            longest pause after an error (ms)
                 returns ["use", value, ms], ["fetch", 1 if the old one is still valid] (the caller has the
                 lock), ["wait"] or ["error", why, ms left]
store_token.lua  KEYS token, lock, error    ARGV caller id, value, fingerprint, refresh in (ms), expires in (ms);
                 for a failed fetch: caller id, "", reason, ms. Only the holder of the lock writes; frees the lock
take_slot.lua    KEYS rate limit            ARGV interval (us), burst, maximum wait (us), pause (us)
                 pause > 0 stops the calls of every process for that time. Otherwise takes the next slot and returns
                 the wait in us. A wait longer than the maximum is returned negative, and no slot is taken
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from redis import Redis

from receiver.inbox.keys import PREFIX

TRIED = f"{PREFIX}api:tried"
CONFIRMED = f"{PREFIX}api:confirmed"
CALLS = f"{PREFIX}api:calls"


def token_keys(store: str, fingerprint: str) -> list[str]:
    """The three keys of a store's token, in the order of the scripts' KEYS."""
    return [f"{PREFIX}api:{kind}:{store}:{fingerprint}" for kind in ("token", "token_lock", "token_error")]


def rate_limit_keys(store: str) -> list[str]:
    return [f"{PREFIX}api:rate_limit:{store}"]


def run_script(redis: Redis, script: str, names: list[str], *arguments: str | bytes | int) -> Any:
    """Run a script; load it first where the server does not have it."""
    return redis.register_script(_text(script))(keys=names, args=list(arguments))


@cache
def _text(name: str) -> str:
    return (resources.files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
