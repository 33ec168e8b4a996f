"""The command line. `shardkit --help` imports none of the commands; see `shell` for how one is written."""

from __future__ import annotations

import gc
import os
import platform
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from shardkit._version import __version__
from shardkit.cli.shell.command import (
    Entry,
    LazyGroup,
    debug_option,
    exit_within,
    ignore_signals,
    install_signal_handlers,
    silence_closed_output,
    survive_narrow_encodings,
)
from shardkit.cli.shell.errors import EXIT_READER_LEFT, explain, reader_left, show
from shardkit.messages import OUTPUT_NAME
from shardkit.runtime.early_signals import stop_at_once_on_signals
from shardkit.runtime.hidden_modules import hide_pandas

__all__ = ["cli", "main", "script"]

PROGRAM = "shardkit"
COMMANDS = {
    "convert": Entry("shardkit.cli.convert", "Turn raw files into evenly sized TFRecord shards."),
    "plan": Entry("shardkit.cli.plan", "Tell what a conversion would need, and whether it can work."),
    "inspect": Entry("shardkit.cli.inspect", "Show what a dataset holds."),
    "verify": Entry("shardkit.cli.verify", "Re-read every byte of a dataset and compare it with its manifest."),
    "export-data": Entry("shardkit.cli.export_data", "Write a dataset in the format of another tool."),
    "index": Entry("shardkit.cli.index", "Make TFRecord files a dataset where they lie."),
    "bench": Entry("shardkit.cli.bench", "Measure how fast a dataset is read, and where the time goes."),
    "clean": Entry("shardkit.cli.clean", "Remove what no version of a dataset needs and no conversion owns."),
    "engines": Entry("shardkit.cli.engines", "Show which engines are ready, and install the program of one."),
    "doctor": Entry("shardkit.cli.doctor", "Check the installation, and whether a store keeps its promises."),
    "train": Entry("shardkit.cli.train", "Train a model on a dataset."),
    "evaluate": Entry("shardkit.cli.evaluate", "Measure how good a trained model is."),
    "predict": Entry("shardkit.cli.predict", "Write what a trained model says about each example."),
    "export": Entry("shardkit.cli.export", "Write a trained model as a SavedModel and a .keras file."),
}

_COMPLETE_VARIABLE = "_SHARDKIT_COMPLETE"
_LIBRARIES = ("apache-beam", "keras", "numpy", "pyarrow", "tensorflow")
_SECONDS_TO_STOP = 0.5


def print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Prints the versions of shardkit, of Python and of the libraries that are installed, and ends the command."""
    if not value:
        return
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    click.echo(f"{PROGRAM} {__version__}")
    click.echo(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    click.echo(
        f"kernel {'compiled' if find_spec('shardkit._kernel') else 'not built; encoding takes many times longer'}"
    )
    for name in _LIBRARIES:
        try:
            click.echo(f"{name} {version(name)}")
        except PackageNotFoundError:
            click.echo(f"{name} is not installed")
    ctx.exit()


cli = LazyGroup(
    name=PROGRAM,
    table=COMMANDS,
    help="Raw files in, trainable shards out, and a trainer that never waits for them.",
    epilog="""
        shardkit convert 'raw/*.csv' out/flights --split train=0.9 --split test=0.1
        shardkit inspect out/flights
        shardkit verify out/flights
        shardkit train out/flights --label delayed

        shardkit COMMAND --help has more.
    """,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=print_version,
            help="Show the versions of shardkit and its libraries.",
        ),
        debug_option(),
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code. Every exception ends here as one message on stderr."""
    try:
        install_signal_handlers()
        survive_narrow_encodings()
        return _run(sys.argv[1:] if argv is None else argv)
    except BaseException as error:  # noqa: BLE001 - the last frame there is
        return _end(error)


def script() -> NoReturn:
    """Runs the command line as the whole process."""
    stop_at_once_on_signals()
    hide_pandas(sys.argv[1:])
    if sys.argv[1:2] in (["convert"], ["plan"]):
        from shardkit.cli.shell.supervise import supervised

        sys.exit(supervised(_read_inputs))
    exit_code = main()
    # Python searches all objects of TensorFlow or a store's client at its end, which takes half a second.
    gc.freeze()
    sys.exit(exit_code)


def _read_inputs() -> int:
    from shardkit.runtime.process_limits import ask_for_memory_late, lighten_process

    lighten_process()
    ask_for_memory_late()
    return main()


def _run(argv: Sequence[str]) -> int:
    if instruction := os.environ.get(_COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, PROGRAM, _COMPLETE_VARIABLE, instruction)
    try:
        with cli.make_context(PROGRAM, list(argv)) as ctx:
            cli.invoke(ctx)
    except click.exceptions.Exit as end:
        sys.stdout.flush()
        return end.exit_code
    sys.stdout.flush()
    return 0


def _end(error: BaseException) -> int:
    if reader_left(error):
        silence_closed_output()
        return EXIT_READER_LEFT
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return error.code or 0
    explanation = explain(error)
    if isinstance(error, OSError) and error.filename == OUTPUT_NAME:
        silence_closed_output()
    if isinstance(error, KeyboardInterrupt):
        from shardkit.cli.shell.supervised import announce_answer

        announce_answer()
        ignore_signals()  # Who tells a whole group of processes also tells this one twice.
        exit_within(_SECONDS_TO_STOP, explanation.exit_code)
        if sys.stderr.isatty():
            click.echo(err=True)  # ends the line on which the terminal shows ^C
    show(explanation, error)
    return explanation.exit_code
