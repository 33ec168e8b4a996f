"""How a worker ends for its supervisor, besides the exit codes of `shardkit.errors` and 128 + signal."""

import signal

EXIT_BUG = 70
"""An error that is no `ShardkitError`, as the command line ends: EX_SOFTWARE."""

EXIT_PEER_LOST = 75
"""Another worker was lost, so that this one cannot go on: EX_TEMPFAIL of <sysexits.h>."""

WATCHDOG_SIGNAL = signal.SIGALRM
"""Ends a worker that waits for another one inside of TensorFlow, where its Python code does not run."""

PEER_LOST_CODES = frozenset({EXIT_PEER_LOST, -WATCHDOG_SIGNAL})
"""Both, as `subprocess` gives them."""
