# SPDX-License-Identifier: BSD-3-Clause
"""farcall: remote procedure calls between the processes of one distributed program.

    import farcall

    farcall.init_rpc("worker0", rank=0, world_size=2, init_method="tcp://host-of-rank-0:29500")
    farcall.rpc_sync("worker1", pow, args=(2, 10), timeout=1.0)
    farcall.shutdown()

joining and leaving    init_rpc, shutdown, Options; Agent for several in one process
calling                rpc_sync, rpc_async, Future, wait_all, collect_all
being called           export, current_call
limits                 the timeout of each call, set_rpc_timeout, get_rpc_timeout
who is there           get_worker_info, get_worker_infos, WorkerInfo
what went wrong        RpcError and its kinds: RpcTimeoutError, WorkerLostError, ...
what goes on           metrics, debug_info, FARCALL_LOG=debug in the environment
"""

from . import functions
from ._farcall import (
    Future,
    RRef,
    collect_all,
    current_call,
    remote,
    rpc_async,
    rpc_sync,
    version,
)
from ._workers import WorkerInfo
from .agent import Agent
from .api import (
    debug_info,
    export,
    get_rpc_timeout,
    get_worker_info,
    get_worker_infos,
    init_rpc,
    metrics,
    set_rpc_timeout,
    shutdown,
    wait_all,
)
from .errors import (
    AgentClosedError,
    AlreadyInitializedError,
    AuthenticationError,
    BackpressureError,
    NotInitializedError,
    ReferenceLeakError,
    RemoteError,
    RemoteTraceback,
    RpcCancelledError,
    RpcError,
    RpcTimeoutError,
    SerializationError,
    UnknownFunctionError,
    UnknownWorkerError,
    VersionError,
    WorkerLostError,
)
from .options import Options

__version__ = version()

__all__ = [
    "Agent",
    "AgentClosedError",
    "AlreadyInitializedError",
    "AuthenticationError",
    "BackpressureError",
    "Future",
    "NotInitializedError",
    "Options",
    "RRef",
    "ReferenceLeakError",
    "RemoteError",
    "RemoteTraceback",
    "RpcCancelledError",
    "RpcError",
    "RpcTimeoutError",
    "SerializationError",
    "UnknownFunctionError",
    "UnknownWorkerError",
    "VersionError",
    "WorkerInfo",
    "WorkerLostError",
    "collect_all",
    "current_call",
    "debug_info",
    "export",
    "functions",
    "get_rpc_timeout",
    "get_worker_info",
    "get_worker_infos",
    "init_rpc",
    "metrics",
    "remote",
    "rpc_async",
    "rpc_sync",
    "set_rpc_timeout",
    "shutdown",
    "wait_all",
]
