"""Own writes: which event is the echo of a write, what follows a write, and what bounds both. With a real server."""

from __future__ import annotations

import pytest
from redis import Redis

from receiver.inbox import keys
from receiver.inbox.own_writes import MAX_DEPTH, Judgement, OwnWrites, resource_name, suspected_loops

MUG = resource_name(plugin="labels", store="north", kind="product", resource_id="7")
RUN = Judgement("run")
WRITES = f"{keys.PREFIX}writes"
ACCEPT = "local t = redis.call('TIME'); return redis.call('ZADD', KEYS[1], t[1] * 1000000 + t[2], ARGV[1])"


class Plugin:
    """A plugin that writes to one resource and gets its events."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.writes = OwnWrites(redis)
        self.count = 0

    def begin(self) -> str:
        self.count += 1
        self.writes.begin(MUG, f"w{self.count}", f"e{self.count}|labels.label")
        return f"w{self.count}"

    def end(self, write: str, digest: str, *, action: str = "updated", sent: str = "") -> None:
        run = f"e{write[1:]}|labels.label"
        self.writes.end(MUG, write, run, seconds=0.0, action=action, digest=digest, sent=sent)

    def write(self, digest: str, **how: str) -> None:
        self.end(self.begin(), digest, **how)

    def accept(self, event: str) -> str:
        self.redis.eval(ACCEPT, 1, keys.INDEX, event)
        return event

    def judge(self, event: str, digest: str, *, action: str = "updated", drop: bool = True) -> Judgement:
        return self.writes.judge(MUG, event, action=action, digest=digest, drop=drop)

    def handle(self, event: str, digest: str, **how: bool) -> Judgement:
        return self.judge(self.accept(event), digest, **how)


@pytest.fixture
def plugin(redis: Redis) -> Plugin:
    return Plugin(redis)


def test_an_event_with_exactly_the_data_of_the_answer_is_an_echo(plugin: Plugin) -> None:
    plugin.write("blue")
    assert plugin.handle("echo", "blue") == Judgement("echo", by="e1|labels.label")
    assert plugin.judge("echo", "blue").word == "echo", "asked again, also after a lost worker, the answer is the same"


def test_data_that_cannot_be_read_or_was_not_shown_is_never_an_echo(plugin: Plugin) -> None:
    plugin.write("")
    assert plugin.handle("event", "") == RUN


def test_an_event_that_arrived_before_the_write_is_no_echo(plugin: Plugin) -> None:
    plugin.accept("early")
    plugin.write("blue")
    assert plugin.judge("early", "blue") == RUN
    assert plugin.handle("echo", "blue").word == "echo"


def test_an_event_that_waited_in_a_spool_arrived_when_it_was_received(plugin: Plugin, redis: Redis) -> None:
    plugin.write("blue")
    received = redis.time()[0] * 1000 - 60_000
    redis.hset(f"{keys.EVENT}spooled", "received", received)
    assert plugin.handle("spooled", "blue") == RUN


@pytest.mark.parametrize(("wrote", "topic"), [("updated", "paid"), ("updated", "created"), ("created", "updated")])
def test_an_event_of_another_topic_says_more_than_its_data(plugin: Plugin, wrote: str, topic: str) -> None:
    plugin.write("blue", action=wrote)
    assert plugin.judge(plugin.accept("event"), "blue", action=topic) == RUN


def test_a_write_has_one_echo_and_a_person_who_restores_its_state_is_heard(plugin: Plugin) -> None:
    plugin.write("blue")
    assert plugin.handle("echo", "blue").word == "echo"
    assert plugin.handle("red", "red") == RUN
    assert plugin.handle("blue-again", "blue") == RUN


def test_a_write_without_an_echo_ends_with_the_next_outside_change(plugin: Plugin) -> None:
    plugin.write("blue")  # the store sends no event: nothing has changed
    assert plugin.handle("red", "red") == RUN
    assert plugin.handle("blue-again", "blue") == RUN


def test_an_echo_that_is_judged_after_a_later_outside_change_is_still_one(plugin: Plugin) -> None:
    plugin.write("blue")
    plugin.accept("echo")
    assert plugin.handle("red", "red") == RUN
    assert plugin.judge("echo", "blue").word == "echo"


def test_two_equal_writes_have_two_echoes(plugin: Plugin) -> None:
    plugin.write("blue")
    plugin.write("blue")
    assert [plugin.handle(name, "blue").word for name in ("a", "b", "c")] == ["echo", "echo", "run"]


def test_a_repeated_write_with_another_answer_shows_an_outside_change(plugin: Plugin) -> None:
    """The second write may have changed nothing: then the store sends only the event of the outside change."""
    plugin.write("blue", sent="label")
    assert plugin.handle("echo", "blue").word == "echo"
    plugin.write("large", sent="label")
    assert plugin.handle("by-a-person", "large") == RUN


def test_a_repeated_write_with_the_same_answer_has_an_echo_unless_others_have_changed_the_resource(
    plugin: Plugin,
) -> None:
    plugin.write("blue", sent="label")
    assert plugin.handle("echo", "blue").word == "echo"
    plugin.write("blue", sent="label")
    assert plugin.handle("second-echo", "blue").word == "echo"
    plugin.write("blue", sent="!label")
    assert plugin.handle("by-a-person", "blue") == RUN


@pytest.mark.parametrize("first", ["!label.on", "?"])
def test_a_write_that_is_repeated_after_another_has_undone_it_has_an_echo(plugin: Plugin, first: str) -> None:
    """A plugin that switches something on and off; or one answer was lost, and all later writes were in doubt."""
    plugin.write("" if first == "?" else "on", sent=first)
    plugin.accept("first")
    plugin.write("off", sent="!label.off")
    plugin.handle("off", "off")
    plugin.write("on", sent="!label.on")
    assert plugin.handle("on", "on").word == "echo"


@pytest.mark.parametrize(("digest", "sent"), [("cheap", "!price.1"), ("blue", "!label.off")])
def test_a_write_to_other_fields_or_without_effect_undoes_nothing(plugin: Plugin, digest: str, sent: str) -> None:
    plugin.write("blue", sent="!label.on")
    plugin.write(digest, sent=sent)
    plugin.write("large", sent="!label.on")
    assert plugin.handle("by-a-person", "large") == RUN


def test_a_plugin_with_several_writes_gets_no_echo_of_any(plugin: Plugin) -> None:
    plugin.write("blue")
    plugin.write("red")
    assert [plugin.handle(name, name).word for name in ("blue", "red")] == ["echo", "echo"]


def test_an_event_during_a_write_waits_for_its_answer(plugin: Plugin) -> None:
    write = plugin.begin()
    assert plugin.handle("echo", "blue").word == "wait"
    plugin.end(write, "blue")
    assert plugin.judge("echo", "blue").word == "echo"


def test_an_event_during_a_write_of_a_dead_process_waits_ten_seconds(plugin: Plugin, redis: Redis) -> None:
    write = plugin.begin()
    assert plugin.handle("event", "blue").word == "wait"
    key = keys.WRITTEN + MUG
    begun, _, rest = redis.hget(key, write).partition(b" ")  # type: ignore[union-attr]
    redis.hset(key, write, b"%d %s" % (int(begun) - 10_000_000, rest))
    assert plugin.judge("event", "blue") == RUN


def test_the_created_event_waits_for_the_answer_that_has_its_id(plugin: Plugin) -> None:
    new = resource_name(plugin="labels", store="north", kind="product", resource_id="")
    plugin.writes.begin(new, "w1", "e1|labels.label")
    assert plugin.judge(plugin.accept("created"), "blue", action="created").word == "wait"
    plugin.end("w1", "blue", action="created")
    plugin.writes.forget(new, "w1")
    # Here the answer took no time, so that event arrived before the write began. The next one did not.
    assert plugin.judge(plugin.accept("created"), "blue", action="created").word == "echo"


def follow(plugin: Plugin, number: int) -> Judgement:
    """The plugin writes, and gets an event that is no echo: the store's events look different from its answers."""
    plugin.write(f"answer-{number}")
    return plugin.handle(f"event-{number}", f"event-{number}")


