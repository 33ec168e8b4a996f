"""`shardkit train`: a dataset to a trained model."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from shardkit.cli.export import export_place
from shardkit.cli.shell.command import ExampleCommand
from shardkit.cli.shell.option_files import settings_options
from shardkit.cli.shell.option_types import FiniteRange, LengthBucketsType, StepsType, split_names
from shardkit.cli.shell.run_options import check_own_package
from shardkit.cli.shell.worker_options import worker_options
from shardkit.errors import missing_extra

if TYPE_CHECKING:
    from train.options.config import TrainOptions
    from train.runs.request import Request
    from train.runs.run_folder import RunFolder

MAX_SEED = 2**32 - 1

# Options without a heading stand below all of these.
HEADINGS = {
    "Data": (
        "--version", "--label", "--features", "--ignore", "--train-split", "--validation-split", "--reader", "--cache",
        "--length-buckets",
    ),
    "Model and loss": (
        "--model", "--task", "--image-size", "--class-weights", "--label-smoothing", "--ema", "--prune",
    ),
    "Run": ("--epochs", "--global-batch-size", "--early-stopping", "--monitor", "--seed"),
    "Optimizer": (
        "--optimizer", "--learning-rate", "--scale-learning-rate", "--schedule", "--warmup-steps", "--momentum",
        "--weight-decay", "--clip-norm",
    ),
    "Speed and memory": ("--precision", "--reduce-in", "--xla", "--accumulate", "--recompute", "--memory-limit"),
    "Devices and workers": (
        "--strategy", "--replicas", "--workers-per-host", "--parameter-servers", "--hosts", "--host-index",
        "--rendezvous-timeout", "--max-restarts", "--elastic", "--sync-every",
    ),
    "Output": ("--output", "--checkpoint-every", "--resume", "--export", "--profile-steps", "--dry-run"),
}  # fmt: skip


class TrainCommand(ExampleCommand):
    """A command that remembers its arguments as typed, for the processes that run it again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = tuple(args)
        return super().parse_args(ctx, args)


_TYPED = "shardkit.train.typed"


