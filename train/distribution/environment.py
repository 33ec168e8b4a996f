"""Settings of the process that must be made before TensorFlow is imported, or before it touches a device."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR", "ABSL_MIN_LOG_LEVEL": "3"}

# Seconds after which a thread gives way to another one that waits. The loop shares Python with the threads that prepare
# its batches, and with the usual 5 ms it began steps so much later (`tests/benchmarks/training/accelerators_busy.py`).
_SWITCH_INTERVAL_S = 0.0005


def import_quietly() -> None:
    """Imports TensorFlow and Keras without their start-up messages, and lets threads change places often.

    Raises:
        ModuleNotFoundError: If one of them is not installed.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    os.environ["KERAS_BACKEND"] = "tensorflow"
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with native_messages_hidden():
        import keras
        import tensorflow as tf

        # Listing devices makes TensorFlow load its GPU libraries, which it also comments on.
        tf.config.list_physical_devices()
        tf.get_logger().setLevel("ERROR")
        keras.config.disable_traceback_filtering()


@contextmanager
def native_messages_in(log: Path) -> Iterator[None]:
    """Sends output that libraries write to the stderr descriptor to a file; Python's output still shows.

    TensorFlow tells that another process is lost in forty lines, as often as it finds that out, at any log level.
    """
    sys.stderr.flush()
    with log.open("ab") as file, os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8") as shown:
        before, sys.stderr = sys.stderr, shown
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(shown.fileno(), 2)
            sys.stderr = before


@contextmanager
def native_messages_hidden() -> Iterator[None]:
    """Hides output that libraries write to the stderr descriptor, unless the block fails.

    TensorFlow logs before its log level applies, so no setting silences that.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as hidden:
        shown = os.dup(2)
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except Exception:
            os.dup2(shown, 2)
            hidden.seek(0)
            os.write(2, hidden.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
