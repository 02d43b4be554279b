# SPDX-License-Identifier: BSD-3-Clause
"""Remote references. After each test no value and no reference is left at any worker."""

import copy
import gc
import os
import pickle
import threading
import types
import weakref

import farcall
import functions
import numpy as np
import pytest
import rref_functions as rf
import support
from farcall import RRef
from rref_functions import Thing
from rref_support import all_forget, none_left

ALL = pytest.mark.parametrize("to", ["w0", "w1"])


@pytest.fixture(scope="module")
def three(tmp_path_factory, request):
    job = support.Job(tmp_path_factory.mktemp("three") / "meet", 3).start()
    yield ["w0", "w1", "w2"]
    job.end()
    if not request.session.testsfailed:
        support.nothing_left()


@pytest.fixture
def world(three, request):
    failed = request.session.testsfailed
    yield three
    all_forget(three)
    if request.session.testsfailed == failed:  # else pytest keeps what the failed test had
        none_left(three)


# ---- making and using


@ALL
def test_remote(world, to):
    rref = farcall.remote(to, Thing, (5,))
    assert isinstance(rref, RRef)
    assert rref.to_here().value == 5
    while not rref.confirmed_by_owner():
        pass
    assert rref.owner() == farcall.get_worker_info(to) and rref.owner_name() == to
    assert rref.is_owner() == (to == "w0")
    assert f"worker {to[1:]}" in repr(rref)
    assert farcall.rpc_sync(to, rf.alive) == 1


def test_on_oneself_it_is_the_object(world):
    rref = farcall.remote("w0", Thing, (1,))
    thing = rref.to_here()
    assert thing is rref.to_here() is rref.local_value()
    thing.set(7)
    assert rref.rpc_sync().get() == 7
    mine = RRef(thing)
    assert mine.local_value() is thing and mine.is_owner() and mine.confirmed_by_owner()
    assert mine != rref


def test_a_value_of_ones_own(world):
    for value in (None, 0, [], Thing(), threading.Lock(), int):
        assert RRef(value).to_here() is value
    rref = RRef[int](3)
    assert rref.to_here() == 3
    assert RRef[int] and RRef["Thing"]
    reference = weakref.ref(rref)
    del rref
    assert reference() is None
    for wrong in (lambda: RRef(), lambda: RRef(1, 2), lambda: RRef(1, agent=2)):
        with pytest.raises(TypeError):
            wrong()


def test_local_value_elsewhere(world):
    rref = farcall.remote("w1", Thing)
    with pytest.raises(farcall.RpcError, match="to_here") as info:
        rref.local_value()
    assert "w1" in str(info.value)


@ALL
def test_equality_and_hash(world, to):
    rref = farcall.remote(to, Thing)
    other = farcall.remote(to, Thing)
    again = farcall.rpc_sync("w2", functions.echo, (rref,))
    assert rref == again and hash(rref) == hash(again) and not rref != again
    assert rref != other and rref != 5 and rref is not again
    assert len({rref, other, again}) == 2
    with pytest.raises(TypeError):
        rref < other


def test_arguments_are_checked_at_once(world):
    for call in (
        lambda: farcall.remote("w1", 3),
        lambda: farcall.remote("w1", Thing, timeout="1"),
        lambda: farcall.remote("w1", Thing, 5),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError):
        farcall.remote("w1", Thing, timeout=-1)
    with pytest.raises(farcall.UnknownWorkerError):
        farcall.remote("w9", Thing)
    with pytest.raises(farcall.SerializationError):
        farcall.remote("w1", functions.echo, (threading.Lock(),))
    rref = farcall.remote("w1", Thing)
    with pytest.raises(ValueError):
        rref.to_here(-1)
    with pytest.raises(TypeError):
        rref.rpc_sync("soon")


