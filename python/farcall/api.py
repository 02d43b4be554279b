# SPDX-License-Identifier: BSD-3-Clause
"""The functions of the package that act on the process's default agent."""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, Dict, Iterable, List, Optional, TypeVar, Union

from . import _farcall
from ._farcall import Future
from ._workers import WorkerInfo
from .agent import Agent, _open
from .errors import AlreadyInitializedError
from .options import Options, Timeout

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

_lock = threading.Lock()
_joining = False


def init_rpc(
    name: str,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    *,
    init_method: Optional[str] = None,
    rpc_timeout: Timeout = None,
    options: Optional[Options] = None,
) -> None:
    """Joins the job as worker ``name``; see :class:`Agent` for the arguments.

    Blocks until all workers of the world are there, at most ``options.init_timeout``.
    """
    global _joining
    with _lock:
        agent = _current()
        if _joining or (agent is not None and not agent.closed):
            raise AlreadyInitializedError(
                "init_rpc was called already"
                + (f", by worker {agent.name!r}" if agent else "")
                + "; shutdown comes before the next"
            )
        _joining = True
    try:
        agent = Agent(
            name,
            rank,
            world_size,
            init_method=init_method,
            rpc_timeout=rpc_timeout,
            options=options,
        )
        _farcall._set_default(agent, None)
    finally:
        _joining = False


def shutdown(
    graceful: bool = True, timeout: Timeout = None, *, check_leaks: bool = False
) -> None:
    """Leaves the job; afterwards ``init_rpc`` may be called again. See :meth:`Agent.shutdown`."""
    agent = _default()
    try:
        agent.shutdown(graceful, timeout, check_leaks=check_leaks)
    finally:
        if agent.closed:
            _farcall._set_default(None, f"worker {agent.name!r} of this process was shut down")


def get_worker_info(name: Union[None, str, int, WorkerInfo] = None) -> WorkerInfo:
    """The worker of this name or id; None: this worker itself."""
    return _default().get_worker_info(name)


def get_worker_infos() -> List[WorkerInfo]:
    """All workers of the job, in order of their ids."""
    return _default().get_worker_infos()


def set_rpc_timeout(timeout: Timeout) -> None:
    """What ``timeout=None`` means for calls made from now on; None and 0: no limit."""
    _default().set_rpc_timeout(timeout)


def get_rpc_timeout() -> float:
    """The seconds that ``timeout=None`` means; 0.0: no limit."""
    return _default().get_rpc_timeout()


def metrics() -> Dict[str, int]:
    """Counters of this worker, by name."""
    return _default().metrics()


def debug_info() -> Dict[str, Any]:
    """What is going on at this worker, for a person to read."""
    return _default().debug_info()


def export(name: str) -> Callable[[_F], _F]:
    """``export("name")(func)`` lets workers of any language call ``func`` by that name.

    Such a call carries values only: None, bool, int, float, str, bytes, list, dict and arrays. The
    names belong to the process, for all of its agents; they may be exported before ``init_rpc``.
    """
    if not isinstance(name, str):
        raise TypeError(f'a name is a str, not {name!r}; write export("name")(func)')
    size = len(name.encode())
    if not 1 <= size <= 255 or name.startswith(("far.", "py:")) or "\0" in name:
        raise ValueError(f"{name!r}: a name has 1 to 255 bytes and begins with neither far. nor py:")

    def keep(func: _F) -> _F:
        if not callable(func):
            raise TypeError(f"only what can be called is exported, not {func!r}")
        known = _farcall._exports().setdefault(name, func)
        if known is not func:
            raise ValueError(f"{name!r} is exported already, as {known!r}")
        return func

    return keep


def wait_all(futures: Iterable[Future[_T]], timeout: Timeout = None) -> List[_T]:
    """The results of all, in order. The first that fails is raised at once, whatever the others do."""
    return _farcall._wait_all(futures, timeout)


def _current() -> Optional[Agent]:
    try:
        return _default()
    except Exception:
        return None


def _default() -> Agent:
    agent = _farcall._get_default()
    assert isinstance(agent, Agent)
    return agent


def _after_fork_in_child() -> None:
    """The agents stay the parent's: their threads and connections are not here."""
    global _joining, _lock
    _lock = threading.Lock()
    _joining = False
    if _open:
        for agent in _open:
            agent._forked()
        _open.clear()
        _farcall._set_default(
            None, "this process was forked from the one that called init_rpc; call it here as well"
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
