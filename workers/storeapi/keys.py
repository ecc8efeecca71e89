"""Every key the client keeps in Redis, and its scripts, on one page. They share the inbox's prefix and nothing else.

    api:token:{store}:{m}   hash    the shared token. value (sealed), mark (its fingerprint), refresh and ends (ms).
                                    {m} is a fingerprint of the credentials: other credentials, another token
    api:lock:{store}:{m}    string  who is fetching a token now; ends by itself
    api:fault:{store}:{m}   string  why the last fetch failed, for a moment, so that not everybody tries
    api:gate:{store}        hash    the rate limit: tat (when the next call is due, us), held (no call before, us)
                                    the one of all stores together has the empty name
    api:tried               hash    store|GROUP.OPERATION|METHOD PATH -> the day it was first asked for
    api:confirmed           hash    store|GROUP.OPERATION|METHOD PATH -> the day it first answered 2xx

token.lua   KEYS token lock fault     ARGV who, how long the lock holds (ms), mark of a token that was refused
            gives ["use", value, ms] ["fetch"] ["wait"] or ["fault", why]; "fetch" means the lock is the caller's
keep.lua    KEYS token lock fault     ARGV who, value, mark, refresh in (ms), ends in (ms); for "" as value: why it
            failed, ms. Only the holder of the lock writes; frees the lock
gate.lua    KEYS gate                 ARGV interval (us), burst, longest wait (us), hold (us)
            hold > 0 closes the gate so long for everybody. Else takes the next place: gives the wait in us, or
            minus the wait when it is longer than the longest, and then no place is taken
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from redis import Redis

from receiver.inbox.keys import PREFIX

TRIED = f"{PREFIX}api:tried"
CONFIRMED = f"{PREFIX}api:confirmed"


def token(store: str, mark: str) -> list[str]:
    """The three keys of a store's token, in the order the scripts want them."""
    return [f"{PREFIX}api:{kind}:{store}:{mark}" for kind in ("token", "lock", "fault")]


def gate(store: str) -> list[str]:
    return [f"{PREFIX}api:gate:{store}"]


def run(redis: Redis, script: str, names: list[str], *arguments: str | bytes | int) -> Any:
    """Run a script; a server that does not know it is taught it."""
    return redis.register_script(_text(script))(keys=names, args=list(arguments))


@cache
def _text(name: str) -> str:
    return (resources.files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
