# SPDX-License-Identifier: BSD-3-Clause
"""Fashion-MNIST as Debian ships it: 60,000 pictures of clothes to learn from, 10,000 to be tested
with, 28 x 28 grey values each, in ten classes."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
PIXELS = 28 * 28
CLASSES = 10


class NoData(Exception):
    pass


def _read(name: str, magic: int) -> NDArray[np.uint8]:
    """An IDX file: a magic number, the dimensions, then bytes; all numbers big-endian."""
    path = FOLDER / name
    try:
        raw = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise NoData(
            f"{path} is missing: install the package dataset-fashion-mnist, "
            "or set FASHION_MNIST to the folder with the four .gz files"
        ) from None
    dims = magic & 0xFF
    head = np.frombuffer(raw, ">u4", dims + 1)
    if head[0] != magic:
        raise NoData(f"{path} is no IDX file of {dims} dimensions")
    return np.frombuffer(raw, np.uint8, offset=4 * (dims + 1)).reshape(head[1:])


def load(
    kind: str, part: int = 0, parts: int = 1
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Every ``parts``-th picture and label of ``kind``, "train" or "t10k", from number ``part``."""
    pictures = _read(f"{kind}-images-idx3-ubyte.gz", 0x803)[part::parts]
    labels = _read(f"{kind}-labels-idx1-ubyte.gz", 0x801)[part::parts]
    # Centred and scaled, which lets a plain network learn several times faster.
    scaled = (pictures.reshape(-1, PIXELS).astype(np.float32) - 73.0) / 90.0
    return scaled, labels.astype(np.intp)
