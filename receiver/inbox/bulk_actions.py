"""Bulk actions: replays and drops of many failures, as records in Redis that the housekeeper carries on.

An action is for the failures that match when it begins: a run that fails again later is not changed by it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import orjson

from receiver.contract.diagnosis.formatting import counted
from receiver.inbox import keys
from receiver.inbox.administration import NOT_DROPPED, NOT_REPLAYED, DropResult, ReopenResult
from receiver.inbox.audit_trail import AuditEntry, AuditTrail
from receiver.inbox.model import from_ms, to_number
from receiver.inbox.queries.damage import as_text, read_each
from receiver.inbox.queries.failures import FailureFilter, MatchingGroup
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import ServerUser

MAX_RECORDS = 200
TRIED_FIRST = 5
"""How many runs are replayed first, if the others wait for their success."""

BulkKind = Literal["replay", "drop"]


class BulkState(StrEnum):
    TRYING = "trying"
    """Its first runs were replayed, or will be; the others wait for their success."""
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """By a person."""
    HALTED = "halted"
    """A first run failed again, or the action cannot go on."""

    @property
    def is_at_work(self) -> bool:
        return self in (BulkState.TRYING, BulkState.RUNNING)


@dataclass(frozen=True)
class BulkAction:
    id: str
    action: BulkKind
    selection: FailureFilter
    groups: Mapping[str, str]
    """The groups that matched before it began, with their handlers. A group's error may be another one by now."""
    who: str
    audit_id: str
    count: int
    """How many failures matched before it began."""
    rate: float
    """Maximum number of runs in a second; 0 is no maximum."""
    first: int
    """How many runs of each handler must succeed before the others are replayed; 0 for none."""
    reason: str
    state: BulkState
    why: str
    began_at: datetime
    ended_at: datetime | None
    position: str
    due_ms: int
    tried: tuple[str, ...] = ()
    results: Mapping[str, int] = field(default_factory=dict)
    """How many runs had each result: words of ReopenResult or of DropResult."""

    @property
    def began_ms(self) -> int:
        return round(self.began_at.timestamp() * 1000)

    @property
    def changed(self) -> int:
        """How many runs it has replayed or dropped."""
        if self.action == "drop":
            return self.results.get(DropResult.DROPPED, 0)
        return sum(self.results.get(one, 0) for one in ReopenResult if one.replayed)

    @property
    def examined(self) -> int:
        return sum(self.results.values())

    @property
    def not_changed(self) -> dict[str, int]:
        """Why runs were left as they are, and how many."""
        reasons: Mapping[Any, str] = NOT_DROPPED if self.action == "drop" else NOT_REPLAYED
        return {why: many for word, why in reasons.items() if (many := self.results.get(word, 0))}

    @property
    def result(self) -> str:
        """What it has done, in words."""
        past = "dropped" if self.action == "drop" else "replayed"
        parts = [f"{self.state}: {self.why}" if self.why else str(self.state), f"{counted(self.changed, 'run')} {past}"]
        parts += [f"{counted(many, 'run')} not {past}: {why}" for why, many in self.not_changed.items()]
        return "; ".join(parts)


class BulkActions(ServerUser):
    def start(
        self,
        action: BulkKind,
        selection: FailureFilter,
        groups: Iterable[MatchingGroup],
        audit: AuditEntry,
        *,
        rate: float = 0.0,
        first: int = 0,
        reason: str = "",
    ) -> str:
        """Record an action that was audited, for the groups that matched, and return its id. From then on it is carried
        on. Deliveries that could not be read are dropped, but not replayed."""
        action_id = secrets.token_hex(4)
        chosen = {one.id: one.handler for one in groups if action == "drop" or one.handler != keys.INTAKE}
        fields = {
            "action": action,
            "selection": orjson.dumps({name: value for name, value in asdict(selection).items() if value}),
            "groups": orjson.dumps(chosen),
            "who": audit.who,
            "audit": audit.id,
            "count": audit.count or 0,
            "rate": rate,
            "first": first,
            "reason": reason,
            "state": BulkState.TRYING if first else BulkState.RUNNING,
        }
        pairs = [part for pair in fields.items() for part in pair]
        script_runner.run_one(self.client, "bulk_start", action_id, MAX_RECORDS, *pairs)
        return action_id

    def find(self, action_id: str) -> BulkAction | None:
        return next(iter(self._read([action_id])), None)

    def newest(self, limit: int = 50) -> list[BulkAction]:
        """The latest actions, the newest first."""
        found: Any = self.client.zrange(keys.BULK_ACTIONS, 0, limit - 1, desc=True)
        return self._read([as_text(one) for one in found])

    def at_work(self) -> list[str]:
        found: Any = self.client.smembers(keys.BULK_OPEN)
        return sorted(map(as_text, found))

    def stop(self, action_id: str) -> bool:
        """End an action: no further run is changed by it. False if it has ended already."""
        return self.end(action_id, BulkState.STOPPED)

    def end(self, action_id: str, state: BulkState, *, only_if: str = "", why: str = "") -> bool:
        if is_changed := self.set_state(action_id, state, only_if=only_if, why=why):
            self.close(action_id)
        return is_changed

    def set_state(self, action_id: str, state: BulkState, *, only_if: str = "", why: str = "") -> bool:
        """Change the state of an action that is at work. False if it is not, or has another state than `only_if`."""
        return bool(script_runner.run_one(self.client, "bulk_state", action_id, state, only_if, why))

    def close(self, action_id: str) -> None:
        """Audit the end of an action that has ended. Until then it is open, so that a kill in between loses no end."""
        if ended := self.find(action_id):
            begun = AuditEntry(ended.audit_id, ended.who, f"bulk {ended.action}")
            AuditTrail(self.client).end(begun, ended.result, bulk=action_id)

    def forget_open(self, action_id: str) -> None:
        """Carry on no longer an action whose record is gone or damaged."""
        self.client.srem(keys.BULK_OPEN, action_id)

    def _read(self, names: list[str]) -> list[BulkAction]:
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(keys.BULK + name)
        pairs = zip(names, read_each(pipeline), strict=True)
        return [action for name, fields in pairs if fields and (action := _action(name, fields))]


def _action(action_id: str, fields: Mapping[bytes, bytes]) -> BulkAction | None:
    """None if the record is damaged."""
    values = {as_text(name): as_text(value) for name, value in fields.items()}
    try:
        return BulkAction(
            id=action_id,
            action="drop" if values["action"] == "drop" else "replay",
            selection=FailureFilter(**orjson.loads(values["selection"])),
            groups={str(name): str(handler) for name, handler in dict(orjson.loads(values["groups"])).items()},
            who=values["who"],
            audit_id=values["audit"],
            count=int(values["count"]),
            rate=float(values["rate"]),
            first=int(values["first"]),
            reason=values["reason"],
            state=BulkState(values["state"]),
            why=values.get("why", ""),
            began_at=from_ms(int(values["began"])),
            ended_at=from_ms(int(values["ended"])) if "ended" in values else None,
            position=values["position"],
            due_ms=int(values["due"]),
            tried=tuple(values.get("tried", "").split()),
            results={name[2:]: to_number(value) for name, value in values.items() if name.startswith("n:")},
        )
    except (KeyError, ValueError, TypeError):
        return None
