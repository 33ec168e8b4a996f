"""What a training run is asked for, as frozen values."""

from __future__ import annotations

from typing import Literal

import msgspec

Task = Literal["classification", "regression"]
TaskChoice = Literal["auto", "classification", "regression"]
StrategyChoice = Literal["auto", "single", "mirrored", "multi-worker", "parameter-server"]
ReaderChoice = Literal["shardkit", "tfdata"]
CacheChoice = Literal["none", "memory", "disk"]
OptimizerChoice = Literal["adamw", "adam", "sgd", "lion"]
ScheduleChoice = Literal["cosine", "linear", "constant", "step"]
Scaling = Literal["none", "linear", "sqrt"]
BucketsChoice = Literal["auto"] | tuple[int, ...]
Precision = Literal["float32", "bfloat16", "float16"]
ClassValue = str | int | bool


class TrainOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request, as typed. None means: decided from the data or by the model.

    Attributes:
        dataset: Local path or URL of a dataset.
        version: Of the dataset; None means the newest, or that with which a run began that goes on.
        label: Feature to predict.
        output: Local folder for checkpoints, metrics and TensorBoard files.
        features: Features to learn from; None means all but the label.
        ignore: Features to leave out.
        model: A built-in one, a name from `keras.applications` or `FILE.py:function`.
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
        reader: What reads the shards: shardkit's own engine, or a graph of stock tf.data.
        cache: Where examples are kept after they were read once: nowhere, in memory, or those of a store on this host.
        length_buckets: Longest length of each bucket of examples that share batches, or `auto`; None for no buckets.
        optimizer: Its name.
        momentum: Of SGD.
        weight_decay: Decoupled, per step and learning rate.
        schedule: Way of the learning rate after the warm-up.
        warmup_steps: Steps to the peak of the learning rate.
        scale_learning_rate: How the learning rate follows the global batch.
        clip_norm: Largest global norm of the gradients.
        accumulate: Micro-batches a step.
        ema: Momentum of the moving average of the weights.
        precision: That layers compute in.
        reduce_in: That gradients are in while they are added up over replicas.
        sync_every: Steps of each worker on its own before they average their weights; None adds up gradients.
        prune: Share of the weights of kernels that end as zero.
        xla: Compile forward and backward together.
        recompute: Compute activations again in the backward pass instead of remembering all of them.
        memory_limit: MiB that TensorFlow takes of each GPU; None takes memory as it is needed.
        workers_per_host: Worker processes that each host starts; None means one.
        parameter_servers: Processes that hold the variables; None means one where the strategy has any.
        hosts: `host:port` of the first worker of each host; None where the environment says, or all are on this one.
        host_index: Of this host among `hosts`.
        max_restarts: Times that lost workers are started again; None means the default under a supervisor, and none.
        elastic: Go on with fewer workers when they are lost at the same spot again.
        rendezvous_timeout_s: How long to wait for the other workers.
        label_smoothing: Part of a class target that is spread evenly over all classes.
        class_weights: `balanced`, or `NAME=WEIGHT,...`.
        early_stopping: Epochs without improvement after which the run ends; None for never.
        monitor: The metric that must improve; of the validation split, or of the train split behind `train.`.
        export: Folder for the trained model; None exports nothing.
        profile_steps: First step to profile and the one after the last, counted from 0; None profiles nothing.
        command: The command line as typed, for the record.
    """

    dataset: str
    label: str
    output: str
    version: int | None = None
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
    reader: ReaderChoice = "shardkit"
    cache: CacheChoice = "none"
    length_buckets: BucketsChoice | None = None
    optimizer: OptimizerChoice = "adamw"
    momentum: float | None = None
    weight_decay: float | None = None
    schedule: ScheduleChoice = "cosine"
    warmup_steps: int | None = None
    scale_learning_rate: Scaling = "none"
    clip_norm: float | None = None
    accumulate: int = 1
    ema: float | None = None
    precision: Precision = "float32"
    reduce_in: Precision = "float32"
    sync_every: int | None = None
    prune: float | None = None
    xla: bool = False
    recompute: bool = False
    memory_limit: int | None = None
    workers_per_host: int | None = None
    parameter_servers: int | None = None
    hosts: tuple[str, ...] | None = None
    host_index: int | None = None
    max_restarts: int | None = None
    elastic: bool = False
    rendezvous_timeout_s: float = 300.0
    label_smoothing: float = 0.0
    class_weights: str | None = None
    early_stopping: int | None = None
    monitor: str | None = None
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
        unseen: Names of the classes of which the train split holds no example.
    """

    name: str
    task: Task
    classes: tuple[ClassValue, ...] = ()
    class_names: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    num_unlabelled: dict[str, int] = {}
    unseen: tuple[str, ...] = ()

    @property
    def num_outputs(self) -> int:
        """Values that a model gives for one example: one logit a class, or the predicted number."""
        return len(self.classes) if self.task == "classification" else 1
