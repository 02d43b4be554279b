# SPDX-License-Identifier: BSD-3-Clause
"""Floors in Python: the least that the same calls could cost with nothing of farcall.

    python_floor.py (sync|self) COUNT

sync: the call pickled over a Unix socket to a forked process that makes it, the result back.
self: a word handed to another thread by a SimpleQueue and back. Prints a JSON line."""

from __future__ import annotations

import os
import pickle
import queue
import socket
import sys
import threading

import measure


def sync(count: int) -> list[float]:
    here, there = socket.socketpair()

    def serve(folder: str) -> None:
        here.close()
        while request := there.recv(4096):
            func, args, kwargs = pickle.loads(request)
            there.send(pickle.dumps(func(*args, **kwargs), protocol=5))

    def call() -> int:
        here.send(pickle.dumps((measure.add, (1, 2), {}), protocol=5))
        return int(pickle.loads(here.recv(4096)))

    with measure.peer(serve):
        there.close()
        return measure.latency(call, count)


def to_self(count: int) -> list[float]:
    words: queue.SimpleQueue[int] = queue.SimpleQueue()
    answers: queue.SimpleQueue[int] = queue.SimpleQueue()

    def serve() -> None:
        while True:
            answers.put(words.get())

    threading.Thread(target=serve, daemon=True).start()

    def call() -> int:
        words.put(1)
        return answers.get()

    return measure.latency(call, count)


if __name__ == "__main__":
    kind = {"sync": sync, "self": to_self}[sys.argv[1]]
    measure.emit(sys.argv[1], kind(int(sys.argv[2])))
    os._exit(0)
