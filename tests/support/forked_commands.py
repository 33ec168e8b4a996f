"""The process that `tests/support/fork_server.py` forks: it imports what commands import, starts no thread, and waits.

It is `python -m tests.support.forked_commands convert|faults|train SOCKET`. Each request names a command line, and
brings the three standard streams. The process forks twice: the process between ends at once, so that the new one
becomes a child of the process that asked.
"""

import atexit
import contextlib
import gc
import io
import json
import os
import runpy
import signal
import socket
import sys
import threading

from tests.support import fork_server
from tests.support.fork_server import SERVER_NAME, name_process

_CONVERTING = (
    "shardkit.cli", "shardkit.cli.convert", "shardkit.cli.run_convert", "shardkit.cli.inspect", "shardkit.cli.verify",
    "shardkit.cli.shell.supervise", "pyarrow.csv", "pyarrow.parquet", "shardkit.sources.csv.source",
    "shardkit.sources.json.array_source", "shardkit.sources.text.source", "beam_pipelines.engines.local",
    "beam_pipelines.engines.run", "beam_pipelines.engines.dataflow.submit", "beam_pipelines.engines.dask",
    "distributed", "beam_pipelines.engines.beam_options", "numpy.ma", "numpy.random", "rich._emoji_codes", "tenacity",
    "s3fs", "gcsfs", "adlfs", "azure.storage.blob.aio",
)  # fmt: skip
_PRELOADED = {
    "convert": _CONVERTING,
    "faults": (*_CONVERTING, "tests.faults.command", "tests.faults.planted.planted_bugs"),
    "train": ("shardkit.cli", "shardkit.cli.train", "tensorflow", "keras", "h5py", "train.loop"),
}


def main():
    """Serves until the other end of the socket is closed."""
    kind, number = sys.argv[1:]
    _preload(kind)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(number)) as channel:
        found = _serve(channel)
    if found is not None:
        if kind == "train":
            found = _keep_a_server(*found)
        _become(*found)


def _serve(channel):
    """Forks for each request; returns the request and its streams in the new process, None at the end."""
    while True:
        head, streams, _, _ = socket.recv_fds(channel, 4, 3)
        if not head:
            return None
        body = b""
        while len(body) < int.from_bytes(head, "big"):
            body += channel.recv(1 << 20)
        request = json.loads(body)
        if _fork(channel, request):
            return request, streams
        for stream in streams:
            os.close(stream)


def _keep_a_server(request, streams):
    """Lets the command fork its own workers, by a process below it that is as it is now. Returns what to become."""
    own, other = socket.socketpair()
    if os.fork():
        other.close()
        fork_server.install({"train": own}, request["environment"])
        return request, streams
    own.close()
    for stream in streams:
        os.close(stream)
    name_process(SERVER_NAME)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with other:
        found = _serve(other)
    if found is None:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    name_process("python")
    return found


def _preload(kind):
    if kind != "train":
        from shardkit.runtime.process_limits import ask_for_memory_late, lighten_process

        lighten_process()
        ask_for_memory_late()
    else:
        from train.distribution.environment import import_quietly

        import_quietly()
    for name in _PRELOADED[kind]:
        with contextlib.suppress(ModuleNotFoundError):
            __import__(name)
    os.environ.pop("OPENBLAS_NUM_THREADS", None)
    assert threading.active_count() == 1, "threads do not survive a fork"


def _fork(channel, request):
    """Returns whether this is the new process; the other one has told its number."""
    ready, begun = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork():
            os._exit(0)
        if request["new_session"]:
            os.setsid()
        else:
            os.setpgid(0, request["group"])
        os.write(begun, os.getpid().to_bytes(4, "big"))
        os.close(begun)
        os.close(ready)
        return True
    os.close(begun)
    found = os.read(ready, 4)
    os.close(ready)
    # Only then has the new process its new parent.
    os.waitpid(between, 0)
    channel.sendall(found)
    return False


def _become(request, streams):
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _reopen(number, name)
    sys.argv[1:] = request["arguments"]
    sys.path[:1] = [request["folder"]] if request["is_folder_on_path"] else []
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        with contextlib.suppress(OSError):
            _end(end.code)
        raise


def _end(code):
    """Ends as the interpreter does, but does not take down what was imported, which would copy all of its memory.

    It returns for a code that the interpreter would print, and raises OSError where a stream takes no more.
    """
    if not isinstance(code, int):
        return
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _reopen(number, name):
    old = getattr(sys, name)
    raw = open(number, "rb" if number == 0 else "wb", closefd=False)  # noqa: SIM115 - it is a standard stream
    settings = {"encoding": old.encoding, "errors": old.errors, "line_buffering": number == 2 or raw.isatty()}
    new = io.TextIOWrapper(raw, **settings)
    new.mode = "r" if number == 0 else "w"
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)


if __name__ == "__main__":
    # A handler that Python sets at its start, which a process that was started in the background does not have.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
