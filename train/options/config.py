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
        "An older version of the dataset; if not given the newest, or that with which a run began that goes on.",
        DATA, "run", minimum=1,
    )] = None  # fmt: skip
    label: Annotated[str, Option("--label", "What to predict.", DATA, "run", form=Named("FEATURE"))]
    features: Annotated[tuple[str, ...] | None, Option(
        "--features", "Learn from these only; all but the label if not given.", DATA, "run", form=Columns()
    )] = None  # fmt: skip
    ignore: Annotated[tuple[str, ...], Option("--ignore", "Do not learn from these.", DATA, "run", form=Columns())] = ()
    train_split: Annotated[str | None, Option(
        "--train-split", "Split to learn from; train if there is one.", DATA, "run", form=Named("NAME")
    )] = None  # fmt: skip
    validation_split: Annotated[str | None, Option(
        "--validation-split", "The first of validation, valid, val, dev, eval and test that there is if not given.",
        DATA, "run", form=Named("NAME"),
    )] = None  # fmt: skip
    reader: Annotated[ReaderChoice, Option(
        "--reader", "shardkit's own reader, or the graph of stock tf.data.", DATA, "run"
    )] = "shardkit"  # fmt: skip
    cache: Annotated[CacheChoice, Option(
        "--cache", "Keep the examples in memory, or the blocks of a store on this host's disk.", DATA, "run"
    )] = "none"  # fmt: skip
    length_buckets: Annotated[BucketsChoice | None, Option(
        "--length-buckets",
        "Give texts, lists of tokens, series and audio of similar length to the same batches, each padded to its "
        "bucket's longest length only; auto chooses these.", DATA, "run", form=LengthBuckets("auto|16,32,64"),
    )] = None  # fmt: skip
    model: Annotated[str | None, Option(
        "--model",
        f"{NAMED_IN_HELP}, a name from keras.applications such as EfficientNetB0, or "
        "FILE.py:function; what suits the features if not given.", MODEL, "run", form=Named("NAME"),
    )] = None  # fmt: skip
    task: Annotated[TaskChoice, Option("--task", "Decided from the label's type unless given.", MODEL, "run")] = "auto"
    image_size: Annotated[int | None, Option(
        "--image-size", "Height and width of images in pixels; if not given, what suits the model.",
        MODEL, "run", minimum=8, maximum=4096,
    )] = None  # fmt: skip
    class_weights: Annotated[str | None, Option(
        "--class-weights",
        "How much classes count in the loss, evenly by their examples or as given; metrics do not know it.",
        MODEL, "run", form=Named("balanced|A=1,B=5"),
    )] = None  # fmt: skip
    label_smoothing: Annotated[float, Option(
        "--label-smoothing", "Part of a class target that is spread over all classes.",
        MODEL, "run", form=Named("SHARE"), minimum=0, maximum=1, excludes="maximum",
    )] = 0.0  # fmt: skip
    ema: Annotated[float | None, Option(
        "--ema", "Evaluate with a moving average of the weights, such as 0.999.",
        MODEL, "run", form=Named("MOMENTUM"), minimum=0, maximum=1, excludes="both",
    )] = None  # fmt: skip
    prune: Annotated[float | None, Option(
        "--prune", "Share of each kernel's weights that end as zero.",
        MODEL, "run", form=Named("SPARSITY"), minimum=0, maximum=1, excludes="both",
    )] = None  # fmt: skip
    epochs: Annotated[int | None, Option(
        "--epochs", "Passes over the train split; if not given, what suits the model.", RUN, "run", minimum=1
    )] = None  # fmt: skip
    global_batch_size: Annotated[int | None, Option(
        "--global-batch-size", "Examples a step, over all replicas; if not given, what suits the model.",
        RUN, "run", minimum=1,
    )] = None  # fmt: skip
    early_stopping: Annotated[int | None, Option(
        "--early-stopping", "End after so many epochs in which --monitor has not improved.",
        RUN, "run", form=Named("PATIENCE"), minimum=1,
    )] = None  # fmt: skip
    monitor: Annotated[str | None, Option(
        "--monitor",
        "What decides which epoch is the best: loss if not given, of the validation split; or train.METRIC.",
        RUN, "run", form=Named("METRIC"),
    )] = None  # fmt: skip
    seed: Annotated[int, Option(
        "--seed", "Of initial weights, order of examples and augmentation.", RUN, "run", minimum=0, maximum=MAX_SEED,
    )] = 0  # fmt: skip
    optimizer: Annotated[
        OptimizerChoice, Option("--optimizer", "What turns gradients into steps.", OPTIMIZER, "run")
    ] = "adamw"
    learning_rate: Annotated[float | None, Option(
        "--learning-rate", "Its peak; if not given, what suits the model.",
        OPTIMIZER, "run", minimum=0, excludes="minimum",
    )] = None  # fmt: skip
    scale_learning_rate: Annotated[Scaling, Option(
        "--scale-learning-rate", "Multiply it for a global batch of another size than the model's usual one.",
        OPTIMIZER, "run",
    )] = "none"  # fmt: skip
    schedule: Annotated[ScheduleChoice, Option(
        "--schedule", "How the learning rate goes down; step: a tenth at 1/2 and 3/4 of the run.", OPTIMIZER, "run",
    )] = "cosine"  # fmt: skip
    warmup_steps: Annotated[int | None, Option(
        "--warmup-steps", "Steps to the peak; a twentieth of the run if not given.", OPTIMIZER, "run", minimum=0
    )] = None  # fmt: skip
    momentum: Annotated[float | None, Option(
        "--momentum", "Of sgd; 0.9 if not given.", OPTIMIZER, "run", minimum=0, maximum=1, excludes="maximum"
    )] = None  # fmt: skip
    weight_decay: Annotated[float | None, Option(
        "--weight-decay", "Per step and learning rate, decoupled.", OPTIMIZER, "run", minimum=0
    )] = None  # fmt: skip
    clip_norm: Annotated[float | None, Option(
        "--clip-norm", "Largest norm of all gradients together.", OPTIMIZER, "run", minimum=0, excludes="minimum"
    )] = None  # fmt: skip
    precision: Annotated[
        Precision, Option("--precision", "What layers compute in; weights stay float32.", SPEED, "run")
    ] = "float32"
    reduce_in: Annotated[
        Precision, Option("--reduce-in", "What gradients travel in between replicas.", SPEED, "run")
    ] = "float32"
    xla: Annotated[bool, Option("--xla", "Compile forward and backward together.", SPEED, "run")] = False
    accumulate: Annotated[int, Option(
        "--accumulate", "Compute a step in parts, one after the other, in less memory.",
        SPEED, "run", form=Named("PARTS"), minimum=1,
    )] = 1  # fmt: skip
    recompute: Annotated[bool, Option(
        "--recompute", "Compute activations again in the backward pass, to need less memory.", SPEED, "run"
    )] = False  # fmt: skip
    memory_limit: Annotated[int | None, Option(
        "--memory-limit", "Of each GPU; as much as is needed if not given.",
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
        "Processes of the first host that hold the variables; 1 with --strategy parameter-server if not given.",
        DEVICES, "run", minimum=1, maximum=64,
    )] = None  # fmt: skip
    hosts: Annotated[tuple[str, ...] | None, Option(
        "--hosts",
        "Each host's first worker; the next ones take the next ports. From TF_CONFIG or Slurm if not given.",
        DEVICES, "run", form=Columns(metavar="HOST:PORT,..."),
    )] = None  # fmt: skip
    host_index: Annotated[
        int | None, Option("--host-index", "Which of --hosts this one is, from 0.", DEVICES, "run", minimum=0)
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
        "Where the cluster is, and what a worker needs. Spark: master, python, conf.spark.NAME; Ray: address, cpus, "
        "gpus. On this machine if there is no address.",
        DEVICES, "run", form=Pair("--launcher-option", "KEY=VALUE"),
    )] = ()  # fmt: skip
    rendezvous_timeout_s: Annotated[float, Option(
        "--rendezvous-timeout", "How long to wait for the workers of other hosts, or for their places on a cluster.",
        DEVICES, "run", form=Named("SECONDS"), minimum=0, excludes="minimum",
    )] = 300.0  # fmt: skip
    max_restarts: Annotated[int | None, Option(
        "--max-restarts", "Start lost workers again from the last checkpoint so many times; 3 if there are several.",
        DEVICES, "run", minimum=0,
    )] = None  # fmt: skip
    elastic: Annotated[bool, Option(
        "--elastic", "Go on with fewer workers when they are lost at the same spot again.", DEVICES, "run"
    )] = False  # fmt: skip
    sync_every: Annotated[int | None, Option(
        "--sync-every",
        "Let each worker take at least so many steps on its own, then average the weights, as often as fits into "
        "an epoch evenly; less to send, another result. SIGTERM is heeded at the next average.",
        DEVICES, "run", form=Named("STEPS"), minimum=1,
    )] = None  # fmt: skip
    output: Annotated[str, Option(
        "--output", "For checkpoints, metrics and TensorBoard files.", OUTPUT, "run", form=Named("FOLDER")
    )]  # fmt: skip
    checkpoint_every: Annotated[int | None, Option(
        "--checkpoint-every", "Also save between the ends of epochs.", OUTPUT, "run", form=Named("STEPS"), minimum=1,
    )] = None  # fmt: skip
    resume: Annotated[
        bool, Option("--resume", "Go on from the newest checkpoint in the output folder.", OUTPUT, "run")
    ] = False
    export: Annotated[str | None, Option(
        "--export",
        "Then write the model there, as shardkit export does: that of the best epoch with --early-stopping, else "
        "that of the last one.", OUTPUT, "run", form=Named("DIR"),
    )] = None  # fmt: skip
    profile_steps: Annotated[tuple[int, int] | None, Option(
        "--profile-steps",
        "Record where the time of these steps goes, for TensorBoard's Profile page; counted from 0.",
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
