"""TensorBoard files of a run: one folder for the train metrics and one for the validation metrics."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from train.metrics import EpochMetrics


class Board:
    """Writes metrics of epochs; files are made at the first one.

    Args:
        folder: Where `train/` and `validation/` go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def write(self, line: EpochMetrics) -> None:
        """Writes the metrics of one epoch at its last step."""
        self._write("train", {f"epoch/{name}": value for name, value in line.train.items()}, line.step)
        rates = {"input/examples_per_s": line.examples_per_s, "input/waiting_share": line.waiting_share}
        self._write("train", {name: value for name, value in rates.items() if value is not None}, line.step)
        if line.validation is not None:
            self._write("validation", {f"epoch/{name}": value for name, value in line.validation.items()}, line.step)

    def close(self) -> None:
        """Completes the files."""
        for writer in self._writers.values():
            writer.close()

    def _write(self, name: str, values: dict[str, float], step: int) -> None:
        if name not in self._writers:
            self._writers[name] = tf.summary.create_file_writer(str(self._folder / name))
        with self._writers[name].as_default():
            for tag, value in values.items():
                tf.summary.scalar(tag, value, step=step)
        self._writers[name].flush()
