# SPDX-License-Identifier: BSD-3-Clause
"""What calls cost in Python: two processes on this machine, one forked from the other.

    bench_python.py SCALE

Prints one JSON line a row. SCALE multiplies how often things are done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import measure

BARE = "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmRSS')))"


def join(rank: int, folder: str) -> None:
    import farcall

    farcall.init_rpc(
        f"rank{rank}", rank=rank, world_size=2, init_method=f"file://{folder}/meet"
    )


def callee(folder: str) -> None:
    join(1, folder)
    while True:
        signal.pause()


def idle(scale: float) -> None:
    """What a worker costs that does nothing: before numpy and the other measurements."""
    bare = int(subprocess.run([sys.executable, "-c", BARE], capture_output=True).stdout)
    measure.emit("py_memory", [(measure.status("VmRSS") - bare) / 1024], "MiB")
    time.sleep(0.2)  # what the call left to do is done
    begin, cpu = time.monotonic(), measure.cpu_ns()
    time.sleep(1.0 * min(1.0, scale))
    used = (measure.cpu_ns() - cpu) / 1e9 / (time.monotonic() - begin)
    measure.emit("py_idle_cpu", [100 * used], "%")
    measure.emit("py_idle_threads", [measure.status("Threads")], "threads")


def main() -> None:
    scale = float(sys.argv[1])
    os.environ["FARCALL_SECRET"] = "of this measurement"
    os.environ.pop("FARCALL_SECRET_FILE", None)
    with measure.peer(callee) as folder:
        join(0, folder)
        import farcall

        farcall.rpc_sync("rank1", measure.add, args=(1, 2))
        idle(scale)

        import numpy as np

        names = {True: "rank0", False: "rank1"}
        measure.rpc_rows(
            sync=lambda to_self, func, *args: farcall.rpc_sync(names[to_self], func, args=args),
            begin=lambda: farcall.rpc_async("rank1", measure.add, args=(1, 2)),
            finish=lambda future: future.wait(),
            array_of=lambda size: np.ones(size // 4, np.float32),
            scale=scale,
        )
        farcall.shutdown(graceful=False)


if __name__ == "__main__":
    main()
