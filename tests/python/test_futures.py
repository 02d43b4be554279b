# SPDX-License-Identifier: BSD-3-Clause
"""Futures: waiting, callbacks, asyncio, cancelling."""

import asyncio
import gc
import pickle
import sys
import threading
import weakref

import farcall
import functions
import pytest
from farcall import Future

BOTH = pytest.mark.parametrize("to", ["w0", "w1"])
GUARD_S = 60


@BOTH
def test_wait_done_value(pair, to):
    future = farcall.rpc_async(to, functions.wait_gate, ("value",))
    assert not future.done() and not future.cancelled()
    with pytest.raises(farcall.RpcError):
        future.value()
    assert "pending" in repr(future)
    farcall.rpc_sync(to, functions.open_gate, ("value",))
    assert future.wait() == future.result() == future.value() == "value"
    assert future.done() and future.exception() is None
    assert "done" in repr(future)
    assert future.wait() is future.wait()
    farcall.rpc_sync(to, functions.forget)


def test_an_error_is_raised_at_every_wait(pair):
    future = farcall.rpc_async("w1", functions.fail, (ValueError, 1))
    for _ in range(3):
        with pytest.raises(ValueError):
            future.wait()
    assert isinstance(future.exception(), ValueError)


def test_many_waiters(pair):
    future = farcall.rpc_async("w1", functions.wait_gate, ("many",))
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(future.wait())) for _ in range(8)]
    for thread in threads:
        thread.start()
    farcall.rpc_sync("w1", functions.open_gate, ("many",))
    for thread in threads:
        thread.join()
    assert seen == ["many"] * 8 and len({id(x) for x in seen}) == 1
    farcall.rpc_sync("w1", functions.forget)


def test_callbacks_run_in_order_and_errors_stop_nothing(pair, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: reported.append(info.exc_type))
    future = farcall.rpc_async("w1", functions.wait_gate, ("order",))
    seen, last = [], threading.Event()
    for i in range(5):
        future.add_done_callback(lambda f, i=i: seen.append((i, f is future)))
    future.add_done_callback(lambda f: 1 / 0)
    future.add_done_callback(lambda f: sys.exit(3))
    future.add_done_callback(lambda f: last.set())
    farcall.rpc_sync("w1", functions.open_gate, ("order",))
    assert last.wait(GUARD_S)
    assert seen == [(i, True) for i in range(5)]
    assert reported == [ZeroDivisionError, SystemExit]
    here = []
    future.add_done_callback(lambda f: here.append(threading.current_thread()))
    assert here == [threading.current_thread()]
    farcall.rpc_sync("w1", functions.forget)


def test_callbacks_may_call(pair):
    future = farcall.rpc_async("w1", functions.add, (1, 2))
    nested = future.then(lambda f: farcall.rpc_sync("w1", functions.add, (f.wait(), 10)))
    assert nested.wait() == 13


def test_then(pair):
    good = farcall.rpc_async("w1", functions.add, (1, 2))
    assert good.then(lambda f: f.value() * 2).then(lambda f: f.value() + 1).wait() == 7
    bad = farcall.rpc_async("w1", functions.fail, (ValueError, "x"))
    with pytest.raises(ValueError):
        bad.then(lambda f: f.wait()).wait()
    assert bad.then(lambda f: "saved").wait() == "saved"
    with pytest.raises(ZeroDivisionError):
        good.then(lambda f: 1 / 0).wait()
    with pytest.raises(SystemExit):
        good.then(lambda f: sys.exit(1)).wait()
    with pytest.raises(TypeError):
        good.then(None)
    with pytest.raises(TypeError):
        good.add_done_callback(5)


def test_made_by_hand(pair):
    future = Future()
    assert not future.done()
    seen = threading.Event()
    future.add_done_callback(lambda f: seen.set())
    future.set_result([1])
    assert future.wait() == [1] and future.done() and seen.wait(GUARD_S)
    for again in (lambda: future.set_result(2), lambda: future.set_exception(ValueError())):
        with pytest.raises(farcall.RpcError):
            again()
    failed = Future()
    failed.set_exception(KeyError("k"))
    with pytest.raises(KeyError):
        failed.wait()
    failed = Future()
    failed.set_exception(ValueError)
    assert isinstance(failed.exception(), ValueError)
    with pytest.raises(TypeError):
        Future().set_exception("no exception")
    with pytest.raises(farcall.RpcError):
        farcall.rpc_async("w1", functions.nothing).set_result(1)
    cancelled = Future()
    assert cancelled.cancel()
    with pytest.raises(farcall.RpcError):
        cancelled.set_result(1)
    with pytest.raises(farcall.RpcCancelledError):
        cancelled.wait()
    with pytest.raises(TypeError):
        Future(3)


