# SPDX-License-Identifier: BSD-3-Clause
"""Functions and their names on the wire: where one can be imported, and what to do if nowhere.

The extension calls these when its own caches do not know a function; see python/src/places.c.
"""

from __future__ import annotations

import importlib
import pickle
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from .errors import SerializationError, UnknownFunctionError

METHOD_DESCRIPTOR = type(list.append)
FUNCTION = types.FunctionType

#: ``__main__`` is typed in (a console, a notebook, -c): other workers cannot have the same one.
CONSOLE = not hasattr(sys.modules.get("__main__"), "__file__")

NAME_MAX = 255  # bytes of a method name

#: dict of the module, first name in it, further names or None, method name
Place = Tuple[Dict[str, Any], str, Optional[Tuple[str, ...]], str]

REMEDY = "put it into a module that every worker can import, or install cloudpickle on all of them"


def _have_cloudpickle() -> bool:
    try:
        import cloudpickle  # type: ignore[import]  # noqa: F401
    except ImportError:
        return False
    return True


def _same(found: Any, func: Any) -> bool:
    if found is func:
        return True
    # A class method is a new object at every look.
    bound = (types.MethodType, types.BuiltinMethodType)
    return (
        isinstance(func, bound)
        and isinstance(found, bound)
        and isinstance(func.__self__, type)
        and found.__self__ is func.__self__
        and bool(found == func)
    )


def _home(func: Any) -> Tuple[Optional[str], Optional[str]]:
    owner = getattr(func, "__objclass__", None) or getattr(func, "__self__", None)
    module = getattr(func, "__module__", None)
    if module is None and isinstance(owner, type):
        module = owner.__module__
    qualname = getattr(func, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        return None, None
    return ("__main__" if module == "__mp_main__" else module), qualname


def _walk(module: Any, path: List[str]) -> Any:
    for name in path:
        module = getattr(module, name)
    return module


def _place(module: Any, path: List[str], method: str) -> Optional[Place]:
    """What the extension may keep; None if the names are made up on demand."""
    names = getattr(module, "__dict__", None)
    if type(names) is not dict or path[0] not in names:
        return None
    return names, path[0], tuple(path[1:]) or None, method


def place_of(func: Callable[..., Any]) -> Union[None, bool, Place, str]:
    """Where ``func`` can be imported.

    A place, or the method name alone if the place may not be kept. None: it goes by value, as pickle
    likes. False: it goes by value through cloudpickle, since pickle would refuse or only pretend.
    """
    module_name, qualname = _home(func)
    defined = isinstance(func, (types.FunctionType, type))
    if module_name is None or qualname is None:
        return None
    if module_name == "__main__" and CONSOLE and _have_cloudpickle():
        return False if defined else None
    module = sys.modules.get(module_name)
    path = qualname.split(".")
    method = f"py:{module_name}:{qualname}"
    try:
        if module is None or not _same(_walk(module, path), func):
            return False if defined else None
    except AttributeError:
        return False if defined else None
    if len(method.encode("utf-8", "replace")) > NAME_MAX:
        return None
    return _place(module, path, method) or method


def resolve(method: str) -> Tuple[Any, Optional[Place]]:
    """The function that a caller means by ``py:module:qualname``, and its place if it may be kept."""
    try:
        _, module_name, qualname = method.split(":")
    except ValueError:
        raise UnknownFunctionError(f"{method!r} is no name of a function") from None
    path = qualname.split(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UnknownFunctionError(
            f"module {module_name!r} of function {qualname!r} cannot be imported at the "
            f"worker that was called ({type(error).__name__}: {error}); {REMEDY}"
        ) from error
    try:
        func = _walk(module, path)
    except AttributeError:
        where = "; its main program is another one" if module_name == "__main__" else ""
        raise UnknownFunctionError(
            f"module {module_name!r} has no function {qualname!r} at the worker that was "
            f"called{where}; {REMEDY}"
        ) from None
    if not callable(func):
        raise UnknownFunctionError(f"{qualname!r} of module {module_name!r} cannot be called")
    return func, _place(module, path, method)


def dumps_by_value(
    obj: object, buffer_callback: Callable[[Any], Any], refusal: Optional[BaseException]
) -> bytes:
    """Pickles what plain pickle has refused, or would not send rightly, by cloudpickle."""
    try:
        import cloudpickle
    except ImportError:
        if refusal is None and CONSOLE:
            return pickle.dumps(obj, protocol=5, buffer_callback=buffer_callback)
        detail = f"{type(refusal).__name__}: {refusal}" if refusal else "it has no importable home"
        raise SerializationError(
            f"{obj!r} cannot be sent: {detail}; if that is about a function, {REMEDY}"
        ) from refusal
    try:
        data = cloudpickle.dumps(obj, protocol=5, buffer_callback=buffer_callback)
    except Exception as error:
        raise (refusal or error)
    assert isinstance(data, bytes)
    return data
