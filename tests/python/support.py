# SPDX-License-Identifier: BSD-3-Clause
"""Jobs of real processes for the tests."""

import gc
import os
import socket
import subprocess
import sys
from pathlib import Path

import farcall
from farcall import _farcall

GUARD_S = 60
HERE = Path(__file__).parent
WORKER = HERE / "worker.py"


def live():
    return _farcall.memory_live()


def nothing_left():
    """Asserts that no object of the C library is alive in this process."""
    gc.collect()
    assert live() == 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more):
    paths = [str(HERE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(paths), **more)


def python(*words, **options):
    """A Python process whose output is read by communicate()."""
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    options.setdefault("env", environment())
    return subprocess.Popen([sys.executable, *map(str, words)], text=True, **options)


def finish(process):
    """What the process wrote; it must end well."""
    out, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{err}"
    return out


class Job:
    """This process as w0, and w1, w2, ... that serve until all have asked for shutdown."""

    def __init__(self, meet, workers, method="file", **options):
        self.method = f"file://{meet}" if method == "file" else f"tcp://127.0.0.1:{free_port()}"
        self.size = workers
        self.options = options
        self.lost = set()
        self.processes = []

    def start(self):
        self.processes = [
            python(WORKER, f"w{rank}", rank, self.size, self.method)
            for rank in range(1, self.size)
        ]
        farcall.init_rpc("w0", 0, self.size, init_method=self.method, **self.options)
        return self

    def process(self, name):
        return self.processes[int(name[1:]) - 1]

    def kill(self, name):
        process = self.process(name)
        process.kill()
        process.communicate(timeout=GUARD_S)
        self.lost.add(name)

    def end(self):
        try:
            try:
                farcall.shutdown()
            except (farcall.NotInitializedError, farcall.AgentClosedError):
                pass
            except farcall.WorkerLostError:
                assert self.lost
            for rank, process in enumerate(self.processes, 1):
                if f"w{rank}" not in self.lost:
                    assert finish(process).splitlines()[-1:] == ["live 0"]
        finally:
            for process in self.processes:
                process.kill()
                process.communicate()
