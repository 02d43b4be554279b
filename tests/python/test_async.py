# SPDX-License-Identifier: BSD-3-Clause
"""Functions that answer later: async_execution, coroutines; and futures in asyncio."""

import asyncio
import threading

import farcall
import functions
import pytest
import rref_functions as rf
import support
from rref_support import all_forget, none_left

BOTH = pytest.mark.parametrize("to", ["w0", "w1"])
GUARD_S = 60
MANY = 10_000
FEW = 100  # threads; on a busy machine some are started because nothing seems to move on


@pytest.fixture
def world(pair, request):
    failed = request.session.testsfailed
    yield ["w0", "w1"]
    all_forget(["w0", "w1"])
    if request.session.testsfailed == failed:
        none_left(["w0", "w1"])


def threads_of(to):
    return farcall.rpc_sync(to, farcall.metrics)["threads"]


# ---- async_execution


@BOTH
def test_the_future_is_the_answer(world, to):
    other = "w0" if to == "w1" else "w1"
    for via in (to, other):
        assert farcall.rpc_sync(to, rf.later_sum, (via, 2, 3)) == 5
    assert farcall.rpc_async(to, rf.later_then, (other, 4)).wait() == 50
    assert farcall.rpc_sync(to, rf.ended_already, ("here",)) == "here"


@BOTH
def test_errors_are_raised_at_the_caller(world, to):
    for func, args, kind in (
        (rf.later_failure, (to,), KeyError),
        (rf.fails_at_once, (), ValueError),
        (rf.failed_by_hand, (), ZeroDivisionError),
        (rf.unsendable_later, (), farcall.SerializationError),
    ):
        with pytest.raises(kind):
            farcall.rpc_sync(to, func, args)
        with pytest.raises(kind):
            farcall.rpc_async(to, func, args).wait()


@BOTH
def test_a_wrong_type_is_named(world, to):
    with pytest.raises(TypeError, match="wrong_type.*list"):
        farcall.rpc_sync(to, rf.wrong_type)
    with pytest.raises(TypeError, match="NoneType"):
        farcall.rpc_sync(to, rf.Kinds().wrong)
    with pytest.raises(TypeError, match="wrong_type.*list"):
        farcall.remote(to, rf.wrong_type).to_here()


@BOTH
def test_without_the_mark_a_future_is_a_value(world, to):
    with pytest.raises(farcall.SerializationError, match="async_execution"):
        farcall.rpc_sync(to, rf.not_marked)
    kept = farcall.remote(to, rf.not_marked)
    assert kept.rpc_sync().set_result(3) is None
    assert kept.rpc_sync().wait() == 3


@BOTH
def test_methods_of_all_kinds(world, to):
    kinds = rf.Kinds()
    assert farcall.rpc_sync(to, kinds.plain, (to, 10)) == 11
    assert farcall.rpc_sync(to, rf.Kinds.plain, (kinds, to, 10)) == 11
    assert farcall.rpc_sync(to, rf.Kinds.static_inside, (to, 10)) == 12
    assert farcall.rpc_sync(to, rf.Kinds.class_inside, (to, 10)) == 13
    assert farcall.rpc_sync(to, rf.Kinds.static_outside, (to, 10)) == 14
    assert farcall.rpc_sync(to, rf.Kinds.class_outside, (to, 10)) == 15
    assert farcall.rpc_sync(to, kinds.class_inside, (to, 10)) == 13
    assert farcall.rpc_sync(to, kinds.plain_async, (to, 10)) == 16


@BOTH
def test_through_references(world, to):
    rref = farcall.remote(to, rf.Thing, (100,))
    assert rref.rpc_sync().later("w1", 1) == 101
    assert rref.rpc_async().later("w0", 2).wait() == 102
    kept = rref.remote().later("w1", 3)
    assert kept.owner_name() == to and kept.to_here() == 103
    assert rref.rpc_sync().soon("w0", 4) == 104
    kinds = farcall.remote(to, rf.Kinds)
    assert kinds.rpc_sync().static_inside(to, 1) == 3
    assert kinds.rpc_sync().class_outside(to, 1) == 6
    with pytest.raises(TypeError, match="NoneType"):
        kinds.rpc_sync().wrong()


