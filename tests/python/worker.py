# SPDX-License-Identifier: BSD-3-Clause
"""A worker that serves until all have asked for shutdown: name, rank, world size, where to meet."""

import faulthandler
import gc
import os
import sys
import time

import farcall
import functions  # noqa: F401  (its exported names)
from farcall import _farcall

GUARD_S = 30


def main():
    faulthandler.enable()
    name, rank, size, method = sys.argv[1:]
    farcall.init_rpc(name, int(rank), int(size), init_method=method)
    lost = False
    try:
        farcall.shutdown()
    except farcall.WorkerLostError:
        lost = True
    functions.forget()
    gc.collect()
    # Leaving does not wait for handlers that are running; what they hold goes when they end.
    end = time.monotonic() + GUARD_S
    while lost and _farcall.memory_live() and time.monotonic() < end:
        os.sched_yield()
    print("live", _farcall.memory_live(), flush=True)


if __name__ == "__main__":
    main()
