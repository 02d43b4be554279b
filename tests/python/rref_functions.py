# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of references call on other workers."""

import threading

import farcall
import functions
from functions import gates

_lock = threading.Lock()
_alive = 0
kept = {}


def alive():
    """How many Things there are at this worker."""
    return _alive


class Thing:
    """Can be counted, and used through references."""

    def __new__(cls, *args):  # copies that arrive come through here as well
        global _alive
        with _lock:
            _alive += 1
        return super().__new__(cls)

    def __init__(self, value=0):
        self.value = value

    def __del__(self):
        global _alive
        with _lock:
            _alive -= 1

    def get(self):
        return self.value

    def set(self, value):
        self.value = value

    def add(self, by=1, *, times=1):
        self.value += by * times
        return self.value

    def fail(self, kind, *args):
        raise kind(*args)

    def me(self):
        return self

    def same(self, rref):
        return rref.local_value() is self

    def is_mine(self, other):
        return other is self

    @classmethod
    def named(cls):
        return cls.__name__

    @staticmethod
    def double(x):
        return 2 * x

    def __len__(self):
        return 3

    def __call__(self, x):
        return self.value + x

    @farcall.functions.async_execution
    def later(self, to, x):
        return farcall.rpc_async(to, functions.add, (x, self.value))

    async def soon(self, to, x):
        return await farcall.rpc_async(to, functions.add, (x, self.value))


class NoPickle:
    """Lives where it was made."""

    def __init__(self):
        self.lock = threading.Lock()

    def answer(self):
        return 42


def slow_thing(gate, value=0):
    functions.wait_gate(gate)
    return Thing(value)


def slow_failure(gate):
    functions.wait_gate(gate)
    raise ValueError(gate)


def is_open(gate):
    return gate in gates and gates[gate].is_set()


# ---- what a callee sees of a reference


def value_of(rref):
    return rref.to_here()


def values_of(nested):
    return {key: [r.to_here() for r in rrefs] for key, rrefs in nested.items()}


def same_object(a, b):
    return a is b, a == b


def look(rref):
    return rref.owner_name(), rref.is_owner(), rref.confirmed_by_owner()


def is_here(rref):
    return rref.is_owner() and rref.local_value().me() is rref.local_value()


def keep(name, rref):
    kept[name] = rref


def use(name):
    return kept[name].rpc_sync().get()


def drop(name):
    del kept[name]


def pass_on(rref, way):
    """Hands the reference along `way` and gives back what the last one of it reads."""
    if not way:
        return rref.rpc_sync().get()
    return farcall.rpc_sync(way[0], pass_on, (rref, way[1:]))


def pass_on_late(rref, way):
    """The same, but the next call is made when this one has been answered."""
    if way:
        farcall.rpc_async(way[0], pass_on_late, (rref, way[1:]))
    else:
        rref.rpc_async().add(1)


def make_here(value):
    return farcall.RRef(Thing(value))


def make_at(to, value):
    return farcall.remote(to, Thing, (value,))


def many_here(count):
    return [farcall.RRef(Thing(i)) for i in range(count)]


def name_of_error(rref):
    try:
        rref.to_here()
    except Exception as error:
        return type(error).__name__
    return None


def copies_fail(rref):
    """In a handler, too, a reference is not copied outside of a call."""
    import copy
    import pickle

    for make in (pickle.dumps, copy.deepcopy, copy.copy):
        try:
            make(rref)
        except TypeError as error:
            assert "RRef" in str(error)
        else:
            return False
    return True


def raise_with(rref):
    raise ValueError("took it along", rref)


class CallsInFinaliser:
    """Its end makes a call and waits for it."""

    def __init__(self, to, name):
        self.to = to
        self.name = name

    def __del__(self):
        farcall.rpc_sync(self.to, say, (self.name,))


def say(name):
    functions.log.append(name)


# ---- asynchronous functions

marked = farcall.functions.async_execution


@marked
def later_sum(to, x, y):
    return farcall.rpc_async(to, functions.add, (x, y))


@marked
def later_then(to, x):
    return farcall.rpc_async(to, functions.add, (x, 1)).then(lambda f: f.wait() * 10)


@marked
def later_failure(to):
    return farcall.rpc_async(to, functions.fail, (KeyError, "there"))


@marked
def fails_at_once():
    raise ValueError("at once")


@marked
def wrong_type():
    return [1]


@marked
def ended_already(value):
    future = farcall.Future()
    future.set_result(value)
    return future


@marked
def failed_by_hand():
    future = farcall.Future()
    future.set_exception(ZeroDivisionError("by hand"))
    return future


@marked
def unsendable_later():
    future = farcall.Future()
    future.set_result(threading.Lock())
    return future


@marked
def thing_later(gate, value):
    future = farcall.Future()
    waiting.setdefault(gate, []).append((future, value))
    return future


waiting = {}


@marked
def wait_for_me(gate, value):
    future = farcall.Future()
    waiting.setdefault(gate, []).append((future, value))
    return future


def how_many_wait(gate):
    return len(waiting.get(gate, ()))


def let_all_go(gate):
    for future, value in waiting.pop(gate, ()):
        future.set_result(value)


def let_all_make_things(gate):
    for future, value in waiting.pop(gate, ()):
        future.set_result(Thing(value))


def not_marked():
    return farcall.Future()


class Kinds:
    """Marked methods of all kinds."""

    @marked
    def plain(self, to, x):
        return farcall.rpc_async(to, functions.add, (x, 1))

    @staticmethod
    @marked
    def static_inside(to, x):
        return farcall.rpc_async(to, functions.add, (x, 2))

    @classmethod
    @marked
    def class_inside(cls, to, x):
        return farcall.rpc_async(to, functions.add, (x, 3))

    @marked
    @staticmethod
    def static_outside(to, x):
        return farcall.rpc_async(to, functions.add, (x, 4))

    @marked
    @classmethod
    def class_outside(cls, to, x):
        return farcall.rpc_async(to, functions.add, (x, 5))

    @marked
    def wrong(self):
        return None

    async def plain_async(self, to, x):
        return await farcall.rpc_async(to, functions.add, (x, 6))


# ---- coroutines

events = {}


async def add_async(to, x, y):
    return await farcall.rpc_async(to, functions.add, (x, y))


async def fail_async(kind, *args):
    raise kind(*args)


async def exit_async():
    raise SystemExit(3)


async def echo_async(value):
    return value


async def lock_async():
    return threading.Lock()


async def wait_async(gate):
    import asyncio

    event = events.setdefault(gate, [asyncio.Event(), 0])
    event[1] += 1
    try:
        await event[0].wait()
    except asyncio.CancelledError:
        functions.log.append(f"cancelled {gate}")
        raise
    return gate


async def open_async(gate):
    """On the same loop, as events of asyncio demand."""
    events.pop(gate)[0].set()


def how_many_async(gate):
    return events[gate][1] if gate in events else 0


async def call_info():
    call = farcall.current_call()
    return call.caller.name, call.method, call.remaining(), call.cancelled(), call.closing()


async def shutdown_async():
    farcall.shutdown()


async def thing_async(value):
    return Thing(value)


def loop_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("farcall-loop")]


def forget():
    functions.forget()
    kept.clear()
    waiting.clear()
    events.clear()
