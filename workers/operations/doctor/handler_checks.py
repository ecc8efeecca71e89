"""Checks of handlers: their plugins, topics, stores and versions. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterator

from receiver.config import Config
from receiver.contract.diagnosis.formatting import clock, counted, some, waits
from receiver.contract.stored_headers import NEVER_STORED
from receiver.contract.topics import matches
from receiver.inbox import Declaration
from workers.operations.doctor.facts import Facts
from workers.operations.doctor.findings import Finding, fail, ok, warn
from workers.operations.topic_names import known_topics, sent_names, unsent
from workers.plugins.validation import unconfigured_stores
from workers.plugins.validation_process import LOAD_SECONDS

RELOAD = "send HUP to `storehooks worker`: it reloads config and plugins"


def check_handlers(facts: Facts) -> Iterator[Finding]:
    plugins, absent = facts.plugins, list(_absent_handlers(facts))
    yield from absent
    if plugins.is_late:
        text = "loading the plugins takes longer than doctor waits"
        more = f"workers let it take {LOAD_SECONDS} s at most"
        yield warn("handlers", text, more, fix="run with a longer timeout: --timeout 1m")
        return
    if plugins.fault:
        fix = "correct what the message names, then start the workers or send them HUP"
        yield fail(
            "handlers", plugins.fault, "workers refuse to start; running ones keep the code that they have", fix=fix
        )
        return
    for name, why in plugins.left_out.items():
        fix = f"write [plugins.{name}]; or install it only where it is used, or set [workers] installed = false"
        yield warn("handlers", f"the installed plugin {name} is left out", why, fix=fix)
    yield from _unused_settings(facts)
    if not plugins.handlers:
        yield _no_plugin(facts)
        return
    problems = [
        *_unknown_stores(facts),
        *_topics_never_sent(facts),
        *_version_mismatches(facts),
        *_unverifiable_forwards(facts),
        *_redacted_reads(facts),
    ]
    if not any(problem.level == "fail" for problem in [*absent, *problems]):
        names = {handler.details["plugin"] for handler in plugins.handlers}
        handlers = counted(len(plugins.handlers), "handler")
        yield ok("handlers", f"{handlers} of {some(sorted(names))}, valid in this config")
    yield from problems


def _no_plugin(facts: Facts) -> Finding:
    """The workers may have handlers all the same: those of a plugin that was removed here, or of other hosts."""
    place = facts.config.place("workers", "plugins") or facts.config.path
    running = sorted(name for name, versions in (facts.inbox.running if facts.inbox else {}).items() if versions)
    if not running:
        text = "no plugin is loaded: events are stored and not handled"
        return warn("handlers", text, fix=f"set [workers] plugins ({place})")
    text = f"this config loads no plugin on this host, and workers run {some(running)}"
    fix = f"if the plugin was removed: {RELOAD}; if it is missing here, install it, or set [workers] plugins ({place})"
    return warn("handlers", text, fix=fix)


def _unused_settings(facts: Facts) -> Iterator[Finding]:
    loaded = {handler.details["plugin"] for handler in facts.plugins.handlers}
    for name in sorted(facts.config.plugins.keys() - loaded - facts.plugins.left_out.keys()):
        text = f"the config has [plugins.{name}], and no handler of a plugin {name} is loaded"
        fix = "delete it if the plugin was removed; otherwise install the plugin, or correct the name"
        yield warn("handlers", text, fix=f"{fix} ({facts.config.place('plugins', name)})")


def _absent_handlers(facts: Facts) -> Iterator[Finding]:
    """Handlers that workers had, and that none has now. Events are still routed to them for a while."""
    if facts.server.refusal:  # workers cannot declare theirs
        return
    loaded_here = {handler.handler for handler in facts.plugins.handlers}
    for name, absent in (facts.inbox.absent if facts.inbox else {}).items():
        since = f", since {clock(absent.since, facts.now)}" if absent.since else ""
        text = f"{name}: no worker has this handler any more{since}"
        removed = f"start a worker that has the plugin; if it was removed for good: storehooks handlers retire {name}"
        fix = RELOAD if name in loaded_here else removed
        if absent.waiting:
            runs = waits(absent.waiting, "run of it", "runs of it", or_more=absent.or_more)
            yield fail("handlers", f"{text}; {runs}", fix=fix)
        else:
            yield warn("handlers", text, fix=fix)


def source_place(handler: Declaration) -> str:
    """File and line of the handler; the path is relative if the file is below the working directory."""
    file = str(handler.details["file"])
    relative = os.path.relpath(file)
    return f"{file if relative.startswith('..') else relative}:{handler.details['line']}"


def _unknown_stores(facts: Facts) -> Iterator[Finding]:
    for handler in facts.plugins.handlers:
        if not handler.stores and (limits := handler.details.get("store_limits")):
            yield warn("handlers", f"{handler.handler} is for no store: {limits}", fix="correct one of the two")
        for pattern in unconfigured_stores(facts.config, handler):
            yield fail(
                "handlers",
                f"{handler.handler} is for the store {pattern}, which is not configured",
                f"configured stores: {some(sorted(facts.config.stores))}",
                fix=f"correct stores in {_place_of_stores(facts.config, handler, pattern)}",
            )


def _place_of_stores(config: Config, handler: Declaration, pattern: str) -> str:
    """Where a handler's store is written: in [plugins.NAME], or else in its code."""
    plugin = str(handler.details["plugin"])
    given = config.plugins.get(plugin)
    in_config = given and pattern in (given.stores or ())
    return str(config.place("plugins", plugin, "stores")) if in_config else source_place(handler)


