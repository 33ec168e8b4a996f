"""Bugs, each of a kind that others shipped, put into a conversion to see that the trials find them."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BUGS: dict[str, Callable[[], None]] = {}
_MANIFEST = ".json"
_POLL_S, _LOOK_LIMIT_S = 0.01, 30.0
_COMPARISON = "if found != num_bytes:"


def put_in_parts_of(num_bytes: int) -> None:
    """Makes uploads of more than two such parts go in parts, in this process and those that it forks."""
    from shardkit.storage import objects

    replace_in(objects, "_PART_BYTES", num_bytes)


def planted(function: Callable[[], None]) -> Callable[[], None]:
    BUGS[function.__name__] = function
    return function


@planted
def commit_by_rename() -> None:
    """The last of several writers wins, and the others were told that they had."""
    from shardkit.storage import files as storage

    replace_in(storage, "commit_exclusive", write_over)


@planted
def commit_after_a_look() -> None:
    """Whether a version is there is asked, and then it is written, as fsspec's own exclusive create does."""
    from shardkit.storage import files as storage
    from shardkit.storage.objects import check_own

    def commit(path: str, content: bytes) -> None:
        if Path(path).exists():
            check_own(path, content, Path(path).read_bytes())
        elif path.endswith(_MANIFEST):
            _wait_for_another_look(Path(path).parents[2])
        write_over(path, content)

    replace_in(storage, "commit_exclusive", commit)


def _wait_for_another_look(folder: Path) -> None:
    """Waits until two processes have looked and found nothing, as any two may: on a busy machine they rarely meet."""
    (folder / f"looked-{os.getpid()}").touch()
    end = time.monotonic() + _LOOK_LIMIT_S
    while len(list(folder.glob("looked-*"))) < 2 and time.monotonic() < end:
        time.sleep(_POLL_S)


@planted
def manifest_before_shards() -> None:
    """The manifest is there before what it names."""
    from shardkit.dataset import commit as commits
    from shardkit.storage import files as storage

    commit, pending = storage.commit_exclusive, []

    def put(local: Path, destination: str) -> None:
        pending.append((local.read_bytes(), destination))

    def commit_first(path: str, content: bytes) -> None:
        commit(path, content)
        if path.endswith(_MANIFEST):
            for shard, destination in pending:
                write_over(destination, shard)

    replace_in(storage, "put_file", put)
    replace_in(storage, "commit_exclusive", commit_first)
    # The commit looks whether they are there.
    replace_in(commits, "_check_present", lambda *args: None)


@planted
def old_deleted_first() -> None:
    """The old version goes before the new one is there, as Beam's own sink does."""
    from shardkit.storage import files as storage

    commit = storage.commit_exclusive

    def delete_and_commit(path: str, content: bytes) -> None:
        if path.endswith(_MANIFEST):
            for old in Path(path).parent.glob(f"*{_MANIFEST}"):
                old.unlink()
        commit(path, content)

    replace_in(storage, "commit_exclusive", delete_and_commit)


@planted
def cleanup_after_an_unknown_answer() -> None:
    """A commit that was not answered counts as failed, and its shards are removed."""
    from shardkit.errors import StorageError
    from shardkit.storage import files as storage
    from shardkit.storage.clients import client_of
    from shardkit.storage.requests import call

    def create(path: str, content: bytes) -> None:
        try:
            call(path, "pipe_file", path, content, is_written=True, mode="create")
        except Exception as error:
            client, root = client_of(path), path.partition("/manifests/")[0]
            for shard in client.target.find(f"{root}/data"):
                client.target.rm_file(shard)
            raise StorageError("the commit failed") from error

    replace_in(storage, "create_object", create)


@planted
def existing_is_a_conflict() -> None:
    """Whoever is told that the commit exists takes it for another one's."""
    from shardkit.errors import ConflictError
    from shardkit.storage import files as storage
    from shardkit.storage.requests import ask

    def create(path: str, content: bytes) -> None:
        try:
            ask(path, "pipe_file", path, content, is_written=True, mode="create")
        except FileExistsError as error:
            raise ConflictError("another conversion committed first") from error

    replace_in(storage, "create_object", create)


@planted
def first_answer_is_believed() -> None:
    """A commit that is read back and cut off on its way is taken for another one's."""
    from shardkit.storage import objects

    replace_in(objects, "_read_twice", lambda path, expected, left_s: objects._answer_once(path, "cat_file", left_s))


