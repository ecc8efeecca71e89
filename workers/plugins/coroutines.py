"""Coroutines: runs what `async def` functions of plugins return, in one event loop for the whole life of a process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Generator
from typing import Any
from weakref import WeakSet

from receiver import logs

CANCEL_SECONDS = 1.0
"""How long the tasks that a handler left may take to end after they were cancelled."""

log = logs.get("child")


class _Task(asyncio.Task[Any]):
    """A task that knows in which run it was created: it may end in another one."""

    run: object = None


class CoroutineRunner:
    """One event loop, made when it is first needed. A plain function never meets it."""

    def __init__(self, *, timeout: tuple[type[BaseException], ...] = ()) -> None:
        """`timeout`: what a run's time limit raises, in whatever code of the process is under way."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timeout = timeout
        self._run_under_way: object = None
        self._tasks: WeakSet[_Task] = WeakSet()
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
        self._run_under_way, self._interrupt = object(), None
        before = asyncio.all_tasks(self._loop)
        self._task = self._loop.create_task(returned)
        try:
            return self._run(self._loop, self._task)
        except asyncio.CancelledError:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt or asyncio.CancelledError from None
        finally:
            self._run_under_way = None  # it has its result: what its tasks raise from here on ends no run
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
        task = _Task(coroutine, loop=loop, **options)
        task.run = self._run_under_way
        task.add_done_callback(self._end_run_on_timeout)
        self._tasks.add(task)
        return task

    def _run(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> Any:
        """Until the task is done. A `loop.stop()` of a handler, whose effect may come in a later run, ends no run."""
        task.add_done_callback(lambda _: loop.stop())
        while not task.done():
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:  # asyncio raises them here, and in the task
                if not task.done() and not self._is_of_another_run(error):
                    raise
        return task.result()

    def _is_of_another_run(self, error: BaseException) -> bool:
        others = (one for one in self._tasks if one.run is not self._run_under_way)
        return any(one.done() and not one.cancelled() and one.exception() is error for one in others)

    def _end_run_on_timeout(self, task: asyncio.Task[Any]) -> None:
        """The time limit of the run under way may hit any task, also one that goes on since the startup."""
        if task is not self._task and not task.cancelled() and isinstance(task._exception, self._timeout):
            self._interrupt_run(task._exception)

    def _interrupt_run(self, error: BaseException) -> None:
        self._interrupt = error
        self._task.cancel()

    def _report(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Called for an exception that no coroutine gets: of a callback at once, of a task when that is collected."""
        error = context.get("exception")
        if isinstance(error, self._timeout) and "future" not in context:
            self._interrupt_run(error)
        else:
            log.warning("a task of an async handler failed", exception=type(error).__name__)
