"""Renders what a command prints as a picture, as that in the README was.

    python examples/screenshots/render.py inspect.svg shardkit inspect flights

The picture is as wide as a terminal of 104 columns.
"""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

from rich.console import Console
from rich.text import Text

WIDTH = 104


def run_on_terminal(argv: list[str]) -> str:
    """Returns what a command prints on a terminal of WIDTH columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 200, WIDTH, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(WIDTH)}
    with subprocess.Popen(argv, stdout=theirs, stdin=subprocess.DEVNULL, env=environment):
        os.close(theirs)
        printed = bytearray()
        while chunk := _read(ours):
            printed += chunk
    os.close(ours)
    return printed.decode().replace("\r\n", "\n").rstrip("\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # how Linux says that the other side was closed
        return b""


def main() -> None:
    path, *argv = sys.argv[1:]
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(Text.from_ansi(run_on_terminal(argv)))
    console.save_svg(path, title=f"$ {' '.join(argv)}")


if __name__ == "__main__":
    main()
