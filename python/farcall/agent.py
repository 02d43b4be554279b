# SPDX-License-Identifier: BSD-3-Clause
"""The agent: one worker of a job."""

from __future__ import annotations

import atexit
import gc
import threading
import time
from types import TracebackType
from typing import Any, Callable, Coroutine, Dict, List, Optional, Set, Type

from . import _aio, _farcall
from .errors import AgentClosedError, ReferenceLeakError, RpcError
from .options import Options, Timeout

_open: Set[Agent] = set()
_EXIT_PATIENCE = 5.0  # seconds; what is not back by then is left behind


def _interruptibly(work: Callable[[], None], give_up: Callable[[], None]) -> None:
    """Runs what blocks in C on another thread, so that Ctrl-C gets through here; then gives up."""
    failure: List[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="farcall-wait", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        give_up()
        thread.join()
        raise
    if failure:
        try:
            raise failure[0]
        finally:
            failure.clear()


def _number(value: Optional[int], what: str) -> int:
    """-1, "ask the environment", for None."""
    if value is None:
        return -1
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} is an int or None, not {value!r}")
    if not 0 <= value < 2**32:
        raise ValueError(f"{what} is between 0 and {2**32 - 1}, not {value}")
    return value


class Agent(_farcall.Agent):
    """One worker of a job. Several can live in one process; ``init_rpc`` makes the default one.

    name: unique in the job, at most 127 of letters, digits and ``_.:-``.
    rank: the worker's id. None: from the environment, else given by rank 0.
    world_size: how many workers there will be. None: from the environment, else, as with 0, workers
    come and go.
    init_method: where to meet: ``env://`` (the default), ``tcp://host:port`` or ``file:///path``.
    rpc_timeout: what ``timeout=None`` of a call means; None: no limit.

    Making one joins the job; it blocks until all are there. Leaves at the end of a ``with`` block.
    """

    def __init__(
        self,
        name: str,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        *,
        init_method: Optional[str] = None,
        rpc_timeout: Timeout = None,
        options: Optional[Options] = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name is a str, not {name!r}")
        if init_method is not None and not isinstance(init_method, str):
            raise TypeError(f"init_method is a str or None, not {init_method!r}")
        if options is None:
            options = Options()
        elif not isinstance(options, Options):
            raise TypeError(f"options is an Options, not {options!r}")
        self.options = options
        self._threads: List[threading.Thread] = []
        self._started = 0
        self._tasks: Optional[_aio.Tasks] = None
        self._tasks_lock = threading.Lock()
        super().__init__(
            name,
            rank=_number(rank, "rank"),
            world_size=_number(world_size, "world_size"),
            init_method=init_method,
            secret=options._secret_bytes(),
            bind_address=options.bind_address,
            transports=options._transport_bits(),
            init_timeout=options.init_timeout,
            rpc_timeout=rpc_timeout,
            lost_grace=options.lost_grace,
            threads=options.threads,
            threads_max=options.threads_max,
            message_size_max=options.message_size_max,
            log_level=options._level(),
            inherit_deadline=options.inherit_deadline,
        )
        self._service_thread = threading.Thread(
            target=self._service, name=f"farcall-service-{name}", daemon=True
        )
        self._service_thread.start()
        _open.add(self)
        try:
            _interruptibly(self._join, self._close)
        except BaseException:
            self._leave()
            raise

    def shutdown(
        self, graceful: bool = True, timeout: Timeout = None, *, check_leaks: bool = False
    ) -> None:
        """Leaves the job.

        graceful: serves calls until every worker has called it and nothing is in flight anywhere, at
        most ``timeout`` (then RpcTimeoutError, and the agent stays open). Otherwise at once: calls
        that are pending fail, here and there.
        check_leaks: if the program still has an RRef then, ReferenceLeakError is raised at the end,
        which lists them. They are given back in any case.
        """
        if not graceful:
            _farcall._seconds(timeout)
            self._leave()
            return
        if _farcall._serving(self):
            raise RpcError("a graceful shutdown inside a handler or callback would wait for itself")
        try:
            _interruptibly(lambda: self._shutdown(timeout), self._close)
        finally:
            if self.closed:
                self._leave()
        if check_leaks:
            gc.collect()
            held = self._rrefs_held()
            if held:
                raise ReferenceLeakError(
                    f"{len(held)} references were alive at shutdown: " + "; ".join(sorted(held)), held
                )

    def _leave(self) -> None:
        """Closes, and waits for the threads that are on their way out."""
        with self._tasks_lock:
            tasks = self._tasks
            self._close()
        if tasks is not None:
            tasks.stop()
        _open.discard(self)
        end = time.monotonic() + _EXIT_PATIENCE
        here = threading.current_thread()
        while time.monotonic() < end:
            threads = [self._service_thread, *self._threads]
            if tasks is not None:
                threads.append(tasks.thread)
            alive = [t for t in threads if t.is_alive()]
            waiting = [t for t in alive if t is not here]
            if len(alive) <= self._inside or not waiting:
                break
            waiting[0].join(0.005)

    def _start_thread(self) -> None:
        """The service thread was asked for one more handler thread."""
        self._started += 1
        self._threads = [t for t in self._threads if t.is_alive()]
        thread = threading.Thread(
            target=self._executor, name=f"farcall-{self._started}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _spawn(
        self,
        coroutine: Coroutine[Any, Any, Any],
        answer: _farcall.Answer,
        call: _farcall.CurrentCall,
    ) -> None:
        """A function that was called has returned a coroutine."""
        with self._tasks_lock:
            if self._tasks is None:
                if self.closed:
                    raise AgentClosedError("this agent was shut down")
                self._tasks = _aio.Tasks(self.name, self._mark_loop)
            tasks = self._tasks
        tasks.spawn(coroutine, answer, call)

    _wake = staticmethod(_aio.wake)

    def debug_info(self) -> Dict[str, Any]:
        """What is going on here, for a person to read."""
        return {
            "version": _farcall.version(),
            "name": self.name,
            "id": self.id,
            "closed": self.closed,
            "workers": [] if self.closed else self.get_worker_infos(),
            "rpc_timeout": None if self.closed else self.get_rpc_timeout(),
            "options": self.options,
            "handler_threads": sum(t.is_alive() for t in self._threads),
            "handlers_running": self._inside,
            "tasks_running": 0 if self._tasks is None else len(self._tasks),
            "references": self._rrefs(),
            "references_held": self._rrefs_held(),
            "exported": sorted(_farcall._exports()),
            "metrics": self.metrics(),
            "memory_live": _farcall.memory_live(),
        }

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if not self.closed:
            self.shutdown(graceful=kind is None)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<farcall.Agent {self.name!r}, id {self.id}{state}>"


def _at_exit() -> None:
    for agent in list(_open):
        try:
            agent._leave()
        except Exception:
            pass  # the others are to be closed as well
    _farcall._finish()


atexit.register(_at_exit)
