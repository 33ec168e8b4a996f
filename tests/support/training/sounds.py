"""Sounds that tests make."""

from __future__ import annotations

import struct

import numpy as np


def tone(pitch: float, num_samples: int) -> np.ndarray:
    return 0.3 * np.sin(2 * np.pi * pitch * np.arange(num_samples) / 8000)


def wav(samples: np.ndarray) -> bytes:
    raw = (samples * 32767).astype("<i2").tobytes()
    head = (
        b"RIFF" + struct.pack("<I", 36 + len(raw)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    )
    return head + b"data" + struct.pack("<I", len(raw)) + raw
