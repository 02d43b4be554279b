# SPDX-License-Identifier: BSD-3-Clause
"""The errors of farcall. All of them derive from :class:`RpcError`."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional

if TYPE_CHECKING:
    from ._workers import WorkerInfo

__all__ = [
    "AgentClosedError",
    "AlreadyInitializedError",
    "AuthenticationError",
    "BackpressureError",
    "NotInitializedError",
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
    "WorkerLostError",
]


class RpcError(RuntimeError):
    """The base of all errors of farcall.

    One without ``remote_worker`` is the call's own. One with it came out of the handler there: the
    function itself met it, for instance in a call that it made.
    """

    remote_worker: Optional[WorkerInfo] = None


class RpcTimeoutError(RpcError, TimeoutError):
    """The limit of a call, or of a wait, ran out."""


class RpcCancelledError(RpcError):
    """The call was cancelled by its caller."""


class WorkerLostError(RpcError, ConnectionError):
    """The worker died, was declared lost, or the connection under the call broke."""

    #: who was lost
    worker: Optional[WorkerInfo] = None
    #: how, in a word: "connection", "died", "closed" or "lost"
    reason: str = "lost"
    #: the function may have begun to run there
    may_have_run: bool = True


class UnknownWorkerError(RpcError, LookupError):
    """No worker of the job has that name or id."""


class UnknownFunctionError(RpcError):
    """The worker neither exports nor can import the function."""


class RemoteError(RpcError):
    """What a handler raised and what cannot be raised here as it was.

    That is an exception that is no ``Exception`` (SystemExit, KeyboardInterrupt), one that does not
    pickle, one that cannot be built here, or an error of a handler that is not written in Python.
    """

    def __init__(self, type_name: str, text: str = "", traceback: str = "") -> None:
        super().__init__(type_name, text, traceback)
        #: the name of the original's type
        self.type_name = type_name
        #: the text of the original
        self.text = text
        #: the traceback of the original, as text
        self.traceback = traceback

    def __str__(self) -> str:
        return ": ".join(part for part in (self.type_name, self.text) if part)


class RemoteTraceback(Exception):
    """The traceback at the other worker; the cause of an exception that came from there."""

    def __init__(self, traceback: str) -> None:
        super().__init__(traceback)
        self.traceback = traceback

    def __str__(self) -> str:
        return f'\n"""\n{self.traceback}"""'


class SerializationError(RpcError):
    """The arguments or the result cannot be sent. The original error is the cause."""


class BackpressureError(RpcError):
    """No room to send now, and the call was not to wait for it."""


class NotInitializedError(RpcError):
    """``init_rpc`` was not called yet."""


class AlreadyInitializedError(RpcError):
    """``init_rpc`` was called while its agent is open."""


class AgentClosedError(RpcError):
    """The agent was shut down, or this is a forked child of the process that opened it."""


class ReferenceLeakError(RpcError):
    """The program still had references at shutdown, and had asked to be told."""

    def __init__(self, text: str, references: List[str]) -> None:
        super().__init__(text, references)
        #: what they were, as text
        self.references = references

    def __str__(self) -> str:
        return str(self.args[0])


class AuthenticationError(RpcError):
    """The two workers do not know the same secret."""


class VersionError(RpcError):
    """The two workers have no protocol version in common."""


def _lost(text: str, worker: WorkerInfo, may_have_run: bool) -> WorkerLostError:
    """What the extension raises for FAR_EPEER."""
    error = WorkerLostError(text)
    error.worker = worker
    error.may_have_run = may_have_run
    lowered = text.lower()
    for word, reason in (("connection", "connection"), ("died", "died"), ("clos", "closed")):
        if word in lowered:
            error.reason = reason
            break
    return error
