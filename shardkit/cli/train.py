"""`shardkit train`: a dataset to a trained model."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from shardkit.cli.export import export_place
from shardkit.cli.shell.command import ExampleCommand
from shardkit.cli.shell.option_files import settings_options
from shardkit.cli.shell.request_options import click_option, headings_of
from shardkit.cli.shell.run_options import check_own_package, check_trainer
from shardkit.options import OptionField, options_of

if TYPE_CHECKING:
    from train.distribution.cluster import Cluster
    from train.distribution.signals import Stop
    from train.distribution.supervisor import Orders
    from train.launchers.launcher import Launcher
    from train.options.config import TrainOptions
    from train.runs.request import Request
    from train.runs.run_folder import RunFolder


class TrainCommand(ExampleCommand):
    """A command that remembers its arguments as typed, for the processes that run it again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = tuple(args)
        return super().parse_args(ctx, args)


_TYPED = "shardkit.train.typed"


def _fields() -> tuple[OptionField, ...]:
    # A file train.py of a user must not be run in place of the package.
    check_own_package("train")
    from train.options.config import TrainOptions

    return options_of(TrainOptions)


def _headings() -> dict[str, tuple[str, ...]]:
    from train.options.config import HEADINGS, OUTPUT

    found = headings_of(_fields(), HEADINGS)
    return {**found, OUTPUT: (*found[OUTPUT], "--dry-run")}


@click.command(
    cls=TrainCommand,
    params=[*map(click_option, _fields()), *settings_options()],
    headings=_headings(),
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
        shardkit train /nfs/adult --label age --launcher ray --launcher-option address=auto --workers 4 --output /nfs/r
        shardkit train out/adult --label income --output runs/adult --export models/adult
        shardkit train out/adult --config adult.toml --set epochs=10 --set features=age,education --dry-run
        shardkit train out/adult --label income --output runs/adult --profile-steps 10:20
    """,
)
@click.argument("dataset")
@click.option("--dry-run", is_flag=True, help="Show steps, shares of the workers and memory, then stop.")
@click.pass_context
def command(ctx: click.Context, /, dry_run: bool, **typed: Any) -> None:
    """Train a model on a dataset that `shardkit convert` made.

    Columns are normalised and looked up by the dataset's own statistics, images are resized and augmented. A run that
    was stopped goes on exactly where its last checkpoint stands when the same command is run with --resume.

    FILE.py:function is called as function(features, statistics, label_spec) and returns a Keras 3 model whose inputs
    have the names of features.
    """
    check_trainer("tensorboard")
    from train.distribution.cluster import cluster_from_environment
    from train.distribution.launch import plan_launch
    from train.distribution.signals import end_at_once
    from train.distribution.worker_identity import end_with_supervisor, own_identity
    from train.runs.run_folder import RunFolder, check_target
    from train.runs.run_lock import run_lock

    options = read_options(typed | {"command": ("shardkit", *sys.argv[1:])})
    identity = own_identity(os.environ)
    if identity is not None:
        end_with_supervisor()
    orders = plan_launch(options, worker_command(ctx), os.environ) if identity is None else None
    launcher = None if orders is None else launcher_of(options)
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
        if is_first and cluster.is_chief:
            ctx.with_resource(run_lock(folder.path, say))
        if orders is None:
            _run(request, folder, stop, cluster)
            if options.export is not None and identity is None:
                export(folder, options.export, is_best=options.early_stopping is not None)
    if orders is not None:
        code = _supervise(orders, request, folder, launcher)
        if code == 0 and options.export is not None and orders.placement.first == 0:
            export(folder, options.export, is_best=options.early_stopping is not None)
        ctx.exit(code)


def _run(request: Request, folder: RunFolder, stop: Stop, cluster: Cluster) -> None:
    from train.distribution.environment import import_quietly

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


def launcher_of(options: TrainOptions) -> Launcher | None:
    """Returns what starts the workers on a cluster, checked; None for processes of this host."""
    from train.launchers.launcher import make_launcher

    if options.launcher is None or options.workers is None:
        return None
    return make_launcher(options.launcher, dict(options.launcher_options), options.workers)


def _supervise(orders: Orders, request: Request, folder: RunFolder, launcher: Launcher | None) -> int:
    import msgspec

    from train.distribution.launch import with_version
    from train.distribution.supervisor import supervise
    from train.options.step_plan import worker_counts
    from train.runs.request import make_plan

    # An append in the meantime must not give other examples to workers that are started later.
    orders = msgspec.structs.replace(orders, command=with_version(orders.command, request.dataset.version))
    if request.options.elastic:
        record = folder.read_record()
        num_workers = orders.placement.num_workers
        plan = make_plan(request, num_workers, num_workers, None if record is None else record.shared)
        orders = msgspec.structs.replace(orders, worker_counts=worker_counts(plan))
    if launcher is None:
        return supervise(orders, say, folder.describe_stop, folder.has_checkpoint)
    from train.launchers.cluster_workers import ClusterWorkers, Place
    from train.runs.run_lock import LOCK_FILE

    place = Place(launcher, f"{request.options.output}/{LOCK_FILE}", request.options.rendezvous_timeout_s)
    with launcher.ended():
        orders = msgspec.structs.replace(orders, workers=partial(ClusterWorkers, place))
        return supervise(orders, say, folder.describe_stop, folder.has_checkpoint)


def request_of(options: TrainOptions, folder: RunFolder | None) -> Request:
    """Returns the request; a run that goes on takes the version that it began with."""
    from train.runs.request import resolve

    return resolve(options, folder.read_record() if folder is not None and options.resume else None)


def read_options(typed: dict[str, Any]) -> TrainOptions:
    """Returns the typed options as one value."""
    import msgspec

    from train.options.config import TrainOptions

    parsed = {f.name: f.parse(typed[f.name]) for f in _fields() if typed[f.name] is not None}
    return msgspec.convert({"dataset": typed["dataset"], "command": typed.get("command", ()), **parsed}, TrainOptions)


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
    from shardkit.storage.options import without_options

    # Not the current folder first: a train.py of the user, or a checkout without its kernel, may lie there.
    words = without_options(ctx.meta[_TYPED], "--launcher", "--workers", "--launcher-option")
    return (sys.executable, "-P", "-m", "shardkit", "train", *words)


def say(text: str) -> None:
    """Prints a message of the supervisor."""
    click.echo(text, err=True)
