# SPDX-License-Identifier: BSD-3-Clause
"""The classifier: one hidden layer, written in numpy. All its weights are one flat vector, so that
they travel as one array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data import CLASSES, PIXELS

Vector = NDArray[np.float32]

HIDDEN = 64
SHAPES = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)


def layers(weights: Vector) -> list[Vector]:
    """Views of the flat vector, one for each of SHAPES."""
    parts, at = [], 0
    for shape in SHAPES:
        end = at + int(np.prod(shape))
        parts.append(weights[at:end].reshape(shape))
        at = end
    return parts


def initial(seed: int) -> Vector:
    weights = np.zeros(SIZE, np.float32)
    random = np.random.default_rng(seed)
    for part in layers(weights):
        if part.ndim == 2:
            part[:] = random.normal(0.0, (2.0 / part.shape[0]) ** 0.5, part.shape)
    return weights


def loss_and_gradient(
    weights: Vector, pictures: NDArray[np.float32], labels: NDArray[np.intp]
) -> tuple[float, Vector]:
    """The mean cross-entropy over a batch, and its gradient as a flat vector."""
    w1, b1, w2, b2 = layers(weights)
    gradient = np.empty(SIZE, np.float32)
    g1, gb1, g2, gb2 = layers(gradient)
    rows = np.arange(len(labels))

    hidden = np.maximum(pictures @ w1 + b1, 0.0)
    scores = hidden @ w2 + b2
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    loss = float(-np.log(chances[rows, labels] + 1e-9).mean())

    error = chances
    error[rows, labels] -= 1.0
    error /= len(labels)
    np.matmul(hidden.T, error, out=g2)
    gb2[:] = error.sum(axis=0)
    back = error @ w2.T
    back[hidden <= 0.0] = 0.0
    np.matmul(pictures.T, back, out=g1)
    gb1[:] = back.sum(axis=0)
    return loss, gradient


def accuracy(
    weights: Vector, pictures: NDArray[np.float32], labels: NDArray[np.intp]
) -> float:
    w1, b1, w2, b2 = layers(weights)
    scores = np.maximum(pictures @ w1 + b1, 0.0) @ w2 + b2
    return float((scores.argmax(axis=1) == labels).mean())
