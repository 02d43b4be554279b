# SPDX-License-Identifier: BSD-3-Clause
"""The parameter server: the functions that trainers call, and what they work on."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import farcall
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import data
import model
import plan


@dataclass
class State:
    weights: model.Vector  # never changed in place: a new array each step, so a pull copies nothing
    velocity: model.Vector
    pictures: NDArray[np.float32]
    labels: NDArray[np.intp]
    steps: int = 0
    accuracies: list[tuple[float, float]] = field(default_factory=list)  # (when, accuracy)
    reports: dict[str, tuple[NDArray[np.void], NDArray[np.float64]]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)


_state: State | None = None
_chance = random.Random(7)


def _ready() -> State:
    assert _state is not None
    return _state


# ------------------------------------------------------------------ what trainers call, by name


def pull() -> tuple[model.Vector, int, bool]:
    """The weights, their number, and whether training is over."""
    _hold_back()
    state = _ready()
    with state.changed:
        return state.weights, state.steps, state.steps >= plan.STEPS


def push(gradient: model.Vector) -> int:
    """Takes one gradient into account; the number of the weights that came out."""
    if _hold_back() and farcall.current_call().cancelled():
        return -1  # the trainer has given up on this call and will not know: so leave it
    state = _ready()
    with state.changed:
        if state.steps < plan.STEPS:
            rate = plan.LEARNING_RATE * (1.0 - state.steps / plan.STEPS)
            state.velocity *= plan.MOMENTUM
            state.velocity -= rate * gradient
            state.weights = state.weights + state.velocity
            state.steps += 1
            state.changed.notify_all()
        return state.steps


def evaluate() -> float:
    """The accuracy on the test set, with the weights of this moment."""
    state = _ready()
    with state.changed:
        weights = state.weights
    result = model.accuracy(weights, state.pictures, state.labels)
    with state.changed:
        state.accuracies.append((time.monotonic(), result))
        state.changed.notify_all()
    return result


def report(name: str, calls: NDArray[np.void], losses: NDArray[np.float64]) -> None:
    """What a trainer saw: its calls, and its loss over time."""
    state = _ready()
    with state.changed:
        state.reports[name] = (calls, losses)
        state.changed.notify_all()


def _hold_back() -> bool:
    """Makes one trainer slow. It takes this handler's thread for a while, and nobody else's."""
    if farcall.current_call().caller.name != plan.SLOW_TRAINER:
        return False
    if _chance.random() >= plan.HELD_BACK_SHARE:
        return False
    time.sleep(plan.HELD_BACK_S)
    return True


# ----------------------------------------------------------------------------- the server's life


def serve(results: Path) -> None:
    """Runs the training to its end and writes down what happened."""
    global _state
    pictures, labels = data.load("t10k")
    _state = State(
        model.initial(seed=1), np.zeros(model.SIZE, np.float32), pictures, labels
    )
    farcall.init_rpc(plan.SERVER)
    begin = time.monotonic()
    _watch(_state)
    # A worker calls itself like any other: the last word on the accuracy goes the usual way.
    final = farcall.rpc_sync(plan.SERVER, evaluate, timeout=plan.EVALUATE_LIMIT)
    farcall.shutdown()

    names = sorted(_state.reports)
    np.savez(
        results,
        begin=begin,
        final=final,
        accuracies=np.array(_state.accuracies),
        names=np.array(names),
        **{f"calls_{name}": _state.reports[name][0] for name in names},
        **{f"losses_{name}": _state.reports[name][1] for name in names},
    )


def _watch(state: State) -> None:
    """Draws the progress bar until every trainer has reported."""
    # Without a terminal (its width is known if there is one) only the last state is of interest.
    interval = 0.1 if "COLUMNS" in os.environ else float("inf")
    with tqdm(
        total=plan.STEPS, unit=" steps", desc="training", mininterval=interval, file=sys.stderr
    ) as bar:
        while True:
            with state.changed:
                state.changed.wait()
                steps, accuracies = state.steps, list(state.accuracies)
                over = len(state.reports) == plan.TRAINERS
            if accuracies:
                bar.set_postfix_str(f"test accuracy {accuracies[-1][1]:.4f}", refresh=False)
            bar.update(steps - bar.n)
            if over:
                return
