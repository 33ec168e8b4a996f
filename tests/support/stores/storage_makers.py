"""Stores and folders that the tests of storage work in."""

import contextlib
import os
import tempfile
from pathlib import Path

from shardkit.storage.clients import client_of


@contextlib.contextmanager
def memory_store():
    """Yields the URL of an empty folder of an object store that lives in this process."""
    url = "memory://shardkit-test"
    yield url
    filesystem = client_of(url)
    if filesystem.exists(url):
        filesystem.rm(url, recursive=True)


@contextlib.contextmanager
def locked_folder():
    """Yields a folder that everybody reaches, with a folder and a file in it that nobody may open."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "open.csv").write_text("x")
        (root / "sub").mkdir()
        (root / "sub" / "x.csv").write_text("x")
        (root / "closed.csv").write_text("x")
        (root / "closed.csv").chmod(0)
        (root / "sub").chmod(0)
        yield root
        (root / "sub").chmod(0o755)


def as_nobody(function, *args):
    """Returns what the function raises when someone without rights calls it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            function(*args)
            message = "nothing"
        except BaseException as error:  # noqa: BLE001
            message = f"{type(error).__name__}: {error}"
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        message = pipe.read()
    os.waitpid(child, 0)
    return message
