# SPDX-License-Identifier: BSD-3-Clause
"""A service: a loop that is started by a call and runs until the whole job shuts down.

    farcall run -n 3 examples/service.py        (or: python3 examples/service.py)

One worker collects what the others count. The call that started its loop has no limit; it takes one
thread of that worker and is in nobody's way. When every worker has asked for shutdown, closing() turns
true and the loop returns: only then does shutdown() return, and the result is there.
"""

from __future__ import annotations

import os
import queue
import random
import sys
from collections import Counter

import farcall

WORKERS = 3
SHOTS = 20_000
PARCEL = 2_000

_parcels: queue.Queue[Counter[str]] = queue.Queue()


def collect() -> Counter[str]:
    """The service: it adds up what arrives, until all have asked for shutdown."""
    call = farcall.current_call()
    total: Counter[str] = Counter()
    while True:
        try:
            total += _parcels.get(timeout=0.02)
        except queue.Empty:
            if call.closing():
                return total


def deliver(parcel: Counter[str]) -> None:
    """What the others call. It returns at once; the service does the work."""
    _parcels.put(parcel)


def shoot(rank: int) -> None:
    """Throws darts at a square and counts those that hit the circle in it."""
    chance = random.Random(rank)
    for _ in range(SHOTS // PARCEL):
        hits = sum(chance.random() ** 2 + chance.random() ** 2 < 1 for _ in range(PARCEL))
        farcall.rpc_async("collector", deliver, (Counter(hits=hits, shots=PARCEL),))


def main() -> int:
    if "RANK" not in os.environ:
        from farcall import launch

        return launch.run([sys.executable, *sys.argv], WORKERS)
    rank = int(os.environ["RANK"])
    farcall.init_rpc("collector" if rank == 1 else f"shooter{rank}")
    service = farcall.rpc_async("collector", collect, timeout=0) if rank == 0 else None
    if rank != 1:
        shoot(rank)
    farcall.shutdown()
    if service is None:
        return 0
    total = service.wait()
    print(f"pi is about {4 * total['hits'] / total['shots']:.3f}, after {total['shots']} shots")
    return 0 if total["shots"] == SHOTS * (int(os.environ["WORLD_SIZE"]) - 1) else 1


if __name__ == "__main__":
    sys.exit(main())
