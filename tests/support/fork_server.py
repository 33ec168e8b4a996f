"""Starts `python -m shardkit` by forking a process that has imported it already: 0.3 s of CPU instead of 2 s or 6 s.

`subprocess.Popen` of the tests does this (`install`), except for tests with the mark `fresh_start`, where imports or
the first moments of a process matter. The new process is a child of the tests' process, in every respect.
"""

import array
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading

from tests.support.paths import ROOT

SERVER_NAME = "fork-server"
"""Of a server below a command."""

# The constants of prctl(2).
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
# What these say is read when modules are imported.
_IMPORT_VARIABLES = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "OPENBLAS_", "OMP_", "CUDA", "XLA_")
_MODULES = {"shardkit": "convert", "tests.faults.command": "faults"}
_TRAINING = ("evaluate", "export", "predict", "train")
_ALWAYS_FRESH = ("doctor",)

# Servers are started with it, whatever a test has set since.
_environment = {}

is_on = True
_started = subprocess.Popen
_lock = threading.Lock()
_servers = {}


def install(channels=(), environment=None):
    """Makes `subprocess.Popen` of this process fork commands.

    Args:
        channels: By kind of command, sockets to servers that are there; others are started when they are needed.
        environment: Of these servers, as far as imports read it; that of this process if it starts them.
    """
    _environment.clear()
    _environment.update(os.environ if environment is None else environment)
    subprocess.Popen = ForkingPopen
    _servers.update({kind: _Server(channel) for kind, channel in dict(channels).items()})


def name_process(name):
    """Names this process as `ps` shows it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


class ForkingPopen(subprocess.Popen):
    """`subprocess.Popen` that forks a command where that makes no difference."""

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
        restore_signals, gid, gids, uid, umask, start_new_session, process_group,
    ):  # fmt: skip
        environment = dict(os.environ if env is None else env)
        is_plain = not (shell or preexec_fn or pass_fds or executable or gids) and close_fds and restore_signals
        is_plain = is_plain and gid is uid is None and umask < 0
        module, arguments = _command(args) if is_on and is_plain and not isinstance(args, (str, bytes)) else (None, [])
        server = _server(_kind(module, arguments)) if module else None
        if server is None or not _has_variables_of_tests(environment):
            return super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
                restore_signals, gid, gids, uid, umask, start_new_session, process_group,
            )  # fmt: skip
        sys.audit("subprocess.Popen", args[0], args, cwd, env)
        request = {
            "module": module,
            "arguments": arguments,
            "is_folder_on_path": args[1] != "-P",
            "folder": os.fspath(cwd or os.getcwd()),
            "environment": environment,
            "new_session": bool(start_new_session),
            "group": os.getpgrp() if process_group in (-1, None) else process_group,
        }
        streams = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            self.pid = server.fork(request, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


class _Server:
    """A process that has imported what one kind of command needs, and forks."""

    def __init__(self, channel, process=None):
        self.owner = os.getpid()
        self._channel = channel
        # None in a command that was forked itself, which starts no server.
        self.process = process

    def fork(self, request, streams):
        """Returns the number of a new process, which is a child of this one."""
        body = json.dumps(request).encode()
        head = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        with _lock:
            _inherit_orphans(True)
            try:
                self._channel.sendmsg([len(body).to_bytes(4, "big")], head)
                self._channel.sendall(body)
                found = self._channel.recv(4)
            finally:
                _inherit_orphans(False)
        if len(found) != 4:
            raise RuntimeError("the fork server has ended")
        return int.from_bytes(found, "big")


def _server(kind):
    """Returns the server of this process, None if it has none and starts none."""
    with _lock:
        found = _servers.get(kind)
        if found is None and not any(server.process is None for server in _servers.values()):
            found = _servers[kind] = _start_server(kind)
        return found if found is not None and found.owner == os.getpid() else None


def _start_server(kind):
    own, other = socket.socketpair()
    path = os.pathsep.join([str(ROOT), _environment.get("PYTHONPATH", "")])
    with other:
        process = _started(
            [sys.executable, "-m", "tests.support.forked_commands", kind, str(other.fileno())],
            pass_fds=[other.fileno()],
            env={**_environment, "PYTHONPATH": path},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
    return _Server(own, process)


def _inherit_orphans(on):
    # The process that forks ends at once, and its child then goes to the next process above that asks for such.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def _command(command):
    """Returns module and arguments of `python -m MODULE ARGUMENTS`, None and nothing for what is not forked."""
    words = [os.fsdecode(word) for word in command]
    if words[1:2] == ["-P"]:
        del words[1]
    if words[:2] != [sys.executable, "-m"] or len(words) < 4 or words[2] not in _MODULES or words[3] in _ALWAYS_FRESH:
        return None, []
    return words[2], words[3:]


def _kind(module, arguments):
    return "train" if arguments[0] in _TRAINING else _MODULES[module]


def _has_variables_of_tests(environment):
    def chosen(variables):
        return {k: v for k, v in variables.items() if k.startswith(_IMPORT_VARIABLES)}

    return chosen(environment) == chosen(_environment)