@click.command(
    cls=TrainCommand,
    headings=HEADINGS,
    epilog="""
        shardkit train out/adult --label income --output runs/adult
        shardkit train out/adult --label income --epochs 10 --output runs/adult --resume
        shardkit train out/flights --label arr_delay --ignore dep_delay,arr_time --output runs/delay
        shardkit train out/photos --label label --model image --image-size 128 --output runs/photos
        shardkit train out/adult --label income --model my_model.py:build --output runs/mine
        shardkit train out/photos --label label --model MobileNetV3Small --early-stopping 5 --output runs/mobile
        shardkit train out/fraud --label kind --class-weights balanced --monitor auc --output runs/fraud
        shardkit train out/adult --label income --strategy mirrored --replicas 2 --output runs/two
        shardkit train out/adult --label income --workers-per-host 2 --output runs/workers
        shardkit train out/adult --label income --workers-per-host 2 --sync-every 8 --output runs/local
        shardkit train out/adult --label income --strategy parameter-server --workers-per-host 2 --output runs/async
        shardkit train out/adult --label income --hosts a:5000,b:5000 --host-index 0 --output runs/hosts
        shardkit train out/adult --label income --output runs/adult --export models/adult
        shardkit train out/adult --config adult.toml --set epochs=10 --set features=age,education --dry-run
        shardkit train out/adult --label income --output runs/adult --profile-steps 10:20
    """,
)
@click.argument("dataset")
@click.option("--label", required=True, metavar="FEATURE", help="What to predict.")
@click.option("--output", required=True, metavar="FOLDER", help="For checkpoints, metrics and TensorBoard files.")
@click.option(
    "--version",
    type=click.IntRange(min=1),
    help="An older version of the dataset; if not given the newest, or that with which a run began that goes on.",
)
@click.option("--features", metavar="A,B,...", help="Learn from these only; all but the label if not given.")
@click.option("--ignore", metavar="A,B,...", help="Do not learn from these.")
@click.option(
    "--model",
    metavar="NAME",
    help="tabular, image, text, sequence (also audio), a name from keras.applications such as EfficientNetB0, or "
    "FILE.py:function; what suits the features if not given.",
)
@click.option(
    "--task",
    type=click.Choice(["auto", "classification", "regression"]),
    default="auto",
    show_default=True,
    help="Decided from the label's type unless given.",
)
@click.option(
    "--epochs", type=click.IntRange(min=1), help="Passes over the train split; if not given, what suits the model."
)
@click.option(
    "--global-batch-size",
    type=click.IntRange(min=1),
    help="Examples a step, over all replicas; if not given, what suits the model.",
)
@click.option(
    "--learning-rate", type=FiniteRange(min=0, min_open=True), help="Its peak; if not given, what suits the model."
)
@click.option(
    "--scale-learning-rate",
    type=click.Choice(["none", "linear", "sqrt"]),
    default="none",
    show_default=True,
    help="Multiply it for a global batch of another size than the model's usual one.",
)
@click.option(
    "--schedule",
    type=click.Choice(["cosine", "linear", "constant", "step"]),
    default="cosine",
    show_default=True,
    help="How the learning rate goes down; step: a tenth at 1/2 and 3/4 of the run.",
)
@click.option(
    "--warmup-steps", type=click.IntRange(min=0), help="Steps to the peak; a twentieth of the run if not given."
)
@click.option(
    "--optimizer",
    type=click.Choice(["adamw", "adam", "sgd", "lion"]),
    default="adamw",
    show_default=True,
    help="What turns gradients into steps.",
)
@click.option("--momentum", type=FiniteRange(0, 1, max_open=True), help="Of sgd; 0.9 if not given.")
@click.option("--weight-decay", type=FiniteRange(min=0), help="Per step and learning rate, decoupled.")
@click.option("--clip-norm", type=FiniteRange(min=0, min_open=True), help="Largest norm of all gradients together.")
@click.option(
    "--accumulate",
    type=click.IntRange(min=1),
    default=1,
    metavar="PARTS",
    show_default=True,
    help="Compute a step in parts, one after the other, in less memory.",
)
@click.option(
    "--ema",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    metavar="MOMENTUM",
    help="Evaluate with a moving average of the weights, such as 0.999.",
)
@click.option(
    "--prune",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    metavar="SPARSITY",
    help="Share of each kernel's weights that end as zero.",
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="What layers compute in; weights stay float32.",
)
@click.option(
    "--reduce-in",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="What gradients travel in between replicas.",
)
@click.option(
    "--sync-every",
    type=click.IntRange(min=1),
    metavar="STEPS",
    help="Let each worker take at least so many steps on its own, then average the weights, as often as fits into an "
    "epoch evenly; less to send, another result. SIGTERM is heeded at the next average.",
)
@click.option("--xla", is_flag=True, help="Compile forward and backward together.")
@click.option("--recompute", is_flag=True, help="Compute activations again in the backward pass, to need less memory.")
@click.option(
    "--memory-limit", type=click.IntRange(min=1), metavar="MIB", help="Of each GPU; as much as is needed if not given."
)
@click.option(
    "--label-smoothing",
    type=FiniteRange(min=0, max=1, max_open=True),
    default=0.0,
    show_default=True,
    metavar="SHARE",
    help="Part of a class target that is spread over all classes.",
)
@click.option(
    "--class-weights",
    metavar="balanced|A=1,B=5",
    help="How much classes count in the loss, evenly by their examples or as given; metrics do not know it.",
)
@click.option(
    "--early-stopping",
    type=click.IntRange(min=1),
    metavar="PATIENCE",
    help="End after so many epochs in which --monitor has not improved.",
)
@click.option(
    "--monitor",
    metavar="METRIC",
    help="What decides which epoch is the best: loss if not given, of the validation split; or train.METRIC.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=MAX_SEED),
    default=0,
    show_default=True,
    help="Of initial weights, order of examples and augmentation.",
)
@click.option(
    "--reader",
    type=click.Choice(["shardkit", "tfdata"]),
    default="shardkit",
    show_default=True,
    help="shardkit's own reader, or the graph of stock tf.data.",
)
@click.option(
    "--cache",
    type=click.Choice(["none", "memory", "disk"]),
    default="none",
    show_default=True,
    help="Keep the examples in memory, or the blocks of a store on this host's disk.",
)
@click.option(
    "--length-buckets",
    type=LengthBucketsType(),
    metavar="auto|16,32,64",
    help="Give texts, lists of tokens, series and audio of similar length to the same batches, each padded to its "
    "bucket's longest length only; auto chooses these.",
)
@click.option("--train-split", metavar="NAME", help="Split to learn from; train if there is one.")
@click.option(
    "--validation-split",
    metavar="NAME",
    help="The first of validation, valid, val, dev, eval and test that there is if not given.",
)
@click.option(
    "--image-size",
    type=click.IntRange(min=8, max=4096),
    help="Height and width of images in pixels; if not given, what suits the model.",
)
@click.option(
    "--checkpoint-every", type=click.IntRange(min=1), metavar="STEPS", help="Also save between the ends of epochs."
)
@worker_options()
@click.option(
    "--profile-steps",
    type=StepsType(),
    metavar="10:20",
    help="Record where the time of these steps goes, for TensorBoard's Profile page; counted from 0.",
)
@click.option("--dry-run", is_flag=True, help="Show steps, shares of the workers and memory, then stop.")
@settings_options()
@click.option(
    "--export",
    metavar="DIR",
    help="Then write the model there, as shardkit export does: that of "
    "the best epoch with --early-stopping, else that of the last one.",
)
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in the output folder.")
@click.pass_context
def command(ctx: click.Context, /, dry_run: bool, **typed: Any) -> None:
    """Train a model on a dataset that `shardkit convert` made.

    Columns are normalised and looked up by the dataset's own statistics, images are resized and augmented. A run that
    was stopped goes on exactly where its last checkpoint stands when the same command is run with --resume.

    FILE.py:function is called as function(features, statistics, label_spec) and returns a Keras 3 model whose inputs
    have the names of features.
    """
    check_own_package("train")
    for package in ("tensorflow", "keras", "tensorboard"):
        if importlib.util.find_spec(package) is None:
            raise missing_extra("train", package)
    import msgspec

    from train.distribution.cluster import cluster_from_environment
    from train.distribution.environment import import_quietly
    from train.distribution.launch import plan_launch, with_version
    from train.distribution.signals import end_at_once
    from train.distribution.supervisor import supervise
    from train.distribution.worker_identity import end_with_supervisor, own_identity
    from train.options.step_plan import worker_counts
    from train.runs.request import make_plan
    from train.runs.run_folder import RunFolder, check_target

    options = read_options(typed | {"command": ("shardkit", *sys.argv[1:])})
    identity = own_identity(os.environ)
    if identity is not None:
        end_with_supervisor()
    orders = plan_launch(options, worker_command(ctx), os.environ) if identity is None else None
    # The command that starts the chief checks how far a run is, before the chief writes there.
    is_first = identity is None and (orders is None or orders.placement.first == 0)
    folder = RunFolder(options.output)
    cluster = cluster_from_environment(os.environ)
    with end_at_once(folder.describe_stop) as stop:
        request = request_of(options, folder if identity is None else None)
        if options.export is not None and identity is None:
            check_target(export_place(options.export))
        if dry_run:
            placement = None if orders is None else orders.placement
            num_workers = 1 if placement is None or placement.num_servers else placement.num_workers
            show_plan(request, folder, num_workers, 0 if placement is None else placement.num_commanded)
            return
        folder.open(resume=options.resume or not is_first)
        if orders is None:
            import_quietly()
            from train.distribution.lost_peers import leaving_when_peers_are_lost, logging_about_peers
            from train.parameter_servers import serve
            from train.reporting.report import Reporter
            from train.run import run

            with leaving_when_peers_are_lost(cluster):
                if cluster.num_servers and not cluster.is_chief:
                    serve(request, folder, cluster, stop)
                with logging_about_peers(cluster, folder.path):
                    run(request, folder, Reporter(), stop, cluster)
            if options.export is not None and identity is None:
                export(folder, options.export, is_best=options.early_stopping is not None)
    if orders is not None:
        # An append in the meantime must not give other examples to workers that are started later.
        orders = msgspec.structs.replace(orders, command=with_version(orders.command, request.dataset.version))
        if options.elastic:
            record = folder.read_record()
            num_workers = orders.placement.num_workers
            plan = make_plan(request, num_workers, num_workers, None if record is None else record.shared)
            orders = msgspec.structs.replace(orders, worker_counts=worker_counts(plan))
        code = supervise(orders, say, folder.describe_stop, folder.has_checkpoint)
        if code == 0 and options.export is not None and orders.placement.first == 0:
            export(folder, options.export, is_best=options.early_stopping is not None)
        ctx.exit(code)