@ALL
def test_arrays_are_copied(world, to):
    array = np.zeros(100_000)
    rref = farcall.remote(to, functions.fill, (array, 1.0))
    array[:] = 5.0
    assert rref.to_here().sum() == 100_000
    assert array[0] == 5.0
    shared = np.ones(100_000)
    rref = farcall.remote(to, np.sum, (shared,), copy=False)
    assert rref.to_here() == 100_000


@ALL
def test_the_caller_does_not_see_changes(world, to):
    """Arguments go by value, to oneself as well; also through references."""
    given = [1, 2]
    kept = farcall.remote(to, functions.echo, (given,))
    kept.rpc_sync().append(3)
    assert given == [1, 2] and kept.to_here() == [1, 2, 3]


def test_values_that_do_not_pickle_stay(world):
    rref = farcall.remote("w1", rf.NoPickle)
    assert rref.rpc_sync().answer() == 42
    with pytest.raises(farcall.SerializationError, match="w1"):
        rref.to_here()


def test_exported_names(world):
    rref = farcall.remote("w1", "test.add", (1, 2))
    assert rref.to_here() == 3
    with pytest.raises(farcall.UnknownFunctionError):
        farcall.remote("w1", "no such name").to_here()


# ---- proxies


@ALL
def test_proxies(world, to):
    rref = farcall.remote(to, Thing, (1,))
    assert rref.rpc_sync().add(2) == 3
    assert rref.rpc_sync(timeout=30).add(by=1, times=2) == 5
    future = rref.rpc_async().add()
    assert isinstance(future, farcall.Future) and future.wait() == 6
    made = rref.remote().me()
    assert isinstance(made, RRef) and made != rref
    assert rref.rpc_sync().same(made) and rref.rpc_sync().same(rref)
    assert rref.rpc_sync().named() == "Thing" and rref.rpc_sync().double(4) == 8
    assert rref.rpc_sync().__len__() == 3 and rref.rpc_sync()(10) == 16
    with pytest.raises(KeyError):
        rref.rpc_sync().fail(KeyError, "k")


@ALL
def test_proxies_name_what_is_missing(world, to):
    rref = farcall.remote(to, Thing)
    with pytest.raises(AttributeError, match="no_such"):
        rref.rpc_sync().no_such()
    future = rref.rpc_async().no_such()
    with pytest.raises(AttributeError, match="no_such"):
        future.wait()
    with pytest.raises(AttributeError, match="no_such"):
        rref.remote().no_such().to_here()
    with pytest.raises(TypeError, match="'value'"):
        rref.rpc_sync().value()


def test_proxies_take_one_round_trip(world):
    rref = farcall.remote("w1", Thing)
    rref.to_here()
    before = farcall.metrics()["calls_started"]
    rref.rpc_sync().get()
    assert farcall.metrics()["calls_started"] == before + 1


def test_proxies_are_not_sent(world):
    proxy = farcall.remote("w1", Thing).rpc_sync()
    for make in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="proxy"):
            make(proxy)
    with pytest.raises(farcall.SerializationError):
        farcall.rpc_sync("w1", functions.echo, (proxy,))
    assert "methods of" in repr(proxy)


def test_a_temporary_lives_as_long_as_its_call(world):
    for i in range(200):
        assert farcall.remote("w1", Thing, (i,)).rpc_sync().get() == i
        assert farcall.remote("w0", Thing, (i,)).rpc_sync().get() == i
    futures = [farcall.remote("w1", Thing, (i,)).rpc_async().get() for i in range(200)]
    assert farcall.wait_all(futures) == list(range(200))


@ALL
def test_a_proxy_waits_for_the_value_without_a_thread(world, to):
    slow = farcall.remote(to, rf.slow_thing, ("value", 4))
    before = farcall.rpc_sync(to, farcall.metrics)["threads"]
    futures = [slow.rpc_async().add(0) for _ in range(1000)]
    assert farcall.rpc_sync(to, functions.add, (1, 1)) == 2
    assert farcall.rpc_sync(to, farcall.metrics)["threads"] < before + 100
    with pytest.raises(farcall.RpcTimeoutError):
        slow.rpc_sync(0.01).get()
    assert not any(future.done() for future in futures)
    farcall.rpc_sync(to, functions.open_gate, ("value",))
    assert farcall.wait_all(futures) == [4] * 1000