@BOTH
def test_with_remote(world, to):
    assert farcall.remote(to, rf.later_sum, ("w0", 1, 2)).to_here() == 3
    with pytest.raises(KeyError):
        farcall.remote(to, rf.later_failure, ("w0",)).to_here()
    waits = farcall.remote(to, rf.wait_for_me, ("remote", 7))
    with pytest.raises(farcall.RpcTimeoutError):
        waits.to_here(0.01)
    late = farcall.remote(to, rf.wait_for_me, ("remote", 8), timeout=0.02)
    with pytest.raises(farcall.RpcTimeoutError):
        late.to_here()
    while farcall.rpc_sync(to, rf.how_many_wait, ("remote",)) < 2:
        pass
    farcall.rpc_sync(to, rf.let_all_go, ("remote",))
    assert waits.to_here() == 7


@BOTH
def test_a_late_value_is_freed(world, to):
    for limit in (None, 0.01):
        late = farcall.remote(to, rf.thing_later, ("thing", 1), timeout=limit)
        while not farcall.rpc_sync(to, rf.how_many_wait, ("thing",)):
            pass
        if limit:
            with pytest.raises(farcall.RpcTimeoutError):
                late.to_here()
        del late
        farcall.rpc_sync(to, rf.let_all_make_things, ("thing",))


def test_in_ones_own_process_they_are_as_they_were(world):
    future = rf.later_sum("w1", 1, 2)
    assert isinstance(future, farcall.Future) and future.wait() == 3
    assert rf.Kinds.static_outside("w1", 1).wait() == 5


def test_what_cannot_be_marked():
    for wrong in (len, 5, rf.Kinds, list.append):
        with pytest.raises(TypeError):
            farcall.functions.async_execution(wrong)


@BOTH
def test_lambdas(world, to):
    pytest.importorskip("cloudpickle")
    marked = farcall.functions.async_execution(
        lambda to, x: farcall.rpc_async(to, functions.add, (x, 1))
    )
    assert farcall.rpc_sync(to, marked, ("w1", 1)) == 2

    async def local(x):
        await asyncio.sleep(0)
        return x

    assert farcall.rpc_sync(to, local, (5,)) == 5


# ---- coroutines


@BOTH
def test_coroutines(world, to):
    assert farcall.rpc_sync(to, rf.add_async, ("w1", 1, 2)) == 3
    assert farcall.rpc_async(to, rf.add_async, ("w0", 1, 2)).wait() == 3
    assert farcall.remote(to, rf.thing_async, (3,)).rpc_sync().get() == 3
    with pytest.raises(KeyError, match="k"):
        farcall.rpc_sync(to, rf.fail_async, (KeyError, "k"))
    with pytest.raises(farcall.SerializationError):
        farcall.rpc_sync(to, rf.fail_async, (farcall.SerializationError, "x"))
    with pytest.raises(farcall.SerializationError, match="lock_async"):
        farcall.rpc_sync(to, rf.lock_async)
    for _ in range(3):
        with pytest.raises(farcall.RemoteError, match="SystemExit"):
            farcall.rpc_sync(to, rf.exit_async)
    assert farcall.rpc_sync(to, rf.echo_async, ([1, 2],)) == [1, 2]


@BOTH
def test_one_loop_a_worker(world, to):
    farcall.wait_all([farcall.rpc_async(to, rf.echo_async, (i,)) for i in range(100)])
    assert len(farcall.rpc_sync(to, rf.loop_threads)) == 1


@BOTH
def test_the_call_of_a_coroutine(world, to):
    assert farcall.rpc_sync(to, rf.call_info) == (
        "w0", "py:rref_functions:call_info", None, False, False,
    )  # fmt: skip
    left = farcall.rpc_sync(to, rf.call_info, timeout=1000)[2]
    assert 900 < left <= 1000
    with pytest.raises(farcall.RpcError, match="inside a handler"):
        farcall.rpc_sync(to, rf.shutdown_async)


