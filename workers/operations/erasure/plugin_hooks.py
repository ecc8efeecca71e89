"""Plugin hooks: calls the functions that plugins have registered with `@router.erase`, in this process."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from redis import Redis

from receiver.config import Config
from receiver.inbox import connect_to
from receiver.inbox.effect_store import EffectStore
from workers.operations.erasure.subject import Subject
from workers.plugins import discovery, plugin_settings
from workers.plugins.context import Context
from workers.plugins.coroutines import CoroutineRunner

if TYPE_CHECKING:
    from workers.storeapi import Client

EFFECT_SECONDS = 5.0
AT_WORK_SECONDS = 60.0


class PluginHooks:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._clients: dict[str, Client] = {}
        with redirect_stdout(sys.stderr):  # what plugins print is no part of the command's output
            loaded = discovery.load(config)
        self._plugins: Sequence[discovery.Plugin] = [one for one in loaded if one.router.erase_function is not None]

    @property
    def names(self) -> list[str]:
        return [one.name for one in self._plugins]

    def call(self, subject: Subject) -> Iterator[tuple[str, str]]:
        """Call each plugin's function with the subject. Returns what each answered: a number of what it erased, or
        "done". One that raises ends the erasure, which can then be repeated."""
        coroutines = CoroutineRunner(interrupts=KeyboardInterrupt)
        client = connect_to(self._config.redis, timeout=EFFECT_SECONDS)
        effects = EffectStore(client, keep=self._config.retention.once, at_work=AT_WORK_SECONDS)
        try:
            for plugin in self._plugins:
                with redirect_stdout(sys.stderr):
                    answer = self._call(plugin, subject, effects, coroutines, client)
                is_number = isinstance(answer, int) and not isinstance(answer, bool)
                yield plugin.name, f"{answer:,}" if is_number else "done"
        finally:
            coroutines.close()

    def _call(
        self,
        plugin: discovery.Plugin,
        subject: Subject,
        effects: EffectStore,
        coroutines: CoroutineRunner,
        redis: Redis,
    ) -> object:
        router = plugin.router
        start, function = router.startup_function, router.erase_function
        general = plugin_settings.build(self._config, router, "")
        context = _ErasureContext(
            store=subject.store,
            settings=plugin_settings.build(self._config, router, subject.store),
            resource=coroutines.finish(start(general), keep_tasks=True) if start else None,
            attempt=1,
            log=logging.getLogger(f"{plugin.name}.erase"),
            handler=f"{plugin.name}.erase",
            effects=effects,
            deadline=time.monotonic() + AT_WORK_SECONDS,
            connect=lambda: self._client_of(subject.store, redis),
        )
        answer = coroutines.finish(function(subject, context)) if function else None
        if router.shutdown_function is not None:
            coroutines.finish(router.shutdown_function(context.resource))
        return answer

    def _client_of(self, store: str, redis: Redis) -> Client:
        if store not in self._clients:
            from workers.storeapi import client_for_store

            self._clients[store] = client_for_store(self._config, store, redis)
        return self._clients[store]


class _ErasureContext(Context[Any]):
    def _place(self, scope: str) -> tuple[str, str]:  # noqa: ARG002
        raise RuntimeError(
            "an erasure has no event: ctx.once and ctx.key would be the same for every person. Make the call directly; "
            "it is made again if the erasure is repeated"
        )