# ---- passing


@ALL
@pytest.mark.parametrize("via", ["w0", "w1", "w2"])
def test_every_direction(world, to, via):
    """Made at `to`, handed to `via` in arguments, and back in the result."""
    rref = farcall.remote(to, Thing, (3,))
    assert farcall.rpc_sync(via, rf.value_of, (rref,)).value == 3
    back = farcall.rpc_sync(via, functions.echo, (rref,))
    assert back == rref and back.is_owner() == (to == "w0")
    assert back.rpc_sync().add(1) == 4
    assert farcall.rpc_sync(via, rf.look, (rref,)) == (to, via == to, True)


def test_at_its_owner_it_is_the_value_itself(world):
    rref = farcall.remote("w1", Thing)
    assert farcall.rpc_sync("w1", rf.is_here, (rref,))
    mine = RRef(Thing())
    back = farcall.rpc_sync("w1", functions.echo, (mine,))
    assert back.is_owner() and back.local_value() is mine.local_value()


@pytest.mark.parametrize("at", ["w0", "w1", "w2"])
def test_references_in_results(world, at):
    here = farcall.rpc_sync(at, rf.make_here, (1,))
    assert here.owner_name() == at and here.rpc_sync().get() == 1
    there = farcall.rpc_sync(at, rf.make_at, ("w2", 2))
    assert there.owner_name() == "w2" and there.rpc_sync().get() == 2
    for i, one in enumerate(farcall.rpc_sync(at, rf.many_here, (50,))):
        assert one.rpc_sync().get() == i
    inside = farcall.remote(at, rf.make_at, ("w1", 3))
    assert inside.to_here().to_here().value == 3
    with pytest.raises(AttributeError):
        inside.rpc_sync().get()  # its value is a reference
    assert inside.rpc_sync().owner_name() == "w1"


@ALL
def test_nested_and_several(world, to):
    rrefs = [farcall.remote(f"w{i % 3}", functions.echo, (i,)) for i in range(9)]
    nested = {"a": rrefs[:5], "b": tuple(rrefs[5:])}
    assert farcall.rpc_sync(to, rf.values_of, (nested,)) == {
        "a": [0, 1, 2, 3, 4], "b": [5, 6, 7, 8],
    }  # fmt: skip
    back = farcall.rpc_sync(to, functions.echo, (nested,), {"more": rrefs[0]})
    assert back == ((nested,), {"more": rrefs[0]})


@ALL
def test_the_same_twice_is_one_object(world, to):
    for owner in ("w0", "w1", "w2"):
        rref = farcall.remote(owner, Thing)
        twin = farcall.rpc_sync("w2", functions.echo, (rref,))
        assert farcall.rpc_sync(to, rf.same_object, (rref, rref)) == (True, True)
        assert farcall.rpc_sync(to, rf.same_object, (rref, twin))[1]
        other = farcall.remote(owner, Thing)
        assert farcall.rpc_sync(to, rf.same_object, (rref, other)) == (False, False)


@pytest.mark.parametrize("owner", ["w0", "w1", "w2"])
def test_long_ways(world, owner):
    rref = farcall.remote(owner, Thing, (11,))
    way = ["w1", "w2", "w0", "w2", "w1", "w0", "w0", "w1", "w1"]
    assert farcall.rpc_sync("w1", rf.pass_on, (rref, way)) == 11


def test_long_ways_that_nobody_waits_for(world):
    mine = RRef(Thing())
    thing = mine.local_value()
    for _ in range(10):
        farcall.rpc_async("w1", rf.pass_on_late, (mine, ["w2", "w0", "w1", "w2"] * 5))
    del mine
    while thing.value < 10:
        pass
    assert thing.value == 10