def test_past_eight_events_in_a_minute_runs_are_delayed_by_a_minute_each(plugin: Plugin, redis: Redis) -> None:
    assert [follow(plugin, number) for number in range(MAX_DEPTH)] == [RUN] * MAX_DEPTH
    ninth, tenth = follow(plugin, 9), follow(plugin, 10)
    assert (ninth.word, ninth.is_new, tenth.word, tenth.is_new) == ("loop", True, "loop", False)
    assert 59 < tenth.seconds <= 60
    (loop,) = suspected_loops(redis)
    assert loop[:4] == ("labels", "north", "product", "7")
    _make_older(redis, "event-9", by=60)
    assert plugin.judge("event-9", "event-9") == RUN, "it has waited for a minute"
    assert follow(plugin, 11).word == "loop", "the loop goes on, one run a minute"


def test_echo_run_calls_the_handler_and_counts_its_echoes(plugin: Plugin) -> None:
    words = []
    for number in range(MAX_DEPTH + 1):
        plugin.write(f"{number}")
        words.append(plugin.handle(f"echo-{number}", f"{number}", drop=False).word)
        assert plugin.judge(f"echo-{number}", f"{number}").word == "echo", "a handler of the plugin that wants none"
    assert words == ["run"] * MAX_DEPTH + ["loop"]


def test_outside_changes_are_no_loop(plugin: Plugin, redis: Redis) -> None:
    for number in range(3 * MAX_DEPTH):
        assert plugin.handle(f"edit-{number}", f"edit-{number}") == RUN
        plugin.write(f"answer-{number}")
        assert plugin.handle(f"echo-{number}", f"answer-{number}").word == "echo"
    assert suspected_loops(redis) == []


def test_what_is_remembered_is_bounded_and_expires(plugin: Plugin, redis: Redis) -> None:
    for number in range(100):
        plugin.write(f"{number}")
    assert redis.hlen(keys.WRITTEN + MUG) == 32
    assert plugin.handle("echo", "99").word == "echo"
    assert plugin.handle("old", "0") == RUN
    assert 0 < redis.pttl(keys.WRITTEN + MUG) <= 300_000


def test_the_oldest_resource_makes_room_for_a_new_one(plugin: Plugin, redis: Redis) -> None:
    plugin.write("blue")
    now = redis.time()[0] * 1000
    redis.zadd(WRITES, {f"other {number}": now + 1000 for number in range(9_999)})
    plugin.writes.begin("labels|north|product|8", "w", "e|labels.label")
    assert redis.zcard(WRITES) == 10_000
    assert not redis.exists(keys.WRITTEN + MUG)
    assert redis.exists(f"{keys.WRITTEN}labels|north|product|8")


def test_only_resources_that_were_written_to_are_asked_about(plugin: Plugin) -> None:
    assert not plugin.writes.any_of([MUG])
    plugin.write("blue")
    assert plugin.writes.any_of([MUG, "labels|north|product|8"])
    assert not plugin.writes.any_of(["labels|north|product|8"])
    assert not plugin.writes.any_of([])


def _make_older(redis: Redis, event: str, *, by: float) -> None:
    redis.zincrby(keys.INDEX, -by * 1_000_000, event)
