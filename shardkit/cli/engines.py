"""`shardkit engines`: which engines are ready here, and the program of one that is no Python package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardkit.cli.shell.command import ExampleCommand, print_document, write_examples
from shardkit.conversion.engines import ENGINES

if TYPE_CHECKING:
    from beam_pipelines.engines.engine import Readiness


class _EngineGroup(click.Group):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.epilog, formatter)


@click.group(
    cls=_EngineGroup,
    epilog="""
        shardkit engines list
        shardkit engines install prism
    """,
)
def command() -> None:
    """Show which engines are ready to run conversions here, and install the program of one."""


@command.command(
    "list",
    cls=ExampleCommand,
    epilog="""
        shardkit engines list
        shardkit engines list --json | jq -r '.[] | select(.lacks == null) | .name'
    """,
)
@click.option("--json", "as_json", is_flag=True, help="Print them as one JSON document.")
def list_engines(as_json: bool) -> None:
    """Show every engine of --runner: what of it is installed, and what it lacks. Nothing is started or asked."""
    import msgspec

    from beam_pipelines.engines.engine import readiness

    if as_json:
        print_document(msgspec.to_builtins(readiness()))
    else:
        print_engines(readiness())


def print_engines(found: tuple[Readiness, ...]) -> None:
    """Prints a table of engines."""
    from rich.console import Console

    from shardkit.cli.shell.tables import print_columns
    from shardkit.messages import visible

    rows = [(e.name, ", ".join(e.versions) or "-", "ready" if e.lacks is None else visible(e.lacks)) for e in found]
    console = Console(highlight=False)
    print_columns(console, ("engine", "installed", "here"), rows, num_left=2, last_is_left=True)


@command.command(
    "install",
    cls=ExampleCommand,
    epilog="""
        shardkit engines install prism
        shardkit engines install prism --program apache_beam-v2.77.0-prism-linux-amd64.zip
    """,
)
@click.argument("engine", type=click.Choice([name for name, facts in ENGINES.items() if facts.has_program]))
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take this program, or the zip file that holds it. Default: Go downloads and builds it.",
)
def install(engine: str, program: Path | None) -> None:
    """Install the program of ENGINE, in the version of Beam that is installed, below ~/.local/share/shardkit.

    Without --program it needs Go 1.26 or newer, downloads 120 MB from the proxy of Go's modules, and takes two minutes.
    """
    from beam_pipelines.engines.engine import engine_for
    from beam_pipelines.engines.settings import EngineOptions
    from shardkit.cli.shell.reading_bar import status_line

    with status_line() as tell:
        tell("installing; Go takes two minutes" if program is None else "installing")
        place = engine_for(EngineOptions(runner=engine)).install(program)
    click.echo(f"installed {place}\nNext: shardkit convert INPUT... DESTINATION --runner {engine}")
