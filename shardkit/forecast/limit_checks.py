"""Which limits a setting comes up against, and what to set instead so that it no longer does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from shardkit.conversion.engines import ENGINES, EngineFacts, Limit
from shardkit.forecast.estimate import carries_bytes, disk_holds, forecast, is_one_machine, most_datasets, part_of
from shardkit.forecast.limits import GETS_PER_S, GROUP, MANIFEST, OBJECT, PUTS_PER_S, RECORD, SHARDS
from shardkit.forecast.values import Finding, Forecast, Setting, Workload
from shardkit.units import GiB, MiB, format_count, format_duration, format_number, format_size

# Larger machines for one worker, and larger disks, are rare.
_MOST_MEMORY = 256 * GiB
_MOST_DISK = 64 * 1024 * GiB
_MOST_REQUESTS_S = 24 * 3600
# Room left where a next step is computed.
_SLACK = 1.1


class _Check(NamedTuple):
    """A figure of a forecast and its limit.

    Attributes:
        ways: Settings to try, best first; several datasets come last in any case.
    """

    is_fatal: bool
    what: str
    needed: int
    limit: Limit
    show: Callable[[int], str] = format_size
    ways: tuple[tuple[str, Setting], ...] = ()


def find(workload: Workload, setting: Setting, cost: Forecast) -> tuple[Finding, ...]:
    """Returns all limits that are passed; fatal ones come first."""
    found = [_finding(workload, setting, check) for check in _checks(workload, setting, cost) if _is_passed(check)]
    return tuple(sorted(found, key=lambda f: not f.is_fatal))


def clear(workload: Workload, setting: Setting) -> tuple[Setting, Forecast]:
    """Returns the setting, and its forecast, that is reached by following all next steps; it has no findings left.

    Where no setting helps, as with a record that no example can hold, it keeps those findings.
    """
    cost = forecast(workload, setting)
    for _ in range(16):
        findings = [f for f in find(workload, setting, cost) if f.setting != setting]
        if not findings:
            break
        # Several datasets at once may do away with all of them; the largest number does for the most.
        setting = max((f.setting for f in findings), key=lambda s: (s.num_datasets, findings[0].setting == s))
        cost = forecast(workload, setting)
    return setting, cost


def _is_passed(check: _Check) -> bool:
    return check.needed > check.limit.value


def _checks(workload: Workload, setting: Setting, cost: Forecast) -> Iterator[_Check]:
    engine = ENGINES[setting.engine]
    yield from _reach_checks(setting, engine)
    yield from _input_checks(workload, setting)
    yield from _format_checks(workload, setting, cost)
    yield from _memory_checks(setting, cost, engine)
    yield from _engine_checks(setting, cost, engine)
    yield from _store_checks(setting, cost)


def _reach_checks(setting: Setting, engine: EngineFacts) -> Iterator[_Check]:
    if engine.reaches_machine and setting.work_place != "store":
        return
    why = "a --work-dir in a store is for workers that share no disk with this machine"
    if not engine.reaches_machine:
        why = f"{setting.engine}: its workers see no file of this machine"
    found: list[tuple[str, str, Setting]] = []
    if setting.store == "local":
        step = "--store gs, or another store: give a destination such as gs://bucket/folder"
        found.append(("destination", step, msgspec.structs.replace(setting, store="gs")))
    if setting.work_place == "folder":
        step = "--work-dir gs://bucket/work, or leave it out"
        found.append(("work folder", step, msgspec.structs.replace(setting, work_place="store")))
    for name, step, candidate in found:
        yield _Check(
            True,
            f"the {name} is out of the reach of the workers",
            1,
            Limit(0, f"{why}, so convert refuses it"),
            lambda n: "a folder of this machine" if n else "",
            ((step, candidate),),
        )


def _input_checks(workload: Workload, setting: Setting) -> Iterator[_Check]:
    yield _Check(True, "one record is too large", workload.max_record_bytes, RECORD)
    row_bytes = _round_up(workload.max_row_bytes, MiB)
    larger = msgspec.structs.replace(setting, max_row_bytes=row_bytes)
    yield _Check(
        True,
        "rows of the inputs are too large",
        workload.max_row_bytes,
        Limit(setting.max_row_bytes, "--max-record-size: convert refuses larger rows"),
        ways=((f"--max-record-size {row_bytes // MiB}MiB", larger),),
    )
    most = most_datasets(workload)
    yield _Check(
        True,
        "the inputs cannot be cut into so many datasets",
        setting.num_datasets,
        Limit(most, f"the inputs: {_why_not_more(workload)}"),
        lambda n: format_number(n, "dataset"),
        ((f"--datasets {most}", msgspec.structs.replace(setting, num_datasets=most)),),
    )


def _format_checks(workload: Workload, setting: Setting, cost: Forecast) -> Iterator[_Check]:
    yield _Check(
        True,
        "shards of that size would be too many for one dataset",
        _wanted_shards(part_of(workload, setting.num_datasets), setting),
        SHARDS,
        lambda n: format_number(n, "shard"),
        tuple(_fewer_shards(workload, setting, cost)),
    )
    yield _Check(True, "the manifest lists too many input files", cost.manifest_list_bytes, MANIFEST)
    yield _Check(
        False,
        "groups of the shuffle are larger than they should be (inputs in random order can do with --no-shuffle)",
        cost.max_group_bytes,
        GROUP,
    )


def _memory_checks(setting: Setting, cost: Forecast, engine: EngineFacts) -> Iterator[_Check]:
    memory = Limit(setting.worker_memory_bytes, "--worker-memory")
    parts = [
        ("a worker needs more memory than it has", cost.worker_bytes),
        ("the worker that lays out and commits needs more memory than it has", cost.gather_bytes),
    ]
    if engine.memory_factor:
        parts.append(("the runner holds shuffled data in memory, and has too little", cost.runner_bytes))
    if engine.holds_key:
        parts.append(("the values of one key do not fit into a worker's memory", cost.key_bytes))
    for what, needed in parts:
        yield _Check(True, what, needed, memory, ways=tuple(_more_memory(setting, needed)))


def _engine_checks(setting: Setting, cost: Forecast, engine: EngineFacts) -> Iterator[_Check]:
    yield _Check(True, "the values of one key are too large", cost.key_bytes, engine.key)
    if engine.request is not None:
        what = "the job has too many input splits to be submitted"
        yield _Check(True, what, cost.request_bytes, engine.request)
    if engine.workers is not None:
        fewer = msgspec.structs.replace(setting, num_workers=engine.workers.value)
        yield _Check(
            True,
            "there are too many workers",
            setting.num_workers,
            engine.workers,
            lambda n: format_number(n, "worker"),
            ((f"--workers {engine.workers.value}", fewer),),
        )
    disk = engine.disk if setting.disk_bytes is None else Limit(setting.disk_bytes, "--disk")
    if disk is not None:
        more = _round_up(int(cost.disk_bytes * _SLACK), GiB)
        larger = msgspec.structs.replace(setting, disk_bytes=more)
        ways = ((f"--disk {more // GiB}GiB", larger),) if more <= _MOST_DISK else ()
        whose = "the disk is" if is_one_machine(setting) else "the disk of a worker is"
        yield _Check(True, f"{whose} too small for {disk_holds(setting)}", cost.disk_bytes, disk, ways=ways)


def _store_checks(setting: Setting, cost: Forecast) -> Iterator[_Check]:
    if setting.store == "local":
        return
    if cost.shard_bytes > OBJECT.value:
        smaller = msgspec.structs.replace(setting, shard_bytes=OBJECT.value // 2, num_shards=None)
        ways: tuple[tuple[str, Setting], ...] = ((f"--shard-size {OBJECT.value // 2 // GiB}GiB", smaller),)
        yield _Check(True, "a shard is too large for the store", cost.shard_bytes, OBJECT, ways=ways)
    # Elsewhere the spool is on a disk, shared or not.
    in_store = cost.num_spool_requests if carries_bytes(setting) else 0
    for what, number, rate in (
        ("putting the shards takes long at the rate that the store takes", cost.num_put_requests, PUTS_PER_S),
        ("reading the spool takes long at the rate that the store takes", in_store, GETS_PER_S),
    ):
        limit = Limit(_MOST_REQUESTS_S * rate.value, f"a day at most; {rate.source}")
        yield _Check(False, what, number, limit, functools.partial(_requests, rate.value))


def _requests(per_s: int, number: int) -> str:
    return f"{format_count(number)} requests, {format_duration(number / per_s)}"


def _wanted_shards(work: Workload, setting: Setting) -> int:
    if setting.num_shards is not None:
        return setting.num_shards * len(work.shares)
    fraction = 1 / work.ratio if setting.compression == "gzip" else 1.0
    return round(work.num_framed_bytes * fraction / setting.shard_bytes)


def _fewer_shards(workload: Workload, setting: Setting, cost: Forecast) -> Iterator[tuple[str, Setting]]:
    if setting.num_shards is not None:
        fewer = SHARDS.value // len(workload.shares)
        yield f"--num-shards {fewer}", msgspec.structs.replace(setting, num_shards=fewer)
        return
    larger = _round_up(int(-(-cost.num_bytes // SHARDS.value) * _SLACK), MiB)
    if larger <= _most_shard_bytes(setting):
        yield f"--shard-size {larger // MiB}MiB", msgspec.structs.replace(setting, shard_bytes=larger)


def _most_shard_bytes(setting: Setting) -> int:
    engine = ENGINES[setting.engine]
    disk = setting.disk_bytes or (_MOST_DISK if engine.disk is None else engine.disk.value)
    # Larger ones take hours to make and to read, and one lost worker costs that much.
    return min(disk // 4, 64 * GiB)


def _more_memory(setting: Setting, needed: int) -> Iterator[tuple[str, Setting]]:
    fewer = setting.num_workers * setting.worker_memory_bytes // needed
    if is_one_machine(setting) and setting.num_workers > 1:
        # Four threads share a process, and so the memory that it takes by itself.
        for number in sorted({max(1, fewer), max(1, fewer // 4 * 4), 1}, reverse=True):
            yield f"--workers {number}", msgspec.structs.replace(setting, num_workers=number)
    wanted = _round_up(int(needed * _SLACK), GiB)
    # Data that is too large for any machine may fit in parts.
    for memory in [wanted] if wanted <= _MOST_MEMORY else [8 * GiB, 64 * GiB, _MOST_MEMORY]:
        if memory > setting.worker_memory_bytes:
            larger = msgspec.structs.replace(setting, worker_memory_bytes=memory)
            yield f"--worker-memory {memory // GiB}GiB", larger


def _finding(workload: Workload, setting: Setting, check: _Check) -> Finding:
    def remains(candidate: Setting) -> bool:
        cost = forecast(workload, candidate)
        return any(c.what == check.what and _is_passed(c) for c in _checks(workload, candidate, cost))

    show = check.show
    if show(check.needed) == show(check.limit.value):
        show = _in_bytes
    step, chosen = _way_out(workload, setting, check, remains)
    return Finding(
        is_fatal=check.is_fatal,
        what=check.what,
        needed=show(check.needed),
        limit=show(check.limit.value),
        source=check.limit.source,
        next_step=step,
        setting=chosen,
    )


def _in_bytes(number: int) -> str:
    # Exact, because two sizes that are almost the same look equal when they are rounded.
    return format_number(number, "byte")


def _way_out(
    workload: Workload, setting: Setting, check: _Check, remains: Callable[[Setting], bool]
) -> tuple[str, Setting]:
    """Returns the first way that does away with a limit; several datasets do where one setting alone does not."""
    if check.limit == RECORD:
        return "Leave such rows out, or cut them into several", setting
    for step, candidate in check.ways:
        if not remains(candidate):
            return step, candidate
    # Parts of less than a MiB are of no use, unless the files are as small as that.
    most = min(most_datasets(workload), max(1, workload.num_framed_bytes // MiB, workload.num_files))
    for step, base in (("", setting), *check.ways):
        needed = int(setting.num_datasets * check.needed * _SLACK)
        least = max(setting.num_datasets + 1, -(-needed // check.limit.value))
        for number in _doubled(least, most):
            candidate = msgspec.structs.replace(base, num_datasets=number)
            if not remains(candidate):
                cut = f"--datasets {number}: cut the inputs into so many, and convert each one separately"
                return f"{step} and {cut}" if step else cut, candidate
    return _nothing_helps(workload, most), setting


def _doubled(number: int, most: int) -> Iterator[int]:
    while number < most:
        yield number
        number *= 2
    yield most


def _nothing_helps(workload: Workload, most: int) -> str:
    if most < most_datasets(workload):
        return "No number of datasets is enough, not even of parts of a MiB each"
    text = f"No number of datasets is enough: there can be no more than {_why_not_more(workload)}"
    return f"{text}. Cut the files into smaller ones first" if _stays_whole(workload) else text


def _why_not_more(workload: Workload) -> str:
    if _stays_whole(workload):
        return f"{format_number(workload.num_files, 'file')} that cannot be read in parts"
    return f"{format_number(workload.num_rows, 'row')} in the inputs"


def _stays_whole(workload: Workload) -> bool:
    return not workload.is_cut and workload.num_files <= workload.num_rows


def _round_up(number: int, unit: int) -> int:
    return max(1, -(-number // unit)) * unit
