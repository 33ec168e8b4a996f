"""The order and the split of rows from 64-bit keys: the same on every machine, engine and number of workers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]

_ASSIGNMENT_SALT = 0x5F3C_9A11_D2B8_4E67


def mix64(values: UInt64s) -> UInt64s:
    """Returns the finaliser of SplitMix64 (Steele, Lea, Flood 2014) of each value: a bijection that avalanches."""
    mixed = values.astype(np.uint64, copy=True)
    mixed += np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def row_keys(identities: UInt64s, seed: int) -> UInt64s:
    """Returns the key of each row; ascending keys are the shuffled order.

    Args:
        identities: Stable names of the rows, see `shardkit.sources.base.row_identities`.
        seed: Any integer; taken modulo 2**64.
    """
    salt = mix64(np.array([seed % 2**64], dtype=np.uint64))
    return mix64(identities ^ salt)


def stable_order(keys: UInt64s) -> npt.NDArray[np.int64]:
    """Returns the positions of the keys in ascending order; equal keys stay as they were."""
    order = np.argsort(keys)
    ordered = keys[order]
    # NumPy's fast sort is not stable and its stable one takes three times as long; equal keys are rare.
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def assignment_draws(identities: UInt64s, seed: int) -> UInt64s:
    """Returns the numbers that decide the split of each row: independent of its key, of all other rows, and uniform.

    Args:
        identities: Stable names of the rows, or of classes of rows.
    """
    salt = mix64(np.array([(seed ^ _ASSIGNMENT_SALT) % 2**64], dtype=np.uint64))
    return mix64(mix64(identities) ^ salt)


def assign_splits(identities: UInt64s, seed: int, fractions: tuple[float, ...]) -> npt.NDArray[np.int64]:
    """Returns the position in `fractions` that each row falls into.

    The draw is independent of the row's key and of all other rows, so that it stays as it is when data is appended and
    does not bend the order within a split.

    Args:
        identities: Stable names of the rows.
        fractions: Shares of the splits, adding up to 1.
    """
    draws = assignment_draws(identities, seed)
    total = 0.0
    bounds = []
    for fraction in fractions[:-1]:
        total += fraction
        bounds.append(min(round(total * 2**64), 2**64 - 1))
    return np.searchsorted(np.array(bounds, dtype=np.uint64), draws, side="right").astype(np.int64)
