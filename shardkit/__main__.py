"""`python -m shardkit`, and the command `shardkit`."""

from __future__ import annotations

from shardkit.runtime.early_signals import stop_at_once_on_signals

if __name__ == "__main__":
    stop_at_once_on_signals()

import codecs
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def main() -> NoReturn:
    """Runs the command line as the whole process."""
    stop_at_once_on_signals()
    open_closed_streams()
    restart_with_utf8()
    from shardkit.cli import script

    script()


def open_closed_streams() -> None:
    """Opens the null device for each standard stream that is closed, as by `>&-`.

    Otherwise the first file that is opened becomes stdout, and what is printed goes into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one. Workers inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    if not os.isatty(1):
        sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    if not os.isatty(2):
        sys.stderr = _text(_Messages(2, "w", closefd=False), sys.stderr)


class _Output(io.FileIO):
    """Names itself in an error, as where the output goes to a full disk."""

    def write(self, content: ReadableBuffer, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            from shardkit.messages import OUTPUT_NAME

            error.filename = OUTPUT_NAME
            raise


class _Messages(io.FileIO):
    """Drops what finds no space, as in a log on a full disk: the exit code says how the command ended."""

    def write(self, content: ReadableBuffer, /) -> int:
        try:
            return super().write(content)
        except OSError:
            return memoryview(content).nbytes


def _text(raw: io.FileIO, old: TextIO) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(raw), old.encoding, old.errors, line_buffering=raw.fileno() == 2)


def restart_with_utf8() -> None:
    """Starts the process again where Python takes the names of files for ASCII, as with LC_ALL=C and PYTHONUTF8=0.

    The names of files are then UTF-8. Output stays in the encoding of the locale.
    """
    is_ascii = codecs.lookup(sys.getfilesystemencoding()).name == "ascii"
    # An interpreter that ignores its environment, as with -I, would start again for ever.
    if is_ascii and os.environ.get("PYTHONUTF8") != "1":
        # Workers inherit both variables.
        os.environ.setdefault("PYTHONIOENCODING", f"{sys.stdout.encoding}:backslashreplace")
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    # Python puts the current folder first; a train.py that is there must not pass for the package `train`.
    here, home = Path.cwd(), Path(__file__).resolve().parent.parent
    if here != home:
        sys.path[:] = [entry for entry in sys.path if entry not in ("", str(here))]
    main()
