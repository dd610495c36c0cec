"""Randomness as a function: every draw is computed from its key, never from hidden state.

A sample's crop is a function of (seed, epoch, sample index), so it does not matter which worker,
which rank or which attempt at the run asks for it.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Stream(IntEnum):
    """What the numbers are for: part of a key, so that no two uses share their numbers."""

    ORDER = 0
    CROP = 1
    AUGMENT = 2
    ENCODER = 3
    PREDICTOR = 4
    MASKS = 5
    NOISE = 6
    LABELS = 7
    HELD_OUT = 8


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 6


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection of 64-bit words that scatters nearby inputs."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash_key(*key: int | NDArray[np.integer]) -> NDArray[np.uint64]:
    """One 64-bit word for each of the broadcast integer keys."""
    state = np.zeros((), dtype=np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the point
        for part in key:
            state = mix(state * _GOLDEN + _GOLDEN + np.asarray(part).astype(np.uint64))
    return state


def uniforms(*key: int | NDArray[np.integer], count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for each of the broadcast integer keys, on a new last axis."""
    word = hash_key(*key)[..., None]
    with np.errstate(over="ignore"):
        words = mix(word + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def seed_from(*key: int) -> int:
    """A seed for `torch.Generator` (63 bits) from a key of plain integers."""
    return int(hash_key(*key)) >> 1


def permute(position: NDArray[np.int64], size: int, *key: int) -> NDArray[np.int64]:
    """The shuffled order of `size` samples at the given positions, without holding the order.

    A keyed Feistel network permutes 0 … 2^k − 1 for the smallest 2^k ≥ size; positions that land
    outside are walked on until they land inside, which keeps it a bijection of 0 … size − 1.
    Memory and cost per sample do not depend on the size of the set.
    """
    bits = max(2, (size - 1).bit_length())
    low = np.uint64(bits // 2)  # bits of the right half; the left one may have one more
    right_mask = (np.uint64(1) << low) - np.uint64(1)
    left_mask = (np.uint64(1) << np.uint64(bits - bits // 2)) - np.uint64(1)
    keys = hash_key(*key, np.arange(_ROUNDS))

    def network(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = x >> low, x & right_mask
        with np.errstate(over="ignore"):
            for first, second in keys.reshape(-1, 2):
                left ^= mix(right * _GOLDEN + first) & left_mask
                right ^= mix(left * _GOLDEN + second) & right_mask
        return (left << low) | right

    out = network(np.asarray(position).astype(np.uint64))
    outside = np.flatnonzero(out >= size)
    while len(outside):
        walked = network(out[outside])
        out[outside] = walked
        outside = outside[walked >= size]
    return out.astype(np.int64)
