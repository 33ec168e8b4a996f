"""The options of `shardkit train` that say which devices and processes compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import click

from shardkit.cli.shell.option_types import FiniteRange

_OPTIONS = (
    click.option(
        "--strategy",
        type=click.Choice(["auto", "single", "mirrored", "multi-worker", "parameter-server"]),
        default="auto",
        show_default=True,
        help="One device, copies of the model on several, several processes in step, or workers that never wait for "
        "each other; auto takes all GPUs and workers.",
    ),
    click.option("--replicas", type=click.IntRange(min=1), help="Number of devices; virtual ones without a GPU."),
    click.option("--workers-per-host", type=click.IntRange(min=1, max=256), help="Worker processes of each host."),
    click.option(
        "--parameter-servers",
        type=click.IntRange(min=1, max=64),
        help="Processes of the first host that hold the variables; 1 with --strategy parameter-server if not given.",
    ),
    click.option(
        "--hosts",
        metavar="HOST:PORT,...",
        help="Each host's first worker; the next ones take the next ports. From TF_CONFIG or Slurm if not given.",
    ),
    click.option("--host-index", type=click.IntRange(min=0), help="Which of --hosts this one is, from 0."),
    click.option(
        "--max-restarts",
        type=click.IntRange(min=0),
        help="Start lost workers again from the last checkpoint so many times; 3 if there are several.",
    ),
    click.option("--elastic", is_flag=True, help="Go on with fewer workers when they are lost at the same spot again."),
    click.option(
        "--rendezvous-timeout",
        "rendezvous_timeout_s",
        type=FiniteRange(min=0, min_open=True),
        default=300.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for the workers of other hosts.",
    ),
)


def worker_options() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that adds them."""
    return lambda function: reduce(lambda decorated, add: add(decorated), reversed(_OPTIONS), function)
