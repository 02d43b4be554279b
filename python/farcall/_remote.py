# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions on their way from a handler to its caller."""

from __future__ import annotations

import pickle
import traceback
from typing import Any, Optional, Tuple

from ._workers import WorkerInfo
from .errors import RemoteError, RemoteTraceback


def _payload(error: BaseException) -> Optional[bytes]:
    if not isinstance(error, Exception):
        return None
    try:
        return pickle.dumps(error, 5)
    except BaseException:  # its own code runs, which may even call sys.exit
        pass
    try:
        import cloudpickle  # type: ignore[import]

        data = cloudpickle.dumps(error, protocol=5)
    except BaseException:
        return None
    return data if isinstance(data, bytes) else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as problem:
        return f"<no text: {type(problem).__name__}>"


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:
        return f"{type(error).__name__}\n"


def _clean(text: str) -> str:
    """What UTF-8 can carry."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\0")


def describe(error: BaseException) -> Tuple[str, str, str, Optional[bytes]]:
    """Type name, text, traceback and, where possible, the pickled exception itself."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    return _clean(name), _clean(_text(error)), _clean(_trace(error)), _payload(error)


def rebuild(worker: WorkerInfo, payload: Any, type_name: str, text: str, trace: str) -> Exception:
    """The exception to raise here for one that was raised at ``worker``."""
    if isinstance(payload, Exception):
        error = payload
    else:
        error = RemoteError(type_name, text, trace)
    try:
        error.remote_worker = worker  # type: ignore[attr-defined]
    except Exception:
        pass  # a type that takes no attributes
    if trace:
        # Past the __setattr__ of the type, which may refuse.
        BaseException.__setattr__(error, "__cause__", RemoteTraceback(trace))
    return error
