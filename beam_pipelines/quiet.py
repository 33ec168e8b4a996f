"""What Beam would leave and print on this machine, kept out of the user's sight."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def quiet_beam() -> Iterator[None]:
    """Hides Beam's log from the user during the block."""
    # Important messages reach the command as errors; the rest is of no use to the user.
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(previous)


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Lets temporary files of the block go into a folder."""
    # Beam makes folders for its staging that a killed process would leave behind; here the next run finds them.
    folder.mkdir(parents=True, exist_ok=True)
    previous = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = previous
