"""What the machine has: cores, memory, room for temporary files, accelerators."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from shardkit.runtime.process_limits import free_bytes

# Without one of these no library finds a GPU: NVIDIA's driver, that of Windows below Linux, AMD's.
_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
_TENSORFLOW_S = 90.0
_ASK_TENSORFLOW = (
    "import json, tensorflow\n"
    "print(json.dumps([tensorflow.config.experimental.get_device_details(d).get('device_name', d.name)"
    " for d in tensorflow.config.list_physical_devices('GPU')]))"
)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine gives this process.

    Attributes:
        free_memory_bytes: That it can still take; None if the system does not tell.
        has_gpu_driver: Whether the system shows a device that a GPU may be behind.
    """

    num_cores: int
    free_memory_bytes: int | None
    temporary_folder: str
    free_temporary_bytes: int
    has_gpu_driver: bool


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """What TensorFlow sees.

    Attributes:
        was_asked: Whether it was; where there is neither TensorFlow nor a device, importing it would only take time.
        names: Of the GPUs that it sees.
        failure: Why it could not say, None if it could.
    """

    was_asked: bool
    names: tuple[str, ...] = ()
    failure: str | None = None


def inspect_machine() -> Machine:
    """Returns the resources that this process may use."""
    folder = tempfile.gettempdir()
    return Machine(
        num_cores=len(os.sched_getaffinity(0)),
        free_memory_bytes=free_bytes(),
        temporary_folder=folder,
        free_temporary_bytes=shutil.disk_usage(folder).free,
        has_gpu_driver=any(Path(device).exists() for device in _DEVICES),
    )


class GpuQuestion:
    """TensorFlow's answer, which takes seconds: a separate process asks it, and `answer` waits for it.

    Args:
        command: What prints names as JSON; None asks TensorFlow, where it and a device are there.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._process: subprocess.Popen[str] | None = None
        if command is None:
            if find_spec("tensorflow") is None or not inspect_machine().has_gpu_driver:
                return
            command = (sys.executable, "-c", _ASK_TENSORFLOW)
        # TensorFlow writes much to stderr. Only its last line is needed, and only where it fails.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def answer(self) -> Gpus:
        """Waits for the answer."""
        if self._process is None:
            return Gpus(was_asked=False)
        try:
            out, err = self._process.communicate(timeout=_TENSORFLOW_S)
        except subprocess.TimeoutExpired:
            self.forget()
            return Gpus(was_asked=True, failure=f"TensorFlow did not answer in {_TENSORFLOW_S:.0f} s")
        try:
            return Gpus(was_asked=True, names=tuple(json.loads(out.splitlines()[-1])))
        except (IndexError, ValueError):
            last = next((line for line in reversed(err.splitlines()) if line.strip()), "it said nothing")
            return Gpus(was_asked=True, failure=f"TensorFlow ended with {self._process.returncode}: {last.strip()}")

    def forget(self) -> None:
        """Ends the question."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
