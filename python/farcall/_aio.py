# SPDX-License-Identifier: BSD-3-Clause
"""``await future``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generator

if TYPE_CHECKING:
    from ._farcall import Future


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
