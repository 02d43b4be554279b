# SPDX-License-Identifier: BSD-3-Clause
"""What the measurements in Python share: the functions that are called, and the figures."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

WINDOW = 64
THREADS = 8
SIZES = {"4KiB": 4 << 10, "1MiB": 1 << 20, "64MiB": 64 << 20}
PR_SET_PDEATHSIG = 1


# ------------------------------------------------------------------------- what is called


def add(a: int, b: int) -> int:
    return a + b


def take(array: Any) -> int:
    return len(array)


# ------------------------------------------------------------------------------- figures


def emit(row: str, values: list[float], unit: str = "us", rate: bool = False) -> None:
    """One JSON line. Of a rate, the bad end is the low one."""
    values = sorted(values)
    n = len(values)
    late = values[n // 100 if rate else (n - 1) * 99 // 100]
    line = {"row": row, "median": values[n // 2], "p99": late, "unit": unit, "n": n}
    print(json.dumps(line), flush=True)


def latency(call: Callable[[], Any], count: int, warm: int | None = None) -> list[float]:
    """Microseconds of each of ``count`` calls, after some that are not counted."""
    for _ in range(count // 10 + 2 if warm is None else warm):
        call()
    clock = time.perf_counter_ns
    values = []
    for _ in range(count):
        start = clock()
        call()
        values.append((clock() - start) / 1e3)
    return values


def windowed(begin: Callable[[], Any], finish: Callable[[Any], Any], count: int) -> list[float]:
    """Calls a second with WINDOW of them under way at a time, five times."""
    rates = []
    for chunk in range(6):
        window: collections.deque[Any] = collections.deque()
        start = time.perf_counter()
        for _ in range(count):
            if len(window) == WINDOW:
                finish(window.popleft())
            window.append(begin())
        while window:
            finish(window.popleft())
        if chunk:
            rates.append(count / (time.perf_counter() - start))
    return rates


def threaded(call: Callable[[], Any], count: int) -> list[float]:
    """Calls a second of THREADS threads that call one after another, three times."""

    def often() -> None:
        for _ in range(count):
            call()

    rates = []
    for chunk in range(4):
        threads = [threading.Thread(target=often) for _ in range(THREADS)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if chunk:
            rates.append(THREADS * count / (time.perf_counter() - start))
    return rates


def rpc_rows(
    sync: Callable[..., Any],
    begin: Callable[[], Any],
    finish: Callable[[Any], Any],
    array_of: Callable[[int], Any],
    scale: float,
) -> None:
    """The rows that farcall and torch both have. ``sync(to_self, function, *args)`` calls."""

    def times(count: int) -> int:
        return max(1, int(count * scale))

    emit("py_sync", latency(lambda: sync(False, add, 1, 2), times(2000)))
    emit("py_self", latency(lambda: sync(True, add, 1, 2), times(2000)))
    emit("py_async_64", windowed(begin, finish, times(2000)), "calls/s", rate=True)
    emit("py_threads_8", threaded(lambda: sync(False, add, 1, 2), times(200)), "calls/s", rate=True)
    for (name, size), count in zip(SIZES.items(), (1000, 150, 5)):
        array = array_of(size)
        emit(f"py_{name}", latency(lambda: sync(False, take, array), times(count)))


# ------------------------------------------------------------------------------ processes


@contextlib.contextmanager
def peer(run: Callable[[str], None]) -> Iterator[str]:
    """Forks a process that runs ``run(folder)``, and kills it in the end. Gives the folder."""
    with tempfile.TemporaryDirectory(prefix="farcall-bench-") as folder:
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            try:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
                if os.getppid() == parent:
                    run(folder)
            finally:
                os._exit(0)
        try:
            yield folder
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def status(field: str, pid: str = "self") -> int:
    """A number of /proc/PID/status: VmRSS in KiB, Threads."""
    with open(f"/proc/{pid}/status") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    raise KeyError(field)


def cpu_ns() -> int:
    """What all threads of this process have had of the processors."""
    total = 0
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total
