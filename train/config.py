"""What a training run is asked for, as frozen values."""

from __future__ import annotations

from typing import Literal

import msgspec

Task = Literal["classification", "regression"]
TaskChoice = Literal["auto", "classification", "regression"]
StrategyChoice = Literal["auto", "single", "mirrored"]
ClassValue = str | int | bool


class TrainOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request, as typed. None means: decided from the data or by the model.

    Attributes:
        dataset: Local path or URL of a dataset.
        label: Feature to predict.
        output: Local folder for checkpoints, metrics and TensorBoard files.
        features: Features to learn from; None means all but the label.
        ignore: Features to leave out.
        model: `tabular`, `image` or `FILE.py:function`.
        task: What the label asks for; `auto` decides from its dtype.
        epochs: Passes over the train split.
        global_batch_size: Examples a step, over all replicas.
        learning_rate: Peak of the schedule.
        seed: Of initial weights, order of examples and augmentation.
        strategy: How replicas are arranged.
        replicas: Number of devices; virtual ones where there is no GPU.
        train_split, validation_split: Names of splits.
        resume: Go on from the newest checkpoint in `output`.
        checkpoint_every: Steps between checkpoints, besides the one after each epoch.
        image_size: Height and width in pixels that images are brought to.
        export: Folder for the trained model; None exports nothing.
        profile_steps: First step to profile and the one after the last, counted from 0; None profiles nothing.
        command: The command line as typed, for the record.
    """

    dataset: str
    label: str
    output: str
    features: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    model: str | None = None
    task: TaskChoice = "auto"
    epochs: int | None = None
    global_batch_size: int | None = None
    learning_rate: float | None = None
    seed: int = 0
    strategy: StrategyChoice = "auto"
    replicas: int | None = None
    train_split: str | None = None
    validation_split: str | None = None
    resume: bool = False
    checkpoint_every: int | None = None
    image_size: int | None = None
    export: str | None = None
    profile_steps: tuple[int, int] | None = None
    command: tuple[str, ...] = ()


class LabelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is predicted.

    Attributes:
        name: Of the feature.
        task: Classification or regression.
        classes: Stored values, in the order of the model's outputs.
        class_names: The same as text.
        mean, std: Of a regression label in the train split.
        num_unlabelled: By split name: examples that lack a usable label; they have weight 0.
    """

    name: str
    task: Task
    classes: tuple[ClassValue, ...] = ()
    class_names: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    num_unlabelled: dict[str, int] = {}

    @property
    def num_outputs(self) -> int:
        """Values that a model gives for one example: one logit a class, or the predicted number."""
        return len(self.classes) if self.task == "classification" else 1