@BOTH
def test_a_coroutine_is_cancelled_when_its_time_is_up(world, to):
    with pytest.raises(farcall.RpcTimeoutError):
        farcall.rpc_sync(to, rf.wait_async, ("limit",), timeout=0.05)
    while "cancelled limit" not in farcall.rpc_sync(to, functions.read_log):
        pass
    rref = farcall.remote(to, rf.wait_async, ("remote limit",), timeout=0.05)
    with pytest.raises(farcall.RpcTimeoutError):
        rref.to_here()
    while "cancelled remote limit" not in farcall.rpc_sync(to, functions.read_log):
        pass


@BOTH
def test_dropped_calls_of_coroutines(world, to):
    """Nobody hears the answer of a call that was cancelled."""
    futures = [farcall.rpc_async(to, rf.wait_async, ("dropped",)) for _ in range(10)]
    while farcall.rpc_sync(to, rf.how_many_async, ("dropped",)) < 10:
        pass
    assert all(future.cancel() for future in futures)
    farcall.rpc_sync(to, rf.open_async, ("dropped",))
    assert farcall.rpc_sync(to, rf.echo_async, (1,)) == 1


# ---- ten thousand at once


@BOTH
def test_ten_thousand_futures(world, to):
    before = threads_of(to)
    futures = [farcall.rpc_async(to, rf.wait_for_me, ("many", i)) for i in range(MANY)]
    while farcall.rpc_sync(to, rf.how_many_wait, ("many",)) < MANY:
        pass
    assert threads_of(to) < before + FEW
    assert not any(future.done() for future in futures)
    farcall.rpc_sync(to, rf.let_all_go, ("many",))
    assert farcall.wait_all(futures) == list(range(MANY))


@BOTH
def test_ten_thousand_coroutines(world, to):
    before = threads_of(to)
    futures = [farcall.rpc_async(to, rf.wait_async, ("many",)) for i in range(MANY)]
    while farcall.rpc_sync(to, rf.how_many_async, ("many",)) < MANY:
        pass
    assert farcall.rpc_sync(to, farcall.debug_info)["tasks_running"] >= MANY
    assert threads_of(to) < before + FEW
    assert not any(future.done() for future in futures)
    farcall.rpc_sync(to, rf.open_async, ("many",))
    assert farcall.wait_all(futures) == ["many"] * MANY


# ---- futures and asyncio


@BOTH
def test_wait_for(world, to):
    async def main():
        future = farcall.rpc_async(to, rf.wait_async, ("wait_for",))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future_of(future), 0.02)
        assert future.cancelled()
        assert await asyncio.wait_for(future_of(farcall.rpc_async(to, functions.add, (1, 2))), 30) == 3

    async def future_of(future):
        return await future

    asyncio.run(main())
    while not farcall.rpc_sync(to, rf.how_many_async, ("wait_for",)):
        pass
    farcall.rpc_sync(to, rf.open_async, ("wait_for",))


def test_wait_for_takes_a_future_itself(world):
    async def main():
        future = farcall.rpc_async("w1", functions.add, (1, 2))
        assert await asyncio.wait_for(future, 30) == 3
        assert await asyncio.gather(future, farcall.rpc_async("w1", functions.add, (2, 2))) == [3, 4]
        stuck = farcall.rpc_async("w1", rf.wait_async, ("itself",))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(stuck, 0.02)
        assert stuck.cancelled()

    asyncio.run(main())
    while not farcall.rpc_sync("w1", rf.how_many_async, ("itself",)):
        pass
    farcall.rpc_sync("w1", rf.open_async, ("itself",))


