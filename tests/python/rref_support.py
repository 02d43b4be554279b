# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of references and of asynchronous functions share."""

import gc
import time

import farcall
import rref_functions as rf

PATIENCE_S = 15


def left_over(workers):
    """What the workers have of references now."""
    found = {}
    for name in workers:
        metrics = farcall.rpc_sync(name, farcall.metrics)
        counts = {k: metrics[k] for k in ("rrefs_owned", "rrefs_lent", "rrefs_held") if metrics[k]}
        counts.update({"things": n} if (n := farcall.rpc_sync(name, rf.alive)) else {})
        if counts:
            found[name] = counts
    return found


def none_left(workers):
    """Waits until nothing is left; releases travel by themselves."""
    end = time.monotonic() + PATIENCE_S
    gc.collect()
    while found := left_over(workers):
        assert time.monotonic() < end, f"left over: {found}"
        gc.collect()


def all_forget(workers):
    for name in workers:
        farcall.rpc_sync(name, rf.forget)
