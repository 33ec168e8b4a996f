"""Which options go with parameter servers and which do not. Pure."""

from __future__ import annotations

from shardkit.errors import UsageError
from train.options.config import TrainOptions


def check_async(options: TrainOptions, num_servers: int) -> None:
    """Checks that options go with parameter servers, or with none.

    Args:
        options: As typed.
        num_servers: Parameter servers of the run.

    Raises:
        UsageError: If they do not.
    """
    if not num_servers:
        if options.strategy == "parameter-server":
            raise UsageError(
                "TF_CONFIG names no parameter servers",
                why="--strategy parameter-server was given",
                next_step="Give its cluster the jobs chief, ps and worker, or unset it",
            )
        if options.parameter_servers is not None:
            raise UsageError(
                "--parameter-servers is for --strategy parameter-server", next_step="Add that, or leave it out"
            )
        return
    if options.strategy not in ("auto", "parameter-server"):
        raise UsageError(
            f"--strategy {options.strategy} has no parameter servers",
            why="TF_CONFIG names some",
            next_step="Use --strategy parameter-server",
        )
    for option, why in _excluded(options).items():
        raise UsageError(
            f"{option} does not go with parameter servers", why=why, next_step="Leave it out, or use another --strategy"
        )


def _excluded(options: TrainOptions) -> dict[str, str]:
    """Returns the options that were given and have no meaning there, with the reason."""
    reasons = {
        "--elastic": (options.elastic, "the others go on without a worker that is lost anyway"),
        "--sync-every": (options.sync_every is not None, "workers never wait for each other"),
        "--replicas": (options.replicas is not None, "each worker has one device"),
        "--reduce-in": (options.reduce_in != "float32", "gradients are not added up over replicas"),
        "--memory-limit": (options.memory_limit is not None, "the servers of TensorFlow take no limit in MiB"),
        "--xla": (options.xla, "it compiles no step whose variables lie on other devices"),
        "--profile-steps": (options.profile_steps is not None, "the process that could record them computes none"),
    }
    return {option: why for option, (is_given, why) in reasons.items() if is_given}
