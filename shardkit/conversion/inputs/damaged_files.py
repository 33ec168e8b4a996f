"""Which files cannot be read, and why."""

from __future__ import annotations

from shardkit.conversion.plan import DamagedFile
from shardkit.conversion.rows.bad_rows import MAX_SAMPLES
from shardkit.errors import BadInputError, NoRowsError, UsageError
from shardkit.messages import printable
from shardkit.sources.base import RawFile, Source, SourceOptions, reason_of, settle
from shardkit.units import format_count


def without_damaged(
    source: Source, files: tuple[RawFile, ...], options: SourceOptions, error: BadInputError | UsageError
) -> tuple[tuple[RawFile, ...], tuple[DamagedFile, ...]]:
    """Returns the files that can be read, and those that cannot with the reason. Each is read alone, which is slow.

    Args:
        files: Of which not all can be read together.

    Raises:
        BadInputError: If none can.
    """
    problems = [None if file.num_bytes == 0 else problem_of(source, (file,), options) for file in files]
    sound = tuple(f for f, problem in zip(files, problems, strict=True) if problem is None)
    damaged = tuple(
        DamagedFile(file=f, reason=problem) for f, problem in zip(files, problems, strict=True) if problem is not None
    )
    if any(f.num_bytes for f in sound):
        return sound, damaged
    if len(damaged) > 1 and not isinstance(error, UsageError):
        reasons = [f"{printable(d.file.name)}: {d.reason}" for d in damaged[:MAX_SAMPLES]]
        more = [f"and {format_count(len(damaged) - len(reasons))} more"] if len(damaged) > len(reasons) else []
        raise BadInputError("no input file can be read", why="; ".join(reasons + more))
    return files, ()


def can_be_read(source: Source, files: tuple[RawFile, ...], options: SourceOptions) -> bool:
    """Returns whether files can be read together, with options that are not settled yet."""
    try:
        return problem_of(source, files, settle(source, files, options)) is None
    except NoRowsError:
        return True
    except (BadInputError, UsageError):
        return False


def problem_of(source: Source, files: tuple[RawFile, ...], options: SourceOptions) -> str | None:
    """Returns why files cannot be read together, None if they can."""
    try:
        source.infer(files, options)
        source.split(files, options)
    except NoRowsError:
        # Nothing in it is damaged.
        return None
    except (BadInputError, UsageError) as error:
        return reason_of(error)
    return None
