"""Metrics as sums of a fixed size, which add up over replicas, workers, steps and a resumed run; means do not. Pure.

Classification: weight, loss, correct; then, up to `MAX_COUNTED_CLASSES`, per class how often it was predicted rightly,
predicted, and there; then, with two classes, how many examples of each have a score in each of `NUM_SCORE_BINS`.
Regression: weight, loss, absolute error, squared error.

The area under the ROC curve takes the scores of one bin for ties, so it is wrong by at most half the sum, over the
bins, of the share of the first class times the share of the second class in the bin: 1/8,000 where one of them spreads
evenly over the bins, nothing where a bin holds equal scores only. There are 500 bins for a difference of logits of 1
around 0, and 70 around 7, where the scores of a class lie that is one in a thousand.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from train.options.config import LabelSpec, Task

MAX_COUNTED_CLASSES = 1_000  # With more, three counts a class would be more than the rest of a step gives.
NUM_SCORE_BINS = 4_000

Sums = npt.NDArray[np.float64]


class SumsLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What is where in the sums of a task.

    Attributes:
        task: Classification or regression.
        num_classes: 0 for a regression.
    """

    task: Task
    num_classes: int = 0

    @property
    def counts_classes(self) -> bool:
        """Whether there are counts of each class."""
        return 0 < self.num_classes <= MAX_COUNTED_CLASSES

    @property
    def has_scores(self) -> bool:
        """Whether there are histograms of scores."""
        return self.num_classes == 2

    @property
    def num_sums(self) -> int:
        """Size of the sums."""
        if self.task == "regression":
            return 4
        return 3 + self.counts_classes * 3 * self.num_classes + self.has_scores * 2 * NUM_SCORE_BINS

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics that `summarize` gives."""
        return tuple(summarize(self, zero_sums(self)))


def layout_for(label: LabelSpec) -> SumsLayout:
    """Returns the layout of the sums of a label."""
    return SumsLayout(task=label.task, num_classes=len(label.classes))


def zero_sums(layout: SumsLayout) -> Sums:
    """Returns the sums of no example."""
    return np.zeros(layout.num_sums, np.float64)


def summarize(layout: SumsLayout, sums: Sums) -> dict[str, float]:
    """Returns metrics by name; NaN where no example says anything about one.

    `f1` is that of the second of two classes, `f1_macro` the mean over all classes that were there or predicted.
    """
    weight = float(sums[0]) or math.nan
    means = [float(s) / weight for s in sums[1:4]]
    if layout.task == "regression":
        loss, absolute, square = means
        return {"loss": loss, "mae": absolute, "rmse": math.sqrt(square) if square >= 0 else math.nan}
    metrics = {"loss": means[0], "accuracy": means[1]}
    if layout.has_scores:
        metrics["auc"] = _area_under_curve(*sums[-2 * NUM_SCORE_BINS :].reshape(2, -1))
    if layout.counts_classes:
        right, predicted, there = sums[3 : 3 + 3 * layout.num_classes].reshape(3, -1)
        total = predicted + there
        scores = np.divide(2 * right, total, out=np.full(len(total), math.nan), where=total > 0)
        if layout.num_classes == 2:
            metrics["f1"] = float(scores[1])
        else:
            metrics["f1_macro"] = float(np.nanmean(scores)) if total.any() else math.nan
    return metrics


def _area_under_curve(first: Sums, second: Sums) -> float:
    num_pairs = first.sum() * second.sum()
    below = np.cumsum(first) - first
    return float(np.dot(second, below + first / 2) / num_pairs) if num_pairs else math.nan
