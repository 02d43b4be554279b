# SPDX-License-Identifier: BSD-3-Clause
"""The same rows as bench_python.py, by torch.distributed.rpc (PyTorch with TensorPipe).

    torch_peer.py SCALE

Exits with 3, and prints nothing, if there is no such PyTorch here."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import warnings
from typing import Any

import measure

NO_TORCH = 3


def join(rank: int, folder: str) -> Any:
    warnings.filterwarnings("ignore")
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/meet", rpc_timeout=60)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    return rpc


def callee(folder: str) -> None:
    join(1, folder)
    while True:
        signal.pause()


def main() -> None:
    if importlib.util.find_spec("torch") is None:
        sys.exit(NO_TORCH)
    scale = float(sys.argv[1])
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    with measure.peer(callee) as folder:
        try:
            rpc = join(0, folder)
        except (ImportError, AttributeError):
            sys.exit(NO_TORCH)
        import torch

        names = {True: "rank0", False: "rank1"}
        measure.rpc_rows(
            sync=lambda to_self, func, *args: rpc.rpc_sync(names[to_self], func, args=args),
            begin=lambda: rpc.rpc_async("rank1", measure.add, args=(1, 2)),
            finish=lambda future: future.wait(),
            array_of=lambda size: torch.ones(size // 4),
            scale=scale,
        )
    # Leaving the polite way needs the other one, which is gone.
    os._exit(0)


if __name__ == "__main__":
    main()
