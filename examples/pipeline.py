# SPDX-License-Identifier: BSD-3-Clause
"""A pipeline: a model whose parts live at three workers, trained through references to them.

    farcall run -n 4 examples/pipeline.py        (or: python3 examples/pipeline.py)

A batch is cut into pieces that follow each other through the parts. Each part hands its result to the
next by the reference it has to it, and no thread waits for what comes behind. The forward pass may
take long, so it has a long limit of its own; small questions have a short one and are answered meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Optional

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import farcall  # noqa: E402
import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

Array = NDArray[np.float64]

WORKERS = 4
SIZES = [(1, 32), (32, 32), (32, 1)]  # inputs and outputs of each part
PIECES = 4
ROUNDS = 80
FORWARD_LIMIT = 120.0  # seconds
SHORT_LIMIT = 15.0


class Part:
    """One layer of the model. It lives at one worker and never moves."""

    def __init__(self, inputs: int, outputs: int, last: bool, seed: int) -> None:
        chance = np.random.default_rng(seed)
        self._weights = chance.normal(0, inputs**-0.5, (inputs, outputs))
        self._bias = chance.normal(0, 0.5, outputs)
        self._last = last
        self._next: Optional[farcall.RRef[Part]] = None
        self._before: Optional[farcall.RRef[Part]] = None
        self._seen: dict[int, tuple[Array, Array]] = {}
        self._gradients: list[tuple[Array, Array]] = []
        self._moments = [np.zeros_like(self._weights), np.zeros_like(self._bias)]
        self._lock = threading.Lock()

    def join(
        self, before: Optional[farcall.RRef[Part]], behind: Optional[farcall.RRef[Part]]
    ) -> None:
        self._before, self._next = before, behind

    @farcall.functions.async_execution
    def forward(self, piece: int, x: Array, delay: float = 0.0) -> farcall.Future[Array]:
        """What the last part makes of it."""
        time.sleep(delay)  # stands for a part that takes long
        y = x @ self._weights + self._bias
        if not self._last:
            y = np.tanh(y)
        with self._lock:
            self._seen[piece] = (x, y)
        if self._next is not None:
            following: farcall.Future[Array] = self._next.rpc_async(FORWARD_LIMIT).forward(piece, y)
            return following
        return _done(y)

    @farcall.functions.async_execution
    def backward(self, piece: int, gradient: Array) -> farcall.Future[Array]:
        with self._lock:
            x, y = self._seen.pop(piece)
            if not self._last:
                gradient = gradient * (1 - y**2)
            self._gradients.append((x.T @ gradient, gradient.sum(axis=0)))
        gradient = gradient @ self._weights.T
        if self._before is not None:
            following: farcall.Future[Array] = self._before.rpc_async(FORWARD_LIMIT).backward(
                piece, gradient
            )
            return following
        return _done(gradient)

    def step(self, rate: float) -> None:
        """Takes the gradients of all pieces into account."""
        with self._lock:
            sums = [sum(g[i] for g in self._gradients) for i in range(2)]
            self._gradients.clear()
            for moment, total in zip(self._moments, sums):
                moment *= 0.9
                moment += total
            self._weights -= rate * self._moments[0]
            self._bias -= rate * self._moments[1]

    def norm(self) -> float:
        """A small question."""
        return float(np.linalg.norm(self._weights))


def _done(value: Array) -> farcall.Future[Array]:
    future: farcall.Future[Array] = farcall.Future()
    future.set_result(value)
    return future


def build() -> list[farcall.RRef[Part]]:
    parts = [
        farcall.remote(1 + i, Part, (inputs, outputs, i + 1 == len(SIZES), i))
        for i, (inputs, outputs) in enumerate(SIZES)
    ]
    for i, part in enumerate(parts):
        before = parts[i - 1] if i > 0 else None
        behind = parts[i + 1] if i + 1 < len(parts) else None
        part.rpc_sync(SHORT_LIMIT).join(before, behind)
    return parts


def unjoin(parts: list[farcall.RRef[Part]]) -> None:
    """The parts refer to each other: no count ever ends such a circle, so it is opened by hand."""
    farcall.wait_all([part.rpc_async(SHORT_LIMIT).join(None, None) for part in parts])


def train_round(parts: list[farcall.RRef[Part]], x: Array, wanted: Array) -> float:
    pieces = list(zip(np.array_split(x, PIECES), np.array_split(wanted, PIECES)))
    results = farcall.wait_all(
        [parts[0].rpc_async(FORWARD_LIMIT).forward(i, px) for i, (px, _) in enumerate(pieces)]
    )
    errors = [y - target for y, (_, target) in zip(results, pieces)]
    farcall.wait_all(
        [
            parts[-1].rpc_async(FORWARD_LIMIT).backward(i, 2 * error / len(x))
            for i, error in enumerate(errors)
        ]
    )
    farcall.wait_all([part.rpc_async(SHORT_LIMIT).step(0.02) for part in parts])
    return float(np.mean(np.concatenate(errors) ** 2))


def ask_while_busy(parts: list[farcall.RRef[Part]]) -> None:
    """A slow forward pass and quick questions to the same part, at once."""
    slow = parts[0].rpc_async(FORWARD_LIMIT).forward(-1, np.zeros((1, 1)), delay=1.0)
    answers = 0
    while not slow.done():
        parts[0].rpc_sync(SHORT_LIMIT).norm()
        answers += 1
    print(f"{answers} short questions were answered while one forward pass took its time")
    parts[-1].rpc_sync(FORWARD_LIMIT).backward(-1, np.zeros_like(slow.wait()))
    farcall.wait_all([part.rpc_async(SHORT_LIMIT).step(0.0) for part in parts])


def train() -> int:
    parts = build()
    x = np.linspace(-2, 2, 64).reshape(-1, 1)
    wanted: Any = np.sin(2 * x)
    ask_while_busy(parts)
    losses = [train_round(parts, x, wanted) for _ in range(ROUNDS)]
    print(f"loss: {losses[0]:.3f} at first, {losses[-1]:.3f} after {ROUNDS} rounds")
    unjoin(parts)
    return 0 if losses[-1] < 0.3 * losses[0] else 1


def main() -> int:
    if "RANK" not in os.environ:
        from farcall import launch

        return launch.run([sys.executable, *sys.argv], WORKERS)
    rank = int(os.environ["RANK"])
    farcall.init_rpc("driver" if rank == 0 else f"part{rank}")
    code = train() if rank == 0 else 0
    farcall.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
