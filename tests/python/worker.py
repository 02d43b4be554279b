# SPDX-License-Identifier: BSD-3-Clause
"""A worker that serves until all have asked for shutdown: name, rank, world size, where to meet."""

import faulthandler
import gc
import sys

import farcall
import functions  # noqa: F401  (its exported names)
from farcall import _farcall


def main():
    faulthandler.enable()
    name, rank, size, method = sys.argv[1:]
    farcall.init_rpc(name, int(rank), int(size), init_method=method)
    try:
        farcall.shutdown()
    except farcall.WorkerLostError:
        pass
    functions.forget()
    gc.collect()
    print("live", _farcall.memory_live(), flush=True)


if __name__ == "__main__":
    main()
