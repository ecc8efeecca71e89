"""Once marks and the housekeepers' leader against a model: random sequences keep the right marks and one leader."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from redis import Redis

from receiver.inbox import Housekeeping, connect, keys
from receiver.inbox.effect_store import EffectStore
from tests.receiver.inbox.test_inbox_model import explore


class MarksMachine(RuleBasedStateMachine):
    url = ""

    @initialize()
    def start(self) -> None:
        self.client: Redis = connect(self.url, timeout=5.0)
        self.client.delete("sh:o:model", keys.LEADER)
        self.housekeeping = Housekeeping(self.client)
        self.effects = EffectStore(self.client, keep=600, at_work=600)
        self.marks: dict[str, tuple[str, str, bytes]] = {}
        self.old_marks: list[tuple[str, bytes]] = []
        self.leader = ""

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.delete("sh:o:model", keys.LEADER)
            self.client.close()

    @rule(field=st.sampled_from("ab"), item=st.sampled_from("xy"), in_doubt=st.sampled_from(("run", "fail")))
    def an_effect_begins(self, field: str, item: str, in_doubt: str) -> None:
        reply = self.effects.begin("o:model", field, item, in_doubt=in_doubt)
        state, whose, mark = self.marks.get(field, ("", "", b""))
        if state == "done":
            assert reply == ["done", mark]
        elif state == "begun" and whose != item:
            assert reply == ["busy"]
        elif state == "begun" and in_doubt == "fail":
            assert reply == ["doubt"]
        else:
            assert reply[0] == "go"
            self.old_marks.append((field, mark))
            self.marks[field] = ("begun", item, reply[1])

    @precondition(lambda self: any(state == "begun" for state, _, _ in self.marks.values()))
    @rule(data=st.data(), twice=st.booleans())
    def an_effect_ends(self, data: st.DataObject, twice: bool) -> None:
        field = data.draw(st.sampled_from([name for name, (state, _, _) in self.marks.items() if state == "begun"]))
        _, item, mark = self.marks[field]
        for _ in range(2 if twice else 1):
            self.effects.end("o:model", field, item, b"7")
        self.old_marks.append((field, mark))
        self.marks[field] = ("done", item, b"7")

    @precondition(lambda self: any(state == "begun" for state, _, _ in self.marks.values()))
    @rule(data=st.data())
    def an_effect_did_not_happen(self, data: st.DataObject) -> None:
        field = data.draw(st.sampled_from([name for name, (state, _, _) in self.marks.items() if state == "begun"]))
        self.effects.clear("o:model", field, self.marks.pop(field)[2])

    @precondition(lambda self: self.old_marks)
    @rule(data=st.data())
    def a_late_clear_of_an_old_mark_changes_nothing(self, data: st.DataObject) -> None:
        field, mark = data.draw(st.sampled_from(self.old_marks))
        if self.marks.get(field, ("", "", b""))[2] == mark:
            return  # begun twice in one millisecond
        before = self.client.hgetall("sh:o:model")
        self.effects.clear("o:model", field, mark)
        assert self.client.hgetall("sh:o:model") == before

    @rule(name=st.sampled_from(("one", "two")))
    def lead(self, name: str) -> None:
        self.leader = self.leader or name
        assert self.housekeeping.lead(name, 600_000) == (name == self.leader)

    @precondition(lambda self: self.leader)
    @rule()
    def the_leader_dies(self) -> None:
        self.client.delete(keys.LEADER)  # as its expiry does
        self.leader = ""


def test_random_sequences_of_effects_keep_the_right_marks(server_url: str) -> None:
    explore(MarksMachine, server_url, examples=25, steps=30)
