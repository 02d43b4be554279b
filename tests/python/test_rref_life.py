# SPDX-License-Identifier: BSD-3-Clause
"""References and the end: of agents, of workers, of processes; and workers that do not answer."""

import gc
import os
import signal
import threading

import farcall
import functions
import pytest
import rref_functions as rf
import support
from farcall import RRef
from rref_functions import Thing
from rref_support import none_left


def test_an_owner_that_does_not_answer(job, tmp_path):
    """Nothing is confirmed without the owner's word; uses end at their own limits."""
    one = job(workers=2)
    process = one.process("w1")
    farcall.rpc_sync("w1", functions.nothing)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        rref = farcall.remote("w1", Thing, (3,), timeout=0.05)
        with pytest.raises(farcall.RpcTimeoutError):
            rref.to_here(0.2)
        assert not rref.confirmed_by_owner()
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert rf.name_of_error(rref) in (None, "RpcTimeoutError")
    del rref
    none_left(["w0", "w1"])


def test_held_at_shutdown(tmp_path):
    """No error: the value is freed all the same, and the reference says that it is over."""
    job = support.Job(tmp_path / "meet", 2).start()
    try:
        mine, theirs = RRef(Thing()), farcall.remote("w1", Thing)
        theirs.to_here()
        farcall.rpc_sync("w1", functions.keep, (mine,))
    finally:
        job.end()
    for use in (
        mine.to_here, mine.local_value, theirs.to_here, theirs.rpc_sync, theirs.rpc_async,
        theirs.remote, lambda: RRef(1), lambda: farcall.remote("w1", Thing),
    ):  # fmt: skip
        with pytest.raises(farcall.AgentClosedError):
            use()
    assert "worker" in repr(mine) and theirs.owner().id == 1 and mine.is_owner()
    assert mine == mine and mine != theirs and isinstance(hash(theirs), int)
    del mine, theirs
    gc.collect()
    assert rf.alive() == 0
    support.nothing_left()


def test_leaks_are_reported_on_request(tmp_path):
    agents = []

    def open_one(rank):
        agents.append(
            farcall.Agent(f"a{rank}", rank, 2, init_method=f"file://{tmp_path}/meet")
        )

    threads = [threading.Thread(target=open_one, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    agents.sort(key=lambda agent: agent.id)
    leaked = agents[0].remote("a1", Thing)
    leaked.to_here()
    other = threading.Thread(target=lambda: agents[1].shutdown(check_leaks=True))
    other.start()
    with pytest.raises(farcall.ReferenceLeakError, match="1 references") as info:
        agents[0].shutdown(check_leaks=True)
    assert len(info.value.references) == 1 and "worker 1" in info.value.references[0]
    other.join()
    del leaked, info
    agents.clear()
    support.nothing_left()


def test_the_owner_is_killed(job):
    one = job(workers=3)
    rref = farcall.remote("w1", Thing)
    rref.to_here()
    farcall.rpc_sync("w2", rf.keep, ("lost", rref))
    waiting = farcall.remote("w1", rf.slow_thing, ("lost",))
    pending = waiting.rpc_async().get()
    one.kill("w1")
    for use in (pending.wait, rref.to_here, lambda: rref.rpc_sync().get(), waiting.to_here):
        with pytest.raises(farcall.WorkerLostError):
            use()
    with pytest.raises(farcall.WorkerLostError):
        farcall.rpc_sync("w2", rf.use, ("lost",))
    assert rref.owner().id == 1 and repr(rref)
    del rref, waiting, pending, use
    farcall.rpc_sync("w2", rf.forget)
    none_left(["w0", "w2"])


def test_a_user_is_killed(job):
    one = job(workers=3, options=farcall.Options(lost_grace=0.1))
    mine = RRef(Thing(6))
    for name in ("w1", "w2"):
        farcall.rpc_sync(name, rf.keep, ("mine", mine))
    one.kill("w1")
    assert farcall.rpc_sync("w2", rf.use, ("mine",)) == 6
    del mine
    farcall.rpc_sync("w2", rf.forget)
    none_left(["w0", "w2"])


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "raise SystemExit", "os._exit(0)"])
def test_leaving_with_references(tmp_path, end):
    code = f"""
import os, sys, farcall, rref_functions
farcall.init_rpc("w0", 0, 1, init_method="file://{tmp_path}/meet")
mine = farcall.RRef(rref_functions.Thing())
rref = farcall.remote("w0", rref_functions.Thing)
slow = farcall.remote("w0", rref_functions.slow_thing, ("never",))
cycle = [mine, slow]
cycle.append(cycle)
assert rref.rpc_sync().get() == 0
print("fine", flush=True)
{end}
"""
    assert support.finish(support.python("-c", code)) == "fine\n"
