# SPDX-License-Identifier: BSD-3-Clause
"""Functions that answer later.

A function marked by :func:`async_execution` returns a :class:`farcall.Future`; the call that it
serves is answered once that future has ended, and meanwhile no thread waits for it. An ``async def``
function needs no mark: it runs on an event loop of the worker that is called.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

__all__ = ["async_execution"]

_F = TypeVar("_F", bound=Callable[..., Any])


def async_execution(func: _F) -> _F:
    """Marks a function whose result comes by the Future that it returns.

    Works for functions, methods, and static and class methods (above or below that decorator), called
    by rpc_sync, rpc_async and remote, directly or through a reference. A future that failed raises at
    the caller. Called in the usual way, within its own process, the function is as it was::

        @farcall.functions.async_execution
        def sum_of(to, x, y):
            return farcall.rpc_async(to, add, (x, y)).then(lambda future: future.wait() + 1)
    """
    inner = func.__func__ if isinstance(func, (staticmethod, classmethod)) else func
    if not callable(inner) or isinstance(inner, type):
        raise TypeError(f"async_execution marks functions, not {func!r}")
    try:
        inner._farcall_async = True  # type: ignore[attr-defined]
    except AttributeError:
        raise TypeError(f"async_execution marks functions written in Python, not {func!r}") from None
    return func
