"""What a signal does while a command is still being loaded: one sentence, and the end.

Imports turn an interrupt into other errors or swallow it, and nothing has begun that would have to be cleaned up. This
module needs nothing but the interpreter, so it is there before anything else is loaded.
"""

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Holds the sentence that a stopped process prints before it knows more; the process that started it sets it.
STOPPED_VARIABLE = "SHARDKIT_STOPPED"

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "terminated"}

_announce: "Callable[[], None] | None" = None


def stop_at_once_on_signals(announce: "Callable[[], None] | None" = None) -> None:
    """Makes SIGINT, SIGTERM and SIGHUP end this process with a sentence and their exit code.

    It leaves signals alone that have another handler, or that the parent process had ignored.

    Args:
        announce: Called before the end.
    """
    global _announce
    _announce = announce
    for number in WORDS:
        if has_default_handler(number):
            signal.signal(number, stop_at_once)


def has_default_handler(number: int) -> bool:
    """Returns whether nothing but Python's own answer, or `stop_at_once`, waits for a signal."""
    return signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, stop_at_once)


def stopped_sentence() -> str:
    """Returns the sentence for a command that was stopped before it has one itself."""
    return os.environ.get(STOPPED_VARIABLE, "Stopped before the end.")


def stop_at_once(number: int, frame: object = None) -> None:
    """Ends this process without cleaning up."""
    # A signal to all processes of a terminal comes again from the one above, which hands it on.
    for other in WORDS:
        signal.signal(other, signal.SIG_IGN)
    # Ends the line on which the terminal shows ^C.
    start = "\n" if number == signal.SIGINT and os.isatty(2) else ""
    try:
        if _announce is not None:
            _announce()
        os.write(2, f"{start}{WORDS[signal.Signals(number)]}: {stopped_sentence()}\n".encode())
    finally:
        os._exit(128 + number)