def test_a_user_keeps_it_alive(world):
    rref = farcall.remote("w1", Thing, (8,))
    farcall.rpc_sync("w2", rf.keep, ("it", rref))
    del rref
    assert farcall.rpc_sync("w2", rf.use, ("it",)) == 8
    assert farcall.rpc_sync("w1", rf.alive) == 1
    farcall.rpc_sync("w2", rf.drop, ("it",))
    while farcall.rpc_sync("w1", rf.alive):
        pass


def test_functions_start_when_all_are_confirmed(world):
    """Of every owner; the reference is fresh each time, so its creation is under way."""
    for i in range(100):
        rref = farcall.remote(f"w{i % 2}", Thing)
        owner, is_owner, confirmed = farcall.rpc_sync("w2", rf.look, (rref,))
        assert (owner, is_owner, confirmed) == (f"w{i % 2}", False, True)


def test_the_value_may_still_be_in_the_making(world):
    slow = farcall.remote("w1", rf.slow_thing, ("making", 1))
    assert farcall.rpc_sync("w2", rf.look, (slow,)) == ("w1", False, True)
    reading = farcall.rpc_async("w2", rf.value_of, (slow,))
    assert not reading.done()
    farcall.rpc_sync("w1", functions.open_gate, ("making",))
    assert reading.wait().value == 1


# ---- pickling elsewhere


def test_not_pickled_outside_of_a_call(world):
    rref = farcall.remote("w1", Thing)
    rref.to_here()
    lent = farcall.rpc_sync("w1", farcall.metrics)["rrefs_lent"]
    for make in (pickle.dumps, copy.deepcopy, copy.copy):
        for what in (rref, [rref]):
            if make is copy.copy and what is not rref:
                continue
            with pytest.raises(TypeError, match="RRef"):
                make(what)
    assert farcall.rpc_sync("w1", farcall.metrics)["rrefs_lent"] == lent
    assert farcall.rpc_sync("w2", rf.copies_fail, (rref,))
    with pytest.raises(farcall.SerializationError):
        farcall._farcall._rref(0)  # what a pickle would call


def test_not_saved_with_a_model(world, tmp_path):
    """As a checkpoint is written: no copy comes into being that nobody knows of."""
    model = types.SimpleNamespace(weights=np.ones(3), part=farcall.remote("w1", Thing))
    with open(tmp_path / "model", "wb") as file:
        with pytest.raises(TypeError, match="RRef"):
            pickle.Pickler(file, protocol=2).dump({"model": model})


def test_messages_that_fail_leave_nothing(world):
    rref = farcall.remote("w1", Thing)
    for _ in range(20):
        with pytest.raises(farcall.SerializationError):
            farcall.rpc_sync("w2", functions.echo, (rref, threading.Lock()))
        with pytest.raises(RuntimeError, match="explodes"):  # cannot be read there
            farcall.rpc_sync("w2", functions.echo, (rref, functions.Explodes()))
        with pytest.raises(farcall.UnknownFunctionError):
            farcall.rpc_sync("w2", "no such name", ())
        with pytest.raises(farcall.UnknownWorkerError):
            farcall.rpc_sync("w9", functions.echo, (rref,))
    del rref


def test_by_value(world):
    """cloudpickle's second try does not count a reference twice."""
    pytest.importorskip("cloudpickle")
    rref = farcall.remote("w1", Thing, (2,))
    assert farcall.rpc_sync("w2", lambda r: r.rpc_sync().get(), (rref,)) == 2
    assert farcall.rpc_sync("w2", lambda: rref.rpc_sync().get() + 1) == 3
    assert farcall.rpc_sync("w2", functions.echo, (rref, lambda: 1))[0] == rref


