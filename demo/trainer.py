# SPDX-License-Identifier: BSD-3-Clause
"""A trainer: pulls the weights, computes a gradient on its share of the pictures, pushes it. A call
that runs out of time is written down, and the trainer goes on with what it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import farcall
import numpy as np

import data
import model
import plan
import server

FUNCTIONS = ("pull", "push", "evaluate")
CALL = np.dtype(
    [
        ("function", "u1"),  # an index into FUNCTIONS
        ("start", "f8"),
        ("took", "f8"),
        ("bytes", "i8"),  # of the arrays, there and back
        ("timed_out", "?"),
    ]
)
EVALUATE_EVERY = 300  # steps of the server


def _bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (tuple, list)):
        return sum(_bytes(item) for item in value)
    return 0


class Trainer:
    def __init__(self, number: int) -> None:
        self.name = f"trainer-{number}"
        self._number = number
        self._calls: list[tuple[int, float, float, int, bool]] = []
        self._losses: list[tuple[float, float]] = []
        self._evaluation: farcall.Future | None = None
        self._next_evaluation = EVALUATE_EVERY

    def run(self) -> None:
        # Each has its own share: these fit into memory four times over, and nobody waits for it.
        pictures, labels = data.load("train", self._number - 1, plan.TRAINERS)
        chance = np.random.default_rng(self._number)
        farcall.init_rpc(self.name)

        weights: model.Vector | None = None
        over = False
        while not over:
            answer = self._call(server.pull, (), plan.PULL_LIMIT)
            if answer is not None:
                weights, step, over = answer
                self._evaluate_beside(step)
            if weights is None or over:
                continue  # nothing to work with yet, or nothing left to do
            batch = chance.integers(0, len(labels), plan.BATCH)
            loss, gradient = model.loss_and_gradient(weights, pictures[batch], labels[batch])
            self._losses.append((time.monotonic(), loss))
            self._call(server.push, (gradient,), plan.PUSH_LIMIT)

        if self._evaluation is not None:
            self._evaluation.wait()
        farcall.rpc_sync(
            plan.SERVER,
            server.report,
            args=(self.name, np.array(self._calls, CALL), np.array(self._losses)),
            timeout=plan.REPORT_LIMIT,
        )
        farcall.shutdown()

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], limit: float) -> Any:
        """The result, or None if it did not come in time."""
        start = time.monotonic()
        result, timed_out = None, False
        try:
            result = farcall.rpc_sync(plan.SERVER, function, args=args, timeout=limit)
        except farcall.RpcTimeoutError:
            timed_out = True
        self._note(function.__name__, start, _bytes(args) + _bytes(result), timed_out)
        return result

    def _evaluate_beside(self, step: int) -> None:
        """The first trainer asks for the test set's accuracy now and then, and trains on while the
        server works on it."""
        if self._number != 1 or step < self._next_evaluation:
            return
        if self._evaluation is not None and not self._evaluation.done():
            return
        self._next_evaluation = step + EVALUATE_EVERY
        start = time.monotonic()

        def done(future: farcall.Future) -> None:
            try:
                future.value()
                timed_out = False
            except farcall.RpcTimeoutError:
                timed_out = True
            self._note("evaluate", start, 0, timed_out)

        self._evaluation = farcall.rpc_async(
            plan.SERVER, server.evaluate, timeout=plan.EVALUATE_LIMIT
        )
        self._evaluation.add_done_callback(done)

    def _note(self, function: str, start: float, size: int, timed_out: bool) -> None:
        took = time.monotonic() - start
        self._calls.append((FUNCTIONS.index(function), start, took, size, timed_out))
