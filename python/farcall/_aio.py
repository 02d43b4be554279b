# SPDX-License-Identifier: BSD-3-Clause
"""What meets asyncio: ``await future``, and the event loop for ``async def`` functions that are called."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Dict, Generator, Optional

from .errors import AgentClosedError

if TYPE_CHECKING:
    from ._farcall import CurrentCall, Future

_STOP_PATIENCE = 1.0  # seconds for tasks to end after they were cancelled

# --------------------------------------------------------------------------------------- waiting


def wake(waiter: asyncio.Future[None]) -> None:
    """Runs in the event loop once the call has ended."""
    if not waiter.done():
        waiter.set_result(None)


async def _wait(future: Future[Any]) -> Any:
    if not future.done():
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        future._notify(loop, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            future.cancel()
            raise
    return future.value()


def waits(future: Future[Any]) -> Generator[Any, None, Any]:
    """The iterator of ``Future.__await__``; cancelling the task that awaits cancels the call."""
    return _wait(future).__await__()


# --------------------------------------------------------------------------------------- serving

_call: contextvars.ContextVar[Optional[CurrentCall]] = contextvars.ContextVar(
    "farcall_call", default=None
)


def task_call() -> Optional[CurrentCall]:
    """The call that the task which runs here serves."""
    return _call.get()


class Tasks:
    """The event loop of an agent, on a thread of its own: it runs the coroutines of calls."""

    def __init__(self, name: str, mark: Callable[[], None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._mark = mark
        self._stopped = False
        self._timers: Dict[asyncio.Task[Any], Optional[asyncio.TimerHandle]] = {}
        self.thread = threading.Thread(target=self._run, name=f"farcall-loop-{name}", daemon=True)
        self.thread.start()

    def __len__(self) -> int:
        return len(self._timers)

    def spawn(
        self,
        coroutine: Coroutine[Any, Any, Any],
        answer: Callable[[asyncio.Task[Any]], None],
        call: CurrentCall,
    ) -> None:
        """Runs it; answer(task) follows in the loop. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._begin, coroutine, answer, call)
        except RuntimeError:
            raise AgentClosedError("the event loop of this worker was stopped") from None

    def stop(self) -> None:
        """Cancels all; the thread ends soon. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._cancel_all)
        except RuntimeError:
            pass  # it has ended already

    def _run(self) -> None:
        self._mark()
        asyncio.set_event_loop(self._loop)
        while not self._stopped:
            try:
                self._loop.run_forever()
            except BaseException:
                pass  # SystemExit of a task passes through here; it is its answer, and ends nothing
        self._loop.close()

    def _begin(
        self,
        coroutine: Coroutine[Any, Any, Any],
        answer: Callable[[asyncio.Task[Any]], None],
        call: CurrentCall,
    ) -> None:
        context = contextvars.Context()
        context.run(_call.set, call)
        # Before the task's first step, after which there may be no call any more.
        left = call.remaining()
        task = self._loop.create_task(coroutine, context=context)
        # When its time is up the caller has given up, and nobody needs to be told.
        self._timers[task] = None if left is None else self._loop.call_later(left, task.cancel)
        task.add_done_callback(self._forget)
        task.add_done_callback(answer)
        if self._stopped:
            task.cancel()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        timer = self._timers.pop(task, None)
        if timer is not None:
            timer.cancel()
        if self._stopped and not self._timers:
            self._loop.call_soon(self._loop.stop)  # after the answer of this task

    def _cancel_all(self) -> None:
        self._stopped = True
        for task in list(self._timers):
            task.cancel()
        if self._timers:
            self._loop.call_later(_STOP_PATIENCE, self._loop.stop)
        else:
            self._loop.stop()
