"""`shardkit doctor`: whether the installation works, and whether a store keeps the promises that shardkit relies on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardkit.cli.shell.command import ExampleCommand, print_document
from shardkit.cli.shell.reading_bar import status_line

if TYPE_CHECKING:
    from rich.console import Console

    from shardkit.doctor.installation import Installation
    from shardkit.doctor.kernel import KernelReport
    from shardkit.doctor.machine import Gpus, Machine
    from shardkit.doctor.store_trials import StoreReport

# Less room than this for temporary files ends many a conversion.
_SMALL_TEMPORARY_BYTES = 1024**3


@click.command(
    cls=ExampleCommand,
    epilog="""
        shardkit doctor
        shardkit doctor gs://bucket/datasets
        shardkit doctor out --rounds 1000
        shardkit doctor s3://bucket --json | jq '.store.findings[] | select(.state == "broken")'
    """,
)
@click.argument("url", required=False)
@click.option(
    "--rounds",
    "num_rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Try each promise of a store this many times. Default: 100, or fewer for a slow store.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON document.")
@click.pass_context
def command(ctx: click.Context, url: str | None, num_rounds: int | None, as_json: bool) -> None:
    """Check the installation and, given URL, whether that store or folder keeps the promises that shardkit relies on.

    It shows which engines of convert are ready, as 'shardkit engines list' does.

    A store is written to, in a new folder .shardkit-doctor-* below URL that is removed again, in total about 60 MiB;
    nothing else there is read or changed. Ends with exit code 1 if anything is wrong, 5 if the store does not answer.
    """
    from beam_pipelines.engines.engine import readiness
    from shardkit.cli.engines import print_engines
    from shardkit.doctor.installation import inspect_installation
    from shardkit.doctor.kernel import check_kernel
    from shardkit.doctor.machine import GpuQuestion, inspect_machine

    question = GpuQuestion()
    try:
        installation, kernel, machine = inspect_installation(), check_kernel(), inspect_machine()
        engines = readiness()
        problems = (*installation.problems, *_kernel_problems(kernel))
        if not as_json:
            # A store may fail to answer; the findings so far are still shown.
            _print_installation(installation, kernel, problems)
            print_engines(engines)
        gpus = question.answer()
        if not as_json:
            _print_machine(machine, gpus)
        report = None if url is None else _examine(url, num_rounds)
    finally:
        question.forget()
    if as_json:
        parts = {"installation": installation, "engines": engines, "machine": machine, "gpus": gpus, "store": report}
        _print_json(parts, kernel, problems)
    elif report is not None:
        _print_store(report)
    if problems or (report is not None and not (report.verdict.keeps_promises and report.is_tidy)):
        ctx.exit(1)


def _examine(url: str, num_rounds: int | None) -> StoreReport:
    from shardkit.doctor.store_trials import examine_store

    with status_line() as tell:
        return examine_store(url, num_rounds=num_rounds, progress=lambda what: tell(f"trying {what}"))


def _kernel_problems(kernel: KernelReport) -> tuple[str, ...]:
    again = "install shardkit again: pip install --force-reinstall --no-deps shardkit"
    if kernel.state == "wrong":
        return (f"the compiled kernel gives wrong results, {kernel.detail}; {again}",)
    if kernel.state == "unloadable":
        return (f"the compiled kernel cannot be loaded, {kernel.detail}; {again}",)
    return ()


def _describe_kernel(kernel: KernelReport) -> str:
    return {
        "right": "compiled, gives what the reference gives",
        "missing": f"not built: {kernel.detail}; install with a C++ compiler",
        "wrong": f"WRONG: {kernel.detail}",
        "unloadable": f"cannot be loaded: {kernel.detail}",
    }[kernel.state]


def _print_installation(installation: Installation, kernel: KernelReport, problems: tuple[str, ...]) -> None:
    from rich.console import Console

    from shardkit._version import __version__
    from shardkit.cli.shell.tables import print_columns
    from shardkit.messages import visible

    console = Console(highlight=False)
    _print_facts(
        console,
        "installation",
        (
            ("shardkit", installation.version or f"{__version__}, not installed: the bounds of packages are not known"),
            ("Python", f"{installation.python}  {installation.python_clauses}"),
            ("kernel", _describe_kernel(kernel)),
        ),
    )
    rows = [("core", package.name, package.version or "missing", package.clauses) for package in installation.core]
    rows += [
        (f"[{extra.name}]", package.name, package.version or "missing", package.clauses)
        for extra in installation.extras
        for package in extra.packages
    ]
    print_columns(console, ("part", "package", "version", "takes"), rows, num_left=4)
    missing = [extra for extra in installation.extras if not extra.is_installed]
    if missing:
        print_columns(
            console, ("not installed, for", "added by"), [(e.purpose, e.command) for e in missing], num_left=2
        )
    console.print()
    for problem in problems:
        _print_sentence(console, f"wrong: {visible(problem)}")
    if not problems:
        _print_sentence(console, "ok: all that is installed fits together")


def _print_machine(machine: Machine, gpus: Gpus) -> None:
    from rich.console import Console

    from shardkit.units import format_number, format_size

    memory = "unknown" if machine.free_memory_bytes is None else f"{format_size(machine.free_memory_bytes)} free"
    room = f"{format_size(machine.free_temporary_bytes)} free in {machine.temporary_folder}"
    if machine.free_temporary_bytes < _SMALL_TEMPORARY_BYTES:
        room += "; little: set TMPDIR to a folder with more"
    console = Console(highlight=False)
    console.print()
    _print_facts(
        console,
        "machine",
        (
            ("cores", format_number(machine.num_cores, "core")),
            ("memory", memory),
            ("temporary", room),
            ("GPUs", _describe_gpus(machine, gpus)),
        ),
    )


def _describe_gpus(machine: Machine, gpus: Gpus) -> str:
    if gpus.failure is not None:
        return f"unknown: {gpus.failure}"
    if gpus.names:
        return ", ".join(gpus.names)
    if not machine.has_gpu_driver:
        return "none: the system has no GPU's device"
    if not gpus.was_asked:
        return "the system has a GPU's device; TensorFlow is not installed to use it"
    return "TensorFlow sees none, though the system has a GPU's device: check the driver and tensorflow[and-cuda]"


def _print_store(report: StoreReport) -> None:
    from rich.console import Console

    from shardkit.cli.shell.tables import print_columns
    from shardkit.messages import visible
    from shardkit.units import format_count, format_duration

    console = Console(highlight=False)
    console.print()
    _print_facts(console, "store", (("place", report.url), ("took", format_duration(report.seconds))))
    rows = [
        (f.title, f.state if f.state != "broken" else "BROKEN", format_count(f.num_trials), f.result)
        for f in report.findings
    ]
    print_columns(console, ("promise", "state", "trials", "seen"), rows, num_left=2, last_is_left=True)
    console.print()
    for sentence in report.verdict.sentences:
        _print_sentence(console, visible(sentence))
    if report.is_tidy:
        _print_sentence(console, f"All that was written, below {report.folder}, is removed again.")
    else:
        _print_sentence(console, f"The store still lists what was deleted: look for {report.folder} later on.")


def _print_facts(console: Console, title: str, facts: tuple[tuple[str, str], ...]) -> None:
    from rich.text import Text

    from shardkit.cli.shell.tables import print_facts

    console.print(Text(title, style="bold"))
    print_facts(console, facts)


def _print_sentence(console: Console, text: str) -> None:
    from rich.text import Text

    console.print(Text(text), soft_wrap=True)


def _print_json(parts: dict[str, Any], kernel: KernelReport, problems: tuple[str, ...]) -> None:
    import msgspec

    print_document(msgspec.to_builtins(parts) | {"kernel": kernel._asdict(), "problems": problems})