def request_of(options: TrainOptions, folder: RunFolder | None) -> Request:
    """Returns the request; a run that goes on takes the version that it began with."""
    from train.runs.request import resolve

    return resolve(options, folder.read_record() if folder is not None and options.resume else None)


def read_options(typed: dict[str, Any]) -> TrainOptions:
    """Returns the typed options as one value."""
    import msgspec

    from train.options.config import TrainOptions

    names = {name: split_names(typed[name]) for name in ("features", "ignore", "hosts")}
    return msgspec.convert(typed | names | {"ignore": names["ignore"] or ()}, TrainOptions)


def show_plan(request: Request, folder: RunFolder, num_workers: int, num_commanded: int) -> None:
    """Shows what a run would do, and writes nothing."""
    from train.distribution.environment import import_quietly

    import_quietly()
    from train.dry_run import dry_run
    from train.reporting.report import Reporter

    dry_run(request, folder, Reporter(), num_workers, num_commanded)


def export(folder: RunFolder, target: str, *, is_best: bool) -> None:
    """Writes the trained model for others, of the best epoch or of the last one."""
    from train.distribution.environment import import_quietly

    import_quietly()
    from shardkit.errors import ShardkitError
    from train.reporting.report import Reporter
    from train.runs.export import export_run
    from train.runs.restore_model import BEST, NEWEST

    try:
        export_run(folder, export_place(target), Reporter(), which=BEST if is_best else NEWEST)
    except ShardkitError as error:
        error.with_state(f"The trained model is kept in {folder.path}; shardkit export writes it elsewhere")
        raise


def worker_command(ctx: click.Context) -> tuple[str, ...]:
    """Returns the command line that was typed, for another process."""
    # Not the current folder first: a train.py of the user, or a checkout without its kernel, may lie there.
    return (sys.executable, "-P", "-m", "shardkit", "train", *ctx.meta[_TYPED])


def say(text: str) -> None:
    """Prints a message of the supervisor."""
    click.echo(text, err=True)