def _unverifiable_forwards(facts: Facts) -> Iterator[Finding]:
    """Forwards without a secret of events whose own signature cannot be verified again."""
    unsigned = {name: forward for name, forward in facts.config.forward.items() if not forward.secret}
    for name, forward in unsigned.items():
        fix = f"set secret in [forward.{name}] ({facts.config.place('forward', name)})"
        if paths := facts.config.redact.paths:
            text = f"forward.{name} fails for events from which [redact] removes {', '.join(paths)}"
            yield warn("handlers", text, "their stores have signed what was removed", fix=fix)
        for store in facts.config.known_stores.values():
            missing = sorted(NEVER_STORED & store.scheme.reads)
            why = f"its scheme reads {', '.join(missing)}, which is not stored" if missing else ""
            why = why or ("it signs whole batches" if store.scheme.batch else "")
            if why and any(matches(pattern, store.name) for pattern in forward.stores):
                text = f"forward.{name} sends events of {store.name} that its target cannot verify: {why}"
                yield warn("handlers", text, fix=fix)


def _redacted_reads(facts: Facts) -> Iterator[Finding]:
    for handler in facts.plugins.handlers:
        if redacted := handler.details.get("redacted"):
            text = f"{handler.handler} reads what [redact] removes: {', '.join(redacted)}"
            more = "without a value an event has no order, and meets no condition but None"
            fix = f"order or choose by another field ({source_place(handler)}), or shorten [redact] paths"
            yield warn("handlers", text, more, fix=fix)


def _topics_never_sent(facts: Facts) -> Iterator[Finding]:
    """A topic that no preset has is probably a mistake. A topic of a preset may just not have occurred yet."""
    seen = facts.inbox.topic_names if facts.inbox else {}
    schemes = {store: known.scheme for store, known in facts.config.known_stores.items()}
    names = [one for store in seen for one in sent_names(store, schemes[store], seen[store], facts.plugins.handlers)]
    if not names:
        return
    known, rare = known_topics(schemes.values()), list[str]()
    for missing in unsent(facts.plugins.handlers, names):
        handler = missing.handler.handler
        if any(matches(missing.topic, topic) for topic in known):
            rare.append(f"{missing.topic} (for {handler})")
            continue
        many = sum(name.seen for name in names if name.topic == missing.nearest)
        more = [f"nearest: {missing.nearest} ({many:,} so far)"] if missing.nearest else []
        fix = f"correct the topic in {source_place(missing.handler)}"
        yield fail("handlers", f"{handler} wants {missing.topic}, which no store has sent", *more, fix=fix)
    if rare:
        fix = "none, if such events are rare or the stores are new; otherwise check the subscriptions"
        yield warn("handlers", f"no store has sent yet: {some(rare)}", fix=fix)


def _version_mismatches(facts: Facts) -> Iterator[Finding]:
    """Handlers of which the workers run another version than this host has."""
    if facts.inbox is None or not facts.inbox.workers or facts.server.refusal:
        return
    for local in facts.plugins.handlers:
        if local.handler in facts.inbox.absent:
            continue  # reported by _absent_handlers
        running = facts.inbox.running.get(local.handler)
        if not running:
            yield warn("handlers", f"{local.handler} is in this config, and no worker has loaded it", fix=RELOAD)
        elif local.version not in running:
            versions = some(sorted(running))
            yield warn("handlers", f"{local.handler} is {local.version} here, and workers run {versions}", fix=RELOAD)