def test_an_exception_does_not_carry_one(world):
    rref = farcall.remote("w1", Thing)
    with pytest.raises(farcall.RemoteError, match="took it along"):
        farcall.rpc_sync("w2", rf.raise_with, (rref,))


# ---- errors and limits


@ALL
def test_the_error_of_the_creation_is_raised_at_each_use(world, to):
    rref = farcall.remote(to, functions.fail_custom)
    uses = [
        rref.to_here,
        lambda: rref.rpc_sync().get(),
        lambda: rref.rpc_async().get().wait(),
        lambda: farcall.rpc_sync("w2", functions.echo, (rref,)),
        lambda: farcall.rpc_sync("w2", functions.echo, ([rref],)),
        lambda: farcall.rpc_sync("w2", rf.value_of, (rref,)),
    ]
    if to == "w0":
        uses.append(rref.local_value)
    for use in uses * 2:
        with pytest.raises(functions.Custom) as info:
            use()
        assert info.value.args == (7,) and info.value.hint == "seven"
    assert rref.owner_name() == to and repr(rref)


@ALL
def test_a_creation_that_cannot_be_found(world, to):
    with pytest.raises(farcall.UnknownFunctionError):
        farcall.remote(to, "no such name").to_here()
    with pytest.raises(farcall.RemoteError, match="SystemExit"):
        farcall.remote(to, functions.system_exit, (3,)).to_here()


@ALL
def test_to_here_waits_no_longer_than_told(world, to):
    slow = farcall.remote(to, rf.slow_thing, ("wait", 1))
    with pytest.raises(farcall.RpcTimeoutError):
        slow.to_here(0.02)
    if to == "w0":
        with pytest.raises(farcall.RpcTimeoutError):
            slow.local_value(0.02)
        farcall.set_rpc_timeout(0.02)
        with pytest.raises(farcall.RpcTimeoutError):
            slow.to_here()
        farcall.set_rpc_timeout(None)
    farcall.rpc_sync(to, functions.open_gate, ("wait",))
    assert slow.to_here(0).value == 1  # it stays usable, and 0 is no limit


