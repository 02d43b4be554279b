# SPDX-License-Identifier: BSD-3-Clause
"""Every option of an agent, in one place."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, fields
from typing import Optional, Tuple, Union

#: seconds, or a timedelta, or None for the default; 0 means no limit
Timeout = Union[None, float, datetime.timedelta]

_TRANSPORTS = {"unix": 1, "tcp": 2}
_LEVELS = ("error", "warning", "info", "debug")


@dataclass(frozen=True)
class Options:
    """Options of :func:`farcall.init_rpc` and :class:`farcall.Agent`. All have working defaults.

    secret: the job's. None: FARCALL_SECRET, else the file FARCALL_SECRET_FILE, else the user's own
    secret file, which is made at first use.
    bind_address: numeric address or name of the interface to listen on. None: FARCALL_BIND, else
    chosen by the route to rank 0.
    transports: which may be used: "unix" (workers of one machine) and "tcp".
    init_timeout: limit of joining the job, in seconds or as a timedelta; 0: no limit.
    lost_grace: how long the owner of a value keeps the references of a worker that was lost, in
    seconds or as a timedelta: what that worker had passed on is still on its way.
    threads: handler threads that are started whenever a call finds none idle.
    threads_max: handler threads at most; those above ``threads`` start only when nothing moves on.
    message_size_max: bytes of one message, arrays included.
    log_level: what is written to stderr: "error", "warning", "info" or "debug". FARCALL_LOG
    overrides it.
    inherit_deadline: calls made inside a handler get no more time than the handler's own caller has
    left.
    """

    secret: Union[None, str, bytes] = None
    bind_address: Optional[str] = None
    transports: Tuple[str, ...] = ("unix", "tcp")
    init_timeout: Timeout = 300.0
    lost_grace: Timeout = 15.0
    threads: int = 16
    threads_max: int = 512
    message_size_max: int = 64 << 30
    log_level: str = "warning"
    inherit_deadline: bool = False

    def __post_init__(self) -> None:
        for field in ("threads", "threads_max", "message_size_max"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{field} is an int, not {value!r}")
            limit = 2**64 - 1 if field == "message_size_max" else 2**31 - 1
            if not 1 <= value <= limit:
                raise ValueError(f"{field} is between 1 and {limit}, not {value}")
        if self.secret is not None and not isinstance(self.secret, (str, bytes)):
            raise TypeError("secret is a str or bytes")
        if self.bind_address is not None and not isinstance(self.bind_address, str):
            raise TypeError(f"bind_address is a str, not {self.bind_address!r}")
        if isinstance(self.transports, str) or not all(isinstance(t, str) for t in self.transports):
            raise TypeError(f"transports is a tuple of names, not {self.transports!r}")
        unknown = set(self.transports) - set(_TRANSPORTS)
        if unknown or not self.transports:
            raise ValueError(f"transports are some of {sorted(_TRANSPORTS)}, not {self.transports!r}")
        if self.log_level not in _LEVELS:
            raise ValueError(f"log_level is one of {_LEVELS}, not {self.log_level!r}")

    def __repr__(self) -> str:
        shown = (
            f"{f.name}={'...' if f.name == 'secret' and self.secret else repr(getattr(self, f.name))}"
            for f in fields(self)
        )
        return f"Options({', '.join(shown)})"

    def _secret_bytes(self) -> Optional[bytes]:
        return self.secret.encode() if isinstance(self.secret, str) else self.secret

    def _transport_bits(self) -> int:
        bits = 0
        for name in self.transports:
            bits |= _TRANSPORTS[name]
        return bits

    def _level(self) -> int:
        return _LEVELS.index(self.log_level)