@planted
def nothing_is_asked_again() -> None:
    """The first error of a store is the last."""
    import tenacity

    replace_in(tenacity, "stop_after_delay", lambda seconds: tenacity.stop_after_attempt(1))


@planted
def short_put_is_believed() -> None:
    """What a store took is what it keeps."""
    from shardkit.storage import files as storage
    from shardkit.storage.requests import ask

    def put(local: Path, path: str) -> None:
        ask(path, "put_file", str(local), path, is_written=True)

    replace_in(storage, "put_object", put)


@planted
def stored_size_is_not_compared() -> None:
    """The size of what was put is asked, and the answer ignored."""
    from shardkit.storage import files as storage
    from shardkit.storage import objects

    source = inspect.getsource(objects.put_object)
    assert source.count(_COMPARISON) == 1, "the stored size is compared in another way"
    exec(source.replace(_COMPARISON, "if False:"), vars(objects))  # noqa: S102 - its own source
    replace_in(storage, "put_object", objects.put_object)


@planted
def no_length_check() -> None:
    """An input is what the store gave, whatever its size."""
    from shardkit.storage import files as storage
    from shardkit.storage.requests import ask

    replace_in(storage, "open_object", lambda path: io.BytesIO(ask(path, "cat_file", start=0, end=2**40)))


@planted
def no_checksum_check() -> None:
    """A shard that an earlier attempt left is right if it is there."""
    from shardkit.conversion.shards import shard_file
    from shardkit.storage import files as storage

    replace_in(shard_file, "is_right", lambda plan, shard: storage.exists(storage.join(plan.destination, shard.path)))


@planted
def off_by_one() -> None:
    """The shard table counts one example too many."""
    import msgspec

    from shardkit.conversion.commit import commit

    encode: Callable[[list[Any]], bytes] = vars(commit)["encode_shard_table"]

    def encode_wrongly(shards: list[Any]) -> bytes:
        first = msgspec.structs.replace(shards[0], num_examples=shards[0].num_examples + 1)
        return encode([first, *shards[1:]])

    replace_in(commit, "encode_shard_table", encode_wrongly)


@planted
def swallowed_put() -> None:
    """A shard that could not be put counts as put."""
    from shardkit.storage import files as storage
    from shardkit.storage.requests import call

    def put(local: Path, path: str) -> None:
        with contextlib.suppress(Exception):
            call(path, "put_file", str(local), path, is_written=True)

    replace_in(storage, "put_object", put)


@planted
def put_in_place() -> None:
    """A shard is written under its final name, over what is there."""
    from shardkit.storage import files as storage

    def put(local: Path, destination: str) -> None:
        Path(destination).parent.mkdir(parents=True, exist_ok=True)
        with open(destination, "wb") as file:
            file.write(local.read_bytes())
            os.fsync(file.fileno())

    replace_in(storage, "put_file", put)


@planted
def one_folder_for_all() -> None:
    """Shards of every conversion have the same names."""
    from shardkit.conversion.plan import Plan

    replace_in(Plan, "data_path", property(lambda plan: "data/all"))


@planted
def exit_code_0() -> None:
    """An error is shown, and the command ends as if there were none."""
    import shardkit.cli

    end = shardkit.cli._end
    replace_in(shardkit.cli, "_end", lambda error: end(error) and 0)


@planted
def no_fsync() -> None:
    """Nothing is made to last."""
    replace_in(os, "fsync", lambda handle: None)


@planted
def no_fsync_of_folders() -> None:
    """Contents are made to last, their names are not."""
    from shardkit.storage import files as storage

    replace_in(storage, "fsync_folder", lambda folder: None)


@planted
def leftovers_stay() -> None:
    """What a killed process left is never removed."""
    from shardkit.storage import files as storage

    replace_in(storage, "remove_dead_temporaries", lambda folder: None)


@planted
def nothing_was_committed() -> None:
    """An error after the commit is told as one before it."""
    from shardkit.conversion.run import convert as outcome

    replace_in(outcome, "may_be_committed", lambda plan: False)


def replace_in(where: Any, name: str, bug: Any) -> None:
    assert hasattr(where, name), f"{where} has no {name} any more"
    setattr(where, name, bug)


def write_over(path: str, content: bytes) -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid():016x}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, target)
    handle = os.open(target.parent, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
