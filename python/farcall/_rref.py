# SPDX-License-Identifier: BSD-3-Clause
"""Calls through references: what ``rref.rpc_sync()`` and its like give, and what they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, NoReturn, Tuple

from .errors import UnknownWorkerError

if TYPE_CHECKING:
    from ._farcall import RRef
    from .options import Timeout


def invoke(rref: RRef[Any], name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Calls a method of the value of ``rref``, at its owner.

    A handler knows this function and calls the method in its place, once the value is there: see
    python/src/handler.c. So no thread waits, and a method may be asynchronous.
    """
    return getattr(rref.local_value(), name)(*args, **kwargs)


class Proxy:
    """Its attributes are the methods of the value of a reference; see :meth:`RRef.rpc_sync`."""

    __slots__ = ("_farcall_rref", "_farcall_call", "_farcall_timeout")

    def __init__(self, rref: RRef[Any], call: Callable[..., Any], timeout: Timeout) -> None:
        self._farcall_rref = rref
        self._farcall_call = call
        self._farcall_timeout = timeout

    def __getattr__(self, name: str) -> Callable[..., Any]:
        rref, call, timeout = self._farcall_rref, self._farcall_call, self._farcall_timeout

        def method(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(rref._owner_id, invoke, (rref, name, args, kwargs), None, timeout)
            except UnknownWorkerError:
                rref._check()  # the owner was lost: its reference says so
                raise

        method.__name__ = name
        return method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__getattr__("__call__")(*args, **kwargs)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a proxy cannot be copied or pickled: send the RRef and make one there")

    __copy__ = __reduce__

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__reduce__()

    def __repr__(self) -> str:
        return f"<methods of {self._farcall_rref!r}>"
