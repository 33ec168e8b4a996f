"""What a terminal shows while a command reads files or measures: a bar, or one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def reading_bar(num_bytes: int) -> Iterator[Callable[[int], None] | None]:
    """Gives a function for numbers of bytes just read, None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=num_bytes)

        def advance(num_read_bytes: int) -> None:
            bar.advance(task, num_read_bytes)

        yield advance


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a text on a terminal, on one line of stderr that is removed at the end."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return

    def tell(text: str) -> None:
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    try:
        yield tell
    finally:
        tell("")
