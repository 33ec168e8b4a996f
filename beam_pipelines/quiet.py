"""What Beam would leave, print and open to others on this machine, kept from them."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc


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


@contextlib.contextmanager
def servers_on_loopback() -> Iterator[None]:
    """Lets servers of the block, which run what they are sent, listen to this machine only."""
    make = grpc.server

    def make_and_bind(*args: Any, **options: Any) -> grpc.Server:
        server = make(*args, **options)
        bind = server.add_insecure_port
        # Beam has no option for it.
        server.add_insecure_port = lambda address: bind(address.replace("[::]", "127.0.0.1"))
        return server

    grpc.server = make_and_bind
    try:
        yield
    finally:
        grpc.server = make
