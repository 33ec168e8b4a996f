"""What a training run is asked for, as frozen values."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from shardkit.options import Columns, LengthBuckets, Named, Option, Pair, Steps
from train.options.model_table import NAMED_IN_HELP

DATA, MODEL, RUN, OPTIMIZER = "Data", "Model and loss", "Run", "Optimizer"
SPEED, DEVICES, OUTPUT = "Speed and memory", "Devices and workers", "Output"
HEADINGS = (DATA, MODEL, RUN, OPTIMIZER, SPEED, DEVICES, OUTPUT)
MAX_SEED = 2**32 - 1

Task = Literal["classification", "regression"]
TaskChoice = Literal["auto", "classification", "regression"]
StrategyChoice = Literal["auto", "single", "mirrored", "multi-worker", "parameter-server"]
LauncherChoice = Literal["spark", "ray"]
ReaderChoice = Literal["shardkit", "tfdata"]
CacheChoice = Literal["none", "memory", "disk"]
OptimizerChoice = Literal["adamw", "adam", "sgd", "lion"]
ScheduleChoice = Literal["cosine", "linear", "constant", "step"]
Scaling = Literal["none", "linear", "sqrt"]
BucketsChoice = Literal["auto"] | tuple[int, ...]
Precision = Literal["float32", "bfloat16", "float16"]
ClassValue = str | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | bool


class TrainOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request, as each `Option` describes it. None means: decided from the data or by the model.

    Attributes:
        dataset: Local path or URL of a dataset.
        command: The command line as typed, for the record.
    """

    dataset: str
    command: tuple[str, ...] = ()
    version: Annotated[int | None, Option(
        "--version",
        "Version of the dataset. Default: the newest, or with --resume that of the run.",
        DATA, "run", minimum=1,
    )] = None  # fmt: skip
    label: Annotated[str, Option("--label", "Feature to predict.", DATA, "run", form=Named("FEATURE"))]
    features: Annotated[tuple[str, ...] | None, Option(
        "--features", "Learn from these features only. Default: all but the label.", DATA, "run", form=Columns()
    )] = None  # fmt: skip
    ignore: Annotated[
        tuple[str, ...], Option("--ignore", "Do not learn from these features.", DATA, "run", form=Columns())
    ] = ()
    train_split: Annotated[str | None, Option(
        "--train-split", "Split to learn from. Default: train, or the only split.", DATA, "run", form=Named("NAME")
    )] = None  # fmt: skip
    validation_split: Annotated[str | None, Option(
        "--validation-split",
        "Split to evaluate on. Default: the first that exists of validation, valid, val, dev, eval and test.",
        DATA, "run", form=Named("NAME"),
    )] = None  # fmt: skip
    reader: Annotated[ReaderChoice, Option(
        "--reader", "Read with the reader of shardkit, or with stock tf.data.", DATA, "run"
    )] = "shardkit"  # fmt: skip
    cache: Annotated[CacheChoice, Option(
        "--cache", "Keep the examples in memory, or the blocks of a store on this host's disk.", DATA, "run"
    )] = "none"  # fmt: skip
    length_buckets: Annotated[BucketsChoice | None, Option(
        "--length-buckets",
        "Put texts, lists of tokens, series and audio of similar length into the same batches, and pad each batch to "
        "the length of its bucket; auto chooses the lengths.", DATA, "run", form=LengthBuckets("auto|16,32,64"),
    )] = None  # fmt: skip
    model: Annotated[str | None, Option(
        "--model",
        f"{NAMED_IN_HELP}, a name from keras.applications such as EfficientNetB0, or "
        "FILE.py:function. Default: the one that suits the features.", MODEL, "run", form=Named("NAME"),
    )] = None  # fmt: skip
    task: Annotated[
        TaskChoice, Option("--task", "Task of the model; auto follows the type of the label.", MODEL, "run")
    ] = "auto"
    image_size: Annotated[int | None, Option(
        "--image-size", "Height and width of images in pixels. Default: those of the model.",
        MODEL, "run", minimum=8, maximum=4096,
    )] = None  # fmt: skip
    class_weights: Annotated[str | None, Option(
        "--class-weights",
        "Weight of classes in the loss: balanced by their examples, or as given. Metrics are not weighted.",
        MODEL, "run", form=Named("balanced|A=1,B=5"),
    )] = None  # fmt: skip
    label_smoothing: Annotated[float, Option(
        "--label-smoothing", "Share of a class target that is spread over all classes.",
        MODEL, "run", form=Named("SHARE"), minimum=0, maximum=1, excludes="maximum",
    )] = 0.0  # fmt: skip
    ema: Annotated[float | None, Option(
        "--ema", "Evaluate with a moving average of the weights, such as 0.999.",
        MODEL, "run", form=Named("MOMENTUM"), minimum=0, maximum=1, excludes="both",
    )] = None  # fmt: skip
    prune: Annotated[float | None, Option(
        "--prune", "Share of the weights of each kernel that end as zero.",
        MODEL, "run", form=Named("SPARSITY"), minimum=0, maximum=1, excludes="both",
    )] = None  # fmt: skip
    epochs: Annotated[int | None, Option(
        "--epochs", "Passes over the train split. Default: those of the model.", RUN, "run", minimum=1
    )] = None  # fmt: skip
    global_batch_size: Annotated[int | None, Option(
        "--global-batch-size", "Examples a step, over all replicas. Default: those of the model.",
        RUN, "run", minimum=1,
    )] = None  # fmt: skip
    early_stopping: Annotated[int | None, Option(
        "--early-stopping", "End after this many epochs in which --monitor has not improved.",
        RUN, "run", form=Named("PATIENCE"), minimum=1,
    )] = None  # fmt: skip
    monitor: Annotated[str | None, Option(
        "--monitor",
        "Metric that decides which epoch is the best, of the validation split, or train.METRIC. Default: loss.",
        RUN, "run", form=Named("METRIC"),
    )] = None  # fmt: skip
    seed: Annotated[int, Option(
        "--seed", "Seed of initial weights, order of examples and augmentation.", RUN, "run",
        minimum=0, maximum=MAX_SEED,
    )] = 0  # fmt: skip
    optimizer: Annotated[OptimizerChoice, Option("--optimizer", "Optimizer of the weights.", OPTIMIZER, "run")] = (
        "adamw"
    )
    learning_rate: Annotated[float | None, Option(
        "--learning-rate", "Largest learning rate of the run. Default: that of the model.",
        OPTIMIZER, "run", minimum=0, excludes="minimum",
    )] = None  # fmt: skip
    scale_learning_rate: Annotated[Scaling, Option(
        "--scale-learning-rate",
        "Scale the learning rate with the global batch size, against the usual one of the model.",
        OPTIMIZER, "run",
    )] = "none"  # fmt: skip
    schedule: Annotated[ScheduleChoice, Option(
        "--schedule",
        "Course of the learning rate after the warm-up; step divides it by ten at 1/2 and 3/4 of the run.",
        OPTIMIZER, "run",
    )] = "cosine"  # fmt: skip
    warmup_steps: Annotated[int | None, Option(
        "--warmup-steps", "Steps in which the learning rate rises. Default: a twentieth of the run.", OPTIMIZER, "run",
        minimum=0
    )] = None  # fmt: skip
    momentum: Annotated[float | None, Option(
        "--momentum", "Momentum of sgd. Default: 0.9.", OPTIMIZER, "run", minimum=0, maximum=1, excludes="maximum"
    )] = None  # fmt: skip
    weight_decay: Annotated[float | None, Option(
        "--weight-decay", "Decoupled weight decay, for each step and unit of the learning rate.", OPTIMIZER, "run",
        minimum=0
    )] = None  # fmt: skip
    clip_norm: Annotated[float | None, Option(
        "--clip-norm", "Scale gradients down to this norm, taken over all of them.", OPTIMIZER, "run",
        minimum=0, excludes="minimum"
    )] = None  # fmt: skip
    precision: Annotated[
        Precision, Option("--precision", "Type in which layers compute; weights stay float32.", SPEED, "run")
    ] = "float32"
    reduce_in: Annotated[Precision, Option("--reduce-in", "Type in which replicas send gradients.", SPEED, "run")] = (
        "float32"
    )
    xla: Annotated[bool, Option("--xla", "Compile forward and backward together.", SPEED, "run")] = False
    accumulate: Annotated[int, Option(
        "--accumulate", "Compute a step in this many parts, one after the other, which needs less memory.",
        SPEED, "run", form=Named("PARTS"), minimum=1,
    )] = 1  # fmt: skip
    recompute: Annotated[bool, Option(
        "--recompute", "Compute activations again in the backward pass, to need less memory.", SPEED, "run"
    )] = False  # fmt: skip
    memory_limit: Annotated[int | None, Option(
        "--memory-limit", "Memory of each GPU in MiB. Default: as much as is needed.",
        SPEED, "run", form=Named("MIB"), minimum=1,
    )] = None  # fmt: skip
    strategy: Annotated[StrategyChoice, Option(
        "--strategy",
        "One device, copies of the model on several, several processes in step, or workers that never wait for "
        "each other; auto takes all GPUs and workers.", DEVICES, "run",
    )] = "auto"  # fmt: skip
    replicas: Annotated[
        int | None, Option("--replicas", "Number of devices; virtual ones without a GPU.", DEVICES, "run", minimum=1)
    ] = None
    workers_per_host: Annotated[int | None, Option(
        "--workers-per-host", "Worker processes of each host.", DEVICES, "run", minimum=1, maximum=256
    )] = None  # fmt: skip
    parameter_servers: Annotated[int | None, Option(
        "--parameter-servers",
        "Processes of the first host that hold the variables. Default: 1 with --strategy parameter-server.",
        DEVICES, "run", minimum=1, maximum=64,
    )] = None  # fmt: skip
    hosts: Annotated[tuple[str, ...] | None, Option(
        "--hosts",
        "First worker of each host; further workers take the next ports. Default: from TF_CONFIG or Slurm.",
        DEVICES, "run", form=Columns(metavar="HOST:PORT,..."),
    )] = None  # fmt: skip
    host_index: Annotated[
        int | None, Option("--host-index", "Position of this host in --hosts, from 0.", DEVICES, "run", minimum=0)
    ] = None
    launcher: Annotated[LauncherChoice | None, Option(
        "--launcher",
        "Start the workers on a cluster, in a barrier stage of Spark or a placement group of Ray. DATASET and --output "
        "must be where all hosts see them.", DEVICES, "run",
    )] = None  # fmt: skip
    workers: Annotated[int | None, Option(
        "--workers", "Worker processes that --launcher starts.", DEVICES, "run", minimum=1, maximum=256
    )] = None  # fmt: skip
    launcher_options: Annotated[tuple[tuple[str, str], ...], Option(
        "--launcher-option",
        "Address of the cluster and needs of a worker. Spark: master, python, conf.spark.NAME; Ray: address, cpus, "
        "gpus. Without an address, a cluster of this machine is started.",
        DEVICES, "run", form=Pair("--launcher-option", "KEY=VALUE"),
    )] = ()  # fmt: skip
    rendezvous_timeout_s: Annotated[float, Option(
        "--rendezvous-timeout", "Wait this long for the workers of other hosts, or for their places on a cluster.",
        DEVICES, "run", form=Named("SECONDS"), minimum=0, excludes="minimum",
    )] = 300.0  # fmt: skip
    max_restarts: Annotated[int | None, Option(
        "--max-restarts",
        "Start lost workers again from the last checkpoint up to this many times. Default: 3 if there are several.",
        DEVICES, "run", minimum=0,
    )] = None  # fmt: skip
    elastic: Annotated[bool, Option(
        "--elastic", "Go on with fewer workers when workers are lost again and the run got no further.", DEVICES, "run"
    )] = False  # fmt: skip
    sync_every: Annotated[int | None, Option(
        "--sync-every",
        "Let each worker take at least this many steps on its own, then average the weights, at even intervals of an "
        "epoch. Workers send less, and the result is another one. SIGTERM is heeded at the next average.",
        DEVICES, "run", form=Named("STEPS"), minimum=1,
    )] = None  # fmt: skip
    output: Annotated[str, Option(
        "--output", "Write checkpoints, metrics and TensorBoard files to this folder.", OUTPUT, "run",
        form=Named("FOLDER")
    )]  # fmt: skip
    checkpoint_every: Annotated[int | None, Option(
        "--checkpoint-every", "Also save checkpoints at this interval.", OUTPUT, "run", form=Named("STEPS"), minimum=1,
    )] = None  # fmt: skip
    resume: Annotated[
        bool, Option("--resume", "Go on from the newest checkpoint in the output folder.", OUTPUT, "run")
    ] = False
    export: Annotated[str | None, Option(
        "--export",
        "Write the trained model to this folder, as shardkit export does: that of the best epoch with "
        "--early-stopping, else that of the last epoch.", OUTPUT, "run", form=Named("DIR"),
    )] = None  # fmt: skip
    profile_steps: Annotated[tuple[int, int] | None, Option(
        "--profile-steps",
        "Profile these steps, counted from 0, for the Profile page of TensorBoard.",
        OUTPUT, "run", form=Steps("10:20"),
    )] = None  # fmt: skip


class LabelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is predicted.

    Attributes:
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
