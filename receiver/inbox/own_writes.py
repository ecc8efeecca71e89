"""Own writes: what plugins have written to stores lately, so that the store's events about it are recognised as echoes.

A resource is named by `resource_name`. A write is remembered for five minutes: when it began and ended, a digest of the
resource as the answer showed it, and the event that was its echo. `lua/own_writes.lua` decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from redis import Redis

from receiver.inbox import keys
from receiver.inbox.model import from_ms
from receiver.inbox.queries.damage import as_text
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import ServerUser, server_ms

MAX_DEPTH = 8
"""Events of one resource that may follow a plugin's own writes within a minute. The next ones are a suspected loop."""


class Judgement(NamedTuple):
    """What to do with a run: run, echo, wait or loop."""

    word: str
    by: str = ""
    """Of an echo: the run that wrote."""
    seconds: float = 0.0
    """Of wait and loop: after which time the run is to begin."""
    is_new: bool = False
    """Of a loop: it was not known before."""


class SuspectedLoop(NamedTuple):
    plugin: str
    store: str
    kind: str
    resource_id: str
    last: datetime
    """When a run was last delayed."""


def resource_name(*, plugin: str, store: str, kind: str, resource_id: str) -> str:
    """The name of a resource. The id of one that is being created is empty until the store has answered."""
    return f"{plugin}|{store}|{kind}|{resource_id}"


class OwnWrites(ServerUser):
    def begin(self, resource: str, write: str, run: str) -> None:
        """Remember that a run is about to write to a resource. `write` is the write's own name."""
        script_runner.run_one(self.client, "own_writes", "begin", resource, write, run)

    def end(self, resource: str, write: str, run: str, *, seconds: float, action: str, digest: str, sent: str) -> None:
        """Remember what the answer shows; an empty digest if it does not show the resource. `sent` is a digest of what
        was sent, as `lua/own_writes.lua` says.

        `seconds` is how long the write took: it may have begun under another name.
        """
        rest = (int(seconds * 1000) + 1, action, digest, sent)
        script_runner.run_one(self.client, "own_writes", "end", resource, write, run, *rest)

    def forget(self, resource: str, write: str) -> None:
        self.client.hdel(keys.WRITTEN + resource, write)

    def any_of(self, resources: Iterable[str]) -> bool:
        """Whether any of these resources was written to lately."""
        names = {keys.WRITTEN + one for one in resources}
        return bool(names) and bool(self.client.exists(*names))

    def judge(self, resource: str, event_id: str, *, action: str, digest: str, drop: bool) -> Judgement:
        """Decide about a run of an event of a resource. The same event gets the same answer again."""
        answer = "drop" if drop else "run"
        word, *rest = script_runner.run_one(
            self.client, "own_writes", "judge", resource, event_id, action, digest, answer
        )
        if word == b"echo":
            return Judgement("echo", by=rest[0].decode())
        return Judgement(word.decode(), seconds=rest[0] / 1000 if rest else 0.0, is_new=rest[1:] == [1])


def suspected_loops(client: Redis, *, within: float = 3600.0) -> list[SuspectedLoop]:
    """The resources whose runs were delayed in the last hour, the newest first."""
    oldest = server_ms(client) - within * 1000
    found: Any = client.zrange(keys.LOOPS, "+inf", oldest, desc=True, byscore=True, withscores=True)
    loops = []
    for name, at in found:
        plugin, store, kind, resource_id = (*as_text(name).split("|", 3), "", "", "")[:4]
        loops.append(SuspectedLoop(plugin, store, kind, resource_id, from_ms(at)))
    return loops
