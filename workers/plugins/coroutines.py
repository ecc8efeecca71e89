"""Coroutines: runs what `async def` functions of plugins return, in one event loop for the whole life of a process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Generator
from typing import Any

from receiver import logs

CANCEL_SECONDS = 1.0
"""How long the tasks that a handler left may take to end after they were cancelled."""

log = logs.get("child")


class CoroutineRunner:
    """One event loop, made when it is first needed. A plain function never meets it."""

    def __init__(self, *, interrupts: type[BaseException]) -> None:
        """`interrupts` is raised from outside to end the run under way, in whatever code of the process that is. What
        else a task or callback raises ends only the run that awaits it: others may go on in the loop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._interrupts = interrupts
        self._interrupt: BaseException | None = None

    def finish(self, returned: Any, *, keep_tasks: bool = False) -> Any:
        """What a function returned; for an `async def` function, what its coroutine returns.

        Tasks that it started and did not await are cancelled, unless `keep_tasks` says that they may go on. The loop
        runs only while a coroutine does.
        """
        if not inspect.iscoroutine(returned):
            return returned
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(self._report)
            self._loop.set_task_factory(self._create_task)
        self._interrupt = None
        before = asyncio.all_tasks(self._loop)
        self._task = self._loop.create_task(returned)
        try:
            return self._run(self._loop, self._task)
        except asyncio.CancelledError:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt or asyncio.CancelledError from None
        finally:
            if not keep_tasks:
                self._cancel(asyncio.all_tasks(self._loop) - before)

    def close(self) -> None:
        if self._loop is not None:
            self._cancel(asyncio.all_tasks(self._loop))
            self._loop.close()

    def _cancel(self, tasks: set[asyncio.Task[Any]]) -> None:
        if tasks and self._loop is not None:
            for task in tasks:
                task.cancel()
            self._run(self._loop, self._loop.create_task(asyncio.wait(tasks, timeout=CANCEL_SECONDS)))

    def _create_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        task.add_done_callback(self._pass_interrupt_on)
        return task

    def _run(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> Any:
        """Until the task is done. A `loop.stop()` of a handler, whose effect may come in a later run, ends no run."""
        task.add_done_callback(lambda _: loop.stop())
        while not task.done():
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:  # asyncio raises them here, and in the task
                if isinstance(error, self._interrupts):
                    raise
                if not task.done():
                    _log_failed_task(error)
        return task.result()

    def _pass_interrupt_on(self, task: asyncio.Task[Any]) -> None:
        """An interrupt may hit any task, also one that the startup has left."""
        if task is not self._task and not task.cancelled() and isinstance(task._exception, self._interrupts):
            self._interrupt_run(task._exception)

    def _interrupt_run(self, error: BaseException) -> None:
        self._interrupt = error
        self._task.cancel()

    def _report(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Called for an exception that no coroutine gets: of a callback at once, of a task when that is collected."""
        error = context.get("exception")
        if isinstance(error, self._interrupts) and "future" not in context:
            self._interrupt_run(error)
        else:
            _log_failed_task(error)


def _log_failed_task(error: BaseException | None) -> None:
    log.warning("a task of an async handler failed", exception=type(error).__name__)