def test_set_once_from_many_threads(world):
    for _ in range(50):
        future = farcall.Future()
        won, start = [], threading.Barrier(4)

        def set_it(i):
            start.wait()
            try:
                future.set_result(i)
                won.append(i)
            except farcall.RpcError:
                pass

        threads = [threading.Thread(target=set_it, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [future.wait()]


def test_wait_all_raises_though_earlier_ones_are_open(world):
    """The first error at once, whatever stands before it in the list."""
    open_one = farcall.rpc_async("w1", rf.wait_for_me, ("all", 1))
    bad = farcall.rpc_async("w1", rf.failed_by_hand)
    with pytest.raises(ZeroDivisionError):
        farcall.wait_all([open_one, bad])
    assert not open_one.done()
    both = farcall.collect_all([open_one, bad])
    assert not both.done()
    while not farcall.rpc_sync("w1", rf.how_many_wait, ("all",)):
        pass
    farcall.rpc_sync("w1", rf.let_all_go, ("all",))
    assert [f.exception() is None for f in both.wait()] == [True, False]


def test_names_of_concurrent_futures(world):
    done = farcall.rpc_async("w1", functions.add, (1, 2))
    assert done.result(30) == 3 and done.exception(30) is None
    assert done.done() and not done.cancelled() and not done.cancel()
    failed = farcall.rpc_async("w1", rf.failed_by_hand)
    assert isinstance(failed.exception(timeout=30), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    open_one = farcall.Future()
    for wait in (open_one.result, open_one.exception, open_one.wait):
        with pytest.raises(TimeoutError):
            wait(timeout=0)
    assert open_one.cancel() and open_one.cancelled()
    assert isinstance(open_one.exception(), farcall.RpcCancelledError)


# ---- the end


def test_leaving_while_some_wait(tmp_path):
    """At once: what waits here is over, and nothing is left."""
    code = f"""
import gc, farcall, rref_functions as rf
farcall.init_rpc("w0", 0, 1, init_method="file://{tmp_path}/meet")
futures = [farcall.rpc_async("w0", rf.wait_for_me, ("left", i)) for i in range(10)]
futures += [farcall.rpc_async("w0", rf.wait_async, ("left",)) for i in range(10)]
while rf.how_many_wait("left") < 10 or rf.how_many_async("left") < 10:
    pass
farcall.shutdown(graceful=False)
for future in futures:
    assert isinstance(future.exception(), farcall.RpcError), future.exception()
assert not rf.loop_threads()
rf.forget()
del futures, future
while farcall._farcall.memory_live():
    gc.collect()
print("fine", flush=True)
"""
    assert support.finish(support.python("-c", code)) == "fine\n"


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "os._exit(0)"])
def test_exiting_while_some_wait(tmp_path, end):
    code = f"""
import os, sys, farcall, rref_functions as rf
farcall.init_rpc("w0", 0, 1, init_method="file://{tmp_path}/meet")
futures = [farcall.rpc_async("w0", rf.wait_for_me, ("left", i)) for i in range(10)]
futures += [farcall.rpc_async("w0", rf.wait_async, ("left",)) for i in range(10)]
while rf.how_many_wait("left") < 10 or rf.how_many_async("left") < 10:
    pass
print("fine", flush=True)
{end}
"""
    assert support.finish(support.python("-c", code)) == "fine\n"


def test_shutdown_waits_for_what_waits(tmp_path):
    """Answers that come later count in the agreement."""
    code = f"""
import asyncio, threading, farcall, rref_functions as rf
farcall.init_rpc("w0", 0, 1, init_method="file://{tmp_path}/meet")
later = farcall.rpc_async("w0", rf.wait_for_me, ("last", 1))
soon = farcall.rpc_async("w0", rf.wait_async, ("last",))
while not rf.how_many_wait("last") or not rf.how_many_async("last"):
    pass
leaving = threading.Thread(target=farcall.shutdown)
leaving.start()
leaving.join(0.2)
assert leaving.is_alive()
farcall.rpc_sync("w0", rf.let_all_go, ("last",))
farcall.rpc_sync("w0", rf.open_async, ("last",))
leaving.join()
assert later.wait() == 1 and soon.wait() == "last"
print("fine", flush=True)
"""
    assert support.finish(support.python("-c", code)) == "fine\n"
