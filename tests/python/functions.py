# SPDX-License-Identifier: BSD-3-Clause
"""What the tests call on other workers."""

import os
import signal
import sys
import threading
import time

import farcall
import numpy as np

kept = []
gates = {}
log = []


def forget():
    kept.clear()
    gates.clear()
    log.clear()


def echo(*args, **kwargs):
    """What came, as it came."""
    if kwargs:
        return args, kwargs
    return args[0] if len(args) == 1 else args


def add(a, b=0):
    return a + b


def nothing():
    return None


def me():
    return farcall.get_worker_info().name


def pid():
    return os.getpid()


# ---- waiting for events, never for a time


def wait_gate(name):
    """Returns when open_gate(name) was called here."""
    gates.setdefault(name, threading.Event()).wait(60)
    return name


def wait_gate_while_wanted(name):
    """The same, but gives up with its caller, so that its thread is free for others."""
    gate = gates.setdefault(name, threading.Event())
    call = farcall.current_call()
    while not gate.wait(0.005) and not call.cancelled():
        pass
    return name


def open_gate(name):
    gates.setdefault(name, threading.Event()).set()


def wait_cancelled(note):
    """Says in the log that it has begun; runs until its caller has given up, and says so there."""
    call = farcall.current_call()
    log.append(f"begun {note}")
    while not call.cancelled():
        time.sleep(0.001)
    log.append(note)


def serve_until_closing(note):
    call = farcall.current_call()
    log.append(note)
    while not call.closing():
        time.sleep(0.001)
    return note


def wait_closing():
    """Returns once every worker has asked for shutdown."""
    call = farcall.current_call()
    while not call.closing():
        time.sleep(0.001)


def fork():
    """How the child ended."""
    child = os.fork()
    return os.waitpid(child, 0)[1] if child else None


def read_log():
    return list(log)


def remaining():
    return farcall.current_call().remaining()


def caller():
    call = farcall.current_call()
    return call.caller, call.method


def keep_current():
    kept.append(farcall.current_call())


def use_kept_current():
    return kept.pop().remaining()


# ---- nested


def forward(to, func, args=(), timeout=None):
    return farcall.rpc_sync(to, func, args, timeout=timeout)


def forward_error(to, timeout):
    """The name of the error of a nested call that waits for ever."""
    try:
        farcall.rpc_sync(to, wait_gate, ("never",), timeout=timeout)
    except farcall.RpcError as error:
        return type(error).__name__, error.remote_worker
    return None, None


def ping_pong(here, there, depth):
    if depth == 0:
        return 0
    return 1 + farcall.rpc_sync(there, ping_pong, (there, here, depth - 1))


# ---- errors


class Custom(Exception):
    def __init__(self, code, *, hint=""):
        super().__init__(code)
        self.hint = hint

    def __reduce__(self):
        return _custom, (self.args[0], self.hint)


def _custom(code, hint):
    return Custom(code, hint=hint)


class NeedsTwo(Exception):
    """Pickles, but cannot be built again from its args."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class HoldsLock(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class Exits(Exception):
    """Every bit of its own code calls sys.exit."""

    def __str__(self):
        raise SystemExit("from __str__")

    def __reduce__(self):
        raise SystemExit("from __reduce__")


class ExitsLater(Exception):
    """Building it calls sys.exit."""

    def __reduce__(self):
        return sys.exit, (3,)


class Rigid(Exception):
    """Takes no attribute at all."""

    def __setattr__(self, name, value):
        raise TypeError(name)


def return_exits_later():
    return ExitsLater()


def return_exits():
    return Exits()


def fail(kind, *args):
    raise kind(*args)


def fail_custom():
    raise Custom(7, hint="seven")


def fail_attribute():
    error = ValueError("with more", 3)
    error.extra = {"a": 1}
    raise error


def fail_chained():
    try:
        int("x")
    except ValueError as error:
        raise KeyError("outer") from error


def system_exit(code):
    raise SystemExit(code)


def interrupt():
    raise KeyboardInterrupt("not really")


def return_lock():
    return threading.Lock()


def return_generator():
    return (x for x in ())


def kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


class Explodes:
    """Pickles; unpickling raises."""

    def __reduce__(self):
        return _explode, ()


def _explode():
    raise RuntimeError("this argument explodes")


class OnlyHere:
    """Unpickles in the process with this id only."""

    def __init__(self, here):
        self.here = here

    def __reduce__(self):
        return _only_here, (self.here,)


def _only_here(here):
    if here != os.getpid():
        raise ValueError("not for this process")
    return OnlyHere(here)


def return_only_here():
    return OnlyHere(os.getpid())


# ---- callables of all kinds


class Counter:
    made = 0

    def __init__(self, start=0):
        self.value = start

    def add(self, by=1):
        self.value += by
        return self.value

    def __call__(self, by):
        return self.add(by)

    @classmethod
    def named(cls):
        return cls.__name__

    @staticmethod
    def double(x):
        return 2 * x

    def __eq__(self, other):
        return isinstance(other, Counter) and other.value == self.value

    __hash__ = None


def replaceable():
    return "first"


def replace():
    """Replaces the function above at this worker."""

    def other():
        return "second"

    other.__qualname__ = other.__name__ = "replaceable"
    globals()["replaceable"] = other


# ---- arrays


def describe(array):
    return {
        "writeable": bool(array.flags.writeable),
        "owns": bool(array.flags.owndata),
        "shape": array.shape,
        "dtype": str(array.dtype),
        "sum": float(np.sum(array)) if array.size else 0.0,
    }


def fill(array, value):
    """Writes into what came, and gives it back."""
    array[...] = value
    return array


def keep(array):
    kept.append(array)


def kept_sum():
    return [float(a.sum()) for a in kept]


def ones(count):
    return np.ones(count)


def buffer_types(array):
    """The chain of bases below an array that arrived."""
    names = []
    while array is not None:
        names.append(type(array).__name__)
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return names


# ---- exported names


farcall.export("test.echo")(echo)
farcall.export("test.add")(add)
farcall.export("test.fail")(lambda text: fail(ValueError, text))
farcall.export("test.lock")(return_lock)
