# SPDX-License-Identifier: BSD-3-Clause
"""The environment: a ball falls down a small board, and a paddle below it is to catch it."""

from __future__ import annotations

import random

COLUMNS = 5
ROWS = 6
MOVES = (-1, 0, 1)  # what an action does to the paddle
OBSERVATIONS = COLUMNS * COLUMNS


class Game:
    """One board. It lives at an actor; everybody else has a reference to it."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.games = 0
        self.reset()

    def reset(self) -> int:
        self.games += 1
        self._ball = self._chance.randrange(COLUMNS)
        self._paddle = self._chance.randrange(COLUMNS)
        self._row = 0
        return self._observe()

    def step(self, action: int) -> tuple[int, float, bool]:
        """What is seen now, the reward, and whether the game is over."""
        self._paddle = min(max(self._paddle + MOVES[action], 0), COLUMNS - 1)
        self._row += 1
        over = self._row == ROWS - 1
        reward = 0.0
        if over:
            reward = 1.0 if self._paddle == self._ball else -1.0
        return self._observe(), reward, over

    def played(self) -> int:
        return self.games

    def _observe(self) -> int:
        return self._ball * COLUMNS + self._paddle
