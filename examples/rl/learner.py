# SPDX-License-Identifier: BSD-3-Clause
"""The learner: it has the policy, chooses the actions for all games at once, and learns from them."""

from __future__ import annotations

import threading
from typing import Any

import farcall
import numpy as np
from numpy.typing import NDArray

from game import MOVES, OBSERVATIONS

LEARNING_RATE = 0.4
Step = tuple[int, int]  # an observation and the action that followed


class Learner:
    """Lives at rank 0; the actors have references to it."""

    def __init__(self, games: int, seed: int) -> None:
        self._games = games  # that are being played now
        self._policy = np.zeros((OBSERVATIONS, len(MOVES)))
        self._chance = np.random.default_rng(seed)
        self._waiting: list[tuple[int, farcall.Future[int]]] = []
        self._lock = threading.Lock()
        self._expected = 0.0
        self.rewards: list[float] = []
        self.batches: list[int] = []

    @farcall.functions.async_execution
    def act(self, observation: int) -> farcall.Future[int]:
        """The action to take. Answered when every game has asked, so that one pass serves them all;
        no thread waits for that."""
        future: farcall.Future[int] = farcall.Future()
        with self._lock:
            self._waiting.append((observation, future))
            batch = self._take_batch()
        self._answer(batch)
        return future

    def learn(self, steps: list[Step], reward: float) -> None:
        """Makes what was done in one game likelier, or less likely: REINFORCE with a baseline."""
        with self._lock:
            surprise = reward - self._expected
            self._expected += 0.02 * surprise
            for observation, action in steps:
                gradient = -self._chances(self._policy[observation])
                gradient[action] += 1.0
                self._policy[observation] += LEARNING_RATE * surprise * gradient
            self.rewards.append(reward)

    def one_less(self) -> None:
        """A game was played for the last time: the others need not wait for it."""
        with self._lock:
            self._games -= 1
            batch = self._take_batch()
        self._answer(batch)

    def _take_batch(self) -> list[tuple[int, farcall.Future[int]]]:
        if len(self._waiting) < self._games:
            return []
        batch, self._waiting = self._waiting, []
        return batch

    def _answer(self, batch: list[tuple[int, farcall.Future[int]]]) -> None:
        if not batch:
            return
        with self._lock:
            chances = self._chances(self._policy[[observation for observation, _ in batch]])
            draws = self._chance.random((len(batch), 1))
            self.batches.append(len(batch))
        actions = (chances.cumsum(axis=1) < draws).sum(axis=1)
        for (_, future), action in zip(batch, actions):
            future.set_result(min(int(action), len(MOVES) - 1))

    @staticmethod
    def _chances(scores: NDArray[Any]) -> NDArray[Any]:
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        result: NDArray[Any] = powers / powers.sum(axis=-1, keepdims=True)
        return result
