"""What a process is started with: its standard streams, and the encoding of the names of files."""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """Opens the null device in the place of standard streams that are closed, as by `>&-`.

    Else the first file that is opened takes the place of stdout, and what is printed goes into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number, which is this one. Workers get it too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def begin_again_with_utf8() -> None:
    """Begins the process again where Python takes the names of files for ASCII, as with LC_ALL=C and PYTHONUTF8=0.

    Names are bytes that are UTF-8 in practice, whatever the locale is. What is printed stays in the locale's encoding.
    """
    if sys.getfilesystemencoding().lower() != "utf-8":
        # Workers inherit both.
        os.environ.setdefault("PYTHONIOENCODING", f"{sys.stdout.encoding}:backslashreplace")
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