@ALL
def test_waiting_for_the_value_lets_others_run(world, to):
    slow = farcall.remote(to, rf.slow_thing, ("others", 1))
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(slow.to_here().value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    farcall.rpc_sync(to, functions.open_gate, ("others",))
    for thread in threads:
        thread.join()
    assert seen == [1] * 8


@ALL
def test_a_creation_out_of_time(world, to):
    """The error is raised at each use; the late value is freed, the process lives."""
    rref = farcall.remote(to, rf.slow_thing, ("late",), timeout=0.05)
    for _ in range(3):
        with pytest.raises(farcall.RpcTimeoutError):
            rref.to_here()
    with pytest.raises(farcall.RpcTimeoutError):
        rref.rpc_sync().get()
    with pytest.raises(farcall.RpcTimeoutError):
        farcall.rpc_sync("w2", rf.value_of, (rref,))
    assert rref.owner_name() == to and repr(rref)
    farcall.rpc_sync(to, functions.open_gate, ("late",))
    while farcall.rpc_sync(to, rf.alive):
        pass
    with pytest.raises(farcall.RpcTimeoutError):
        rref.to_here()


@ALL
def test_dropped_before_the_value_is_there(world, to):
    """The release must not be forgotten when it overtakes the value."""
    for limit in (None, 0.02):
        for i in range(20):
            farcall.remote(to, rf.slow_thing, (f"dropped {limit}",), timeout=limit)
        rref = farcall.remote(to, rf.slow_thing, (f"dropped {limit}",), timeout=limit)
        if limit:
            with pytest.raises(farcall.RpcTimeoutError):
                rref.to_here()
        del rref
        farcall.rpc_sync(to, functions.open_gate, (f"dropped {limit}",))
    none_left(world)


@ALL
def test_a_fetch_that_waits_learns_of_the_failure(world, to):
    late = farcall.remote(to, rf.slow_thing, ("never",), timeout=0.05)
    with pytest.raises(farcall.RpcTimeoutError):
        late.to_here(timeout=0)
    fails = farcall.remote(to, rf.slow_failure, ("fails",))
    waiting = [threading.Thread(target=lambda: seen.append(rf.name_of_error(fails)))
               for _ in range(4)]  # fmt: skip
    seen = []
    for thread in waiting:
        thread.start()
    for gate in ("fails", "never"):
        farcall.rpc_sync(to, functions.open_gate, (gate,))
    for thread in waiting:
        thread.join()
    assert seen == ["ValueError"] * 4


# ---- memory


def test_cycles_end_by_the_collector(world):
    class Node:
        pass

    node = Node()
    node.self = node
    node.rref = farcall.remote("w1", Thing)
    node.rref.to_here()
    del node
    gc.collect()
    while farcall.rpc_sync("w1", rf.alive):
        pass


def test_many(world):
    for _ in range(20):
        rrefs = [farcall.remote(f"w{i % 3}", Thing, (i,)) for i in range(300)]
        assert rrefs[-1].rpc_sync().get() == 299
        del rrefs
    none_left(world)


def test_from_many_threads(world):
    mine = RRef(Thing())
    errors = []

    def work(i):
        try:
            for k in range(30):
                rref = farcall.remote(f"w{(i + k) % 3}", Thing, (k,))
                there = farcall.rpc_sync(f"w{k % 3}", functions.echo, ([rref, mine],))
                assert there == [rref, mine]
                assert there[0].rpc_sync().get() == k
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_fetching_much_keeps_memory_flat(world):
    rref = farcall.remote("w1", functions.ones, (2 << 20,))  # 16 MiB
    for _ in range(5):
        rref.to_here()
    before = resident()
    for _ in range(40):
        assert rref.to_here()[-1] == 1
    assert resident() - before < 5 * (16 << 20)


@ALL
def test_finalisers_may_call(world, to):
    """The value's end waits for a call to another worker; no thread that others need does it."""
    for i in range(30):
        farcall.remote(to, rf.CallsInFinaliser, ("w2", i))
    seen = set()
    while len(seen) < 30:
        seen = set(farcall.rpc_sync("w2", functions.read_log))
    assert seen == set(range(30))


def test_debug_info(world):
    mine = RRef(Thing())
    theirs = farcall.remote("w1", Thing)
    theirs.to_here()
    farcall.rpc_sync("w2", rf.keep, ("info", mine))
    info = farcall.debug_info()
    assert len(info["references_held"]) == 2
    by_owner = {entry["owner"]: entry for entry in info["references"]}
    assert by_owner[0]["is_owner"] and by_owner[0]["holders"] == [2] and by_owner[0]["held"]
    assert not by_owner[1]["is_owner"] and by_owner[1]["held"]
    assert [e["holders"] for e in farcall.rpc_sync("w1", farcall.debug_info)["references"]] == [[0]]


# ---- other agents, other processes


def test_of_another_agent(tmp_path, world):
    with farcall.Agent("alone", 0, 1, init_method=f"file://{tmp_path}/meet") as alone:
        rref = RRef(Thing(4), agent=alone)
        assert alone.rpc_sync("alone", rf.value_of, (rref,)).value == 4
        with pytest.raises(ValueError, match="another agent"):
            farcall.rpc_sync("w1", functions.echo, (rref, RRef(1)))
        del rref


def test_in_a_forked_child(world):
    mine, theirs = RRef(Thing()), farcall.remote("w1", Thing)
    theirs.to_here()
    child = os.fork()
    if child == 0:
        code = 0
        for use in (mine.to_here, theirs.to_here, theirs.rpc_sync, lambda: RRef(1)):
            try:
                use()
                code = 1
            except farcall.AgentClosedError:
                pass
        del mine, theirs
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert theirs.rpc_sync().get() == 0