@BOTH
def test_cancel(pair, to):
    future = farcall.rpc_async(to, functions.wait_cancelled, (f"told {to}",))
    while f"begun told {to}" not in farcall.rpc_sync(to, functions.read_log):
        pass  # cancelled before, it would not be run
    while not future.cancel():
        assert not future.done()
    assert future.cancelled() and future.done() and not future.cancel()
    with pytest.raises(farcall.RpcCancelledError):
        future.wait()
    while f"told {to}" not in farcall.rpc_sync(to, functions.read_log):
        pass
    farcall.rpc_sync(to, functions.forget)
    done = farcall.rpc_async(to, functions.nothing)
    done.wait()
    assert not done.cancel()


@BOTH
def test_a_handler_sees_that_time_is_up(pair, to):
    while "late" not in farcall.rpc_sync(to, functions.read_log):
        try:
            farcall.rpc_sync(to, functions.wait_cancelled, ("late",), timeout=0.2)
        except farcall.RpcTimeoutError:
            pass  # unless its answer, given at that very moment, was here first
    farcall.rpc_sync(to, functions.forget)


def test_wait_all(pair):
    futures = [farcall.rpc_async(f"w{i % 2}", functions.add, (i, i)) for i in range(100)]
    assert farcall.wait_all(futures) == [2 * i for i in range(100)]
    assert farcall.wait_all(futures) == [2 * i for i in range(100)]
    assert farcall.wait_all([]) == []
    with pytest.raises(TypeError):
        farcall.wait_all([1])


def test_wait_all_raises_the_first_error_at_once(pair):
    stuck = farcall.rpc_async("w1", functions.wait_gate, ("all",))
    bad = farcall.rpc_async("w1", functions.fail, (ValueError, "first"))
    with pytest.raises(ValueError):
        farcall.wait_all([stuck, bad])
    assert not stuck.done()
    with pytest.raises(farcall.RpcTimeoutError):
        farcall.wait_all([stuck], timeout=0.01)
    with pytest.raises(farcall.RpcTimeoutError):
        farcall.wait_all([stuck], timeout=0)
    farcall.rpc_sync("w1", functions.open_gate, ("all",))
    assert farcall.wait_all([stuck]) == ["all"]
    farcall.rpc_sync("w1", functions.forget)


def test_collect_all(pair):
    futures = [
        farcall.rpc_async("w1", functions.add, (1, 2)),
        farcall.rpc_async("w1", functions.fail, (ValueError, "x")),
        Future(),
    ]
    all_of_them = farcall.collect_all(futures)
    with pytest.raises(farcall.RpcTimeoutError):
        all_of_them.wait(0.01)
    futures[2].set_result(5)
    assert all_of_them.wait() == futures
    assert farcall.collect_all([]).wait() == []


@BOTH
def test_await(pair, to):
    async def main():
        futures = [farcall.rpc_async(to, functions.add, (i, 1)) for i in range(200)]
        assert await asyncio.gather(*map(wrap, futures)) == [i + 1 for i in range(200)]
        with pytest.raises(ValueError):
            await farcall.rpc_async(to, functions.fail, (ValueError, "awaited"))
        done = farcall.rpc_async(to, functions.add, (1, 1))
        done.wait()
        assert await done == 2 == await done
        with pytest.raises(farcall.RpcTimeoutError):
            await farcall.rpc_async(to, functions.wait_gate, ("await",), timeout=0.02)
        farcall.rpc_sync(to, functions.open_gate, ("await",))

    async def wrap(future):
        return await future

    asyncio.run(main())
    farcall.rpc_sync(to, functions.forget)


def test_cancelling_the_task_cancels_the_call(pair):
    async def main():
        future = farcall.rpc_async("w1", functions.wait_cancelled, ("task",))
        while "begun task" not in farcall.rpc_sync("w1", functions.read_log):
            pass

        async def wait():
            await future

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled()

    asyncio.run(main())
    while "task" not in farcall.rpc_sync("w1", functions.read_log):
        pass
    farcall.rpc_sync("w1", functions.forget)


def test_a_loop_that_is_gone_harms_nobody(pair):
    future = farcall.rpc_async("w1", functions.wait_gate, ("loop",))

    async def main():
        asyncio.create_task(wrap())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def wrap():
        try:
            await future
        except asyncio.CancelledError:
            pass

    asyncio.run(main())
    farcall.rpc_sync("w1", functions.open_gate, ("loop",))
    assert future.exception() is None or future.cancelled()
    assert farcall.rpc_sync("w1", functions.add, (1, 1)) == 2
    farcall.rpc_sync("w1", functions.forget)


def test_not_pickled(pair):
    future = farcall.rpc_async("w1", functions.nothing)
    with pytest.raises(TypeError, match="Future"):
        pickle.dumps(future)
    with pytest.raises(farcall.SerializationError, match="Future"):
        farcall.rpc_sync("w1", functions.echo, (future,))


def test_nobody_needs_to_keep_a_future(pair):
    for _ in range(100):
        farcall.rpc_async("w1", functions.log.append, ("dropped",))
    future = farcall.rpc_async("w1", functions.add, (1, 1))
    reference = weakref.ref(future)
    future.wait()
    del future
    gc.collect()
    assert reference() is None


def test_generic():
    assert Future[int]
