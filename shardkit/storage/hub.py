"""Datasets of the Hugging Face Hub for fsspec: `hf://datasets/OWNER/NAME[@REVISION]/path`.

The file system that huggingface_hub brings lists a whole folder to describe a file, asks twice more for each range, and
takes a hub that fails for a file that is missing. This one makes a request of each question, and creates exclusively.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import unquote

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars, get_session, hf_raise_for_status, logging

from shardkit.errors import UsageError
from shardkit.storage.locations import HUB_PATH

_TIMEOUT_S = 60.0
_COMMIT = re.compile("[0-9a-f]{40}")
_WHOLE, _NO_SUCH_RANGE = 200, 416
_LATER = frozenset({408, 409, 412, 425, 429})
# It logs what it tries again, and shows progress, by itself.
logging.set_verbosity(logging.CRITICAL)
disable_progress_bars()


class _Place(NamedTuple):
    # A path within a revision of a repository; `root` is how that was named.
    root: str
    repository: str
    revision: str
    path: str


class HubFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of datasets in revisions of repositories. Each write makes one commit.

    Args:
        endpoint: Address of the hub, else that of `HF_ENDPOINT`.
        token: Of the user, else that of `HF_TOKEN` or of `hf auth login`.
    """

    protocol = "hf"

    def __init__(self, endpoint: str | None = None, token: str | None = None, **options: Any) -> None:
        super().__init__(endpoint, token, **options)
        self._api = HfApi(endpoint=endpoint or os.environ.get("HF_ENDPOINT"), token=token)

    def pinned(self, path: str) -> str:
        """Returns a URL with the commit that its revision stands for now."""
        place = _place_of(path)
        if _COMMIT.fullmatch(place.revision):
            return path
        url = f"hf://datasets/{place.repository}@{self._head(place)}"
        return f"{url}/{place.path}" if place.path else url

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Returns what the hub says of a file or folder."""
        place = _place_of(path)
        if not place.path:
            self._head(place)
            return {"name": place.root, "size": 0, "type": "directory"}
        with _translated():
            found = self._api.get_paths_info(
                place.repository, [place.path], revision=place.revision, repo_type="dataset"
            )
        if not found:
            raise FileNotFoundError(path)
        return _described(place, found[0])

    def exists(self, path: str, **_: Any) -> bool:
        """Whether the hub says that a file or folder is there, not whether it answers."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Returns what is in a folder, or the file of this name."""
        found = self._listed(path, recursive=False)
        return found if detail else [info["name"] for info in found]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        *,
        with_times: bool = False,
        **_: Any,
    ) -> Any:
        """Returns what is below a folder; with the times of the last commits, in twenty times as many requests."""
        found: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError):
            found = {i["name"]: i for i in self._listed(path, recursive=maxdepth != 1, with_times=with_times)}
        depth = self._strip_protocol(path).count("/") + (maxdepth or 0)
        kept = {
            name: info
            for name, info in sorted(found.items())
            if (withdirs or info["type"] == "file") and (maxdepth is None or name.count("/") <= depth)
        }
        return kept if detail else list(kept)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Returns the bytes of a file, or of a range of it as far as the file goes."""
        return self.read(path, start or 0, end)[0]

    def read(self, path: str, start: int, end: int | None) -> tuple[bytes, str]:
        """Returns the bytes of a range, and the version of the file that they are of, empty if that is not said."""
        if end is not None and end <= start:
            return b"", ""
        place = _place_of(path)
        url = hf_hub_url(
            place.repository,
            place.path,
            repo_type="dataset",
            revision=place.revision,
            endpoint=self._api.endpoint,
        )
        headers = {**self._api._build_hf_headers(), "Accept-Encoding": "identity"}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        with _translated():
            answer = get_session().get(url, headers=headers, timeout=_TIMEOUT_S)
            if answer.status_code == _NO_SUCH_RANGE:
                return b"", ""
            hf_raise_for_status(answer)
        # A large file is redirected to where its bytes are; the hub's own answer has the version.
        first = (answer.history or [answer])[0].headers
        version = (first.get("X-Linked-Etag") or first.get("ETag") or "").removeprefix("W/").strip('"')
        is_whole = answer.status_code == _WHOLE
        return (answer.content[start:end] if is_whole else answer.content), version

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Commits a file; with the mode `create` it must not be there yet, and of several writers one wins."""
        place = _place_of(path)
        parent = self._head(place) if mode == "create" else None
        if parent and self.exists(f"datasets/{place.repository}@{parent}/{place.path}"):
            raise FileExistsError(path)
        # The hub refuses a commit whose parent is not the newest one.
        self._commit(place, CommitOperationAdd(place.path, value), parent)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **_: Any) -> None:
        """Commits a local file."""
        place = _place_of(rpath)
        self._commit(place, CommitOperationAdd(place.path, lpath))

    def rm_file(self, path: str) -> None:
        """Deletes a file in a commit."""
        self.rm(path)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Deletes a file, or a folder and all below it, in one commit."""
        place = _place_of(path)
        self._commit(place, CommitOperationDelete(place.path, is_folder=recursive))

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any) -> Any:
        if mode != "rb":
            raise NotImplementedError("files are written as a whole")
        return _HubFile(self, path, block_size=block_size)

    def _head(self, place: _Place) -> str:
        with _translated():
            found = self._api.dataset_info(
                place.repository, revision=place.revision, expand=["sha"], timeout=_TIMEOUT_S
            )
        return str(found.sha)

    def _listed(self, path: str, *, recursive: bool, with_times: bool = False) -> list[dict[str, Any]]:
        place = _place_of(path)
        try:
            with _translated():
                tree = self._api.list_repo_tree(
                    place.repository,
                    place.path or None,
                    recursive=recursive,
                    expand=with_times,
                    revision=place.revision,
                    repo_type="dataset",
                )
                return [_described(place, found) for found in tree]
        except FileNotFoundError:
            # It may be a file.
            return [self.info(path)]

    def _commit(
        self, place: _Place, change: CommitOperationAdd | CommitOperationDelete, parent: str | None = None
    ) -> None:
        verb = "Delete" if isinstance(change, CommitOperationDelete) else "Write"
        with _translated():
            self._api.create_commit(
                place.repository,
                [change],
                commit_message=f"{verb} {place.path}",
                repo_type="dataset",
                revision=place.revision,
                parent_commit=parent,
            )


class _HubFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read ahead. One that is replaced meanwhile is an error, not a mixture of both."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data, version = self.fs.read(self.path, start, end)
        if version and version != self.details["etag"]:
            raise OSError(errno.EBUSY, "the file was replaced while it was read")
        return bytes(data)


def _place_of(name: str) -> _Place:
    found = HUB_PATH.fullmatch(name.rstrip("/"))
    if found is None:
        raise ValueError(f"{name} is not in a dataset of the hub")
    root, repository, revision, path = found.groups()
    return _Place(root, repository, unquote(revision or "main"), path or "")


def _described(place: _Place, found: Any) -> dict[str, Any]:
    name = f"{place.root}/{found.path}"
    if not hasattr(found, "blob_id"):
        return {"name": name, "size": 0, "type": "directory"}
    version = found.lfs.sha256 if found.lfs else found.blob_id
    time = {"mtime": found.last_commit.date.timestamp()} if found.last_commit else {}
    return {"name": name, "size": found.size, "type": "file", "etag": version, **time}


@contextmanager
def _translated() -> Iterator[None]:
    """Gives errors of the hub the classes that other stores' clients use, and one line of text."""
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise UsageError(
            "the hub may not be asked", why="HF_HUB_OFFLINE is set", next_step="Unset it, or name local files"
        ) from error
    except LocalTokenNotFoundError as error:
        raise PermissionError("the hub wants a token, and there is none: set HF_TOKEN") from error
    except HfHubHTTPError as error:
        raise _failure_of(error) from error


def _failure_of(error: HfHubHTTPError) -> Exception:
    status, headers = error.response.status_code, error.response.headers
    said = " ".join((error.server_message or headers.get("X-Error-Message") or f"status {status}").split()).rstrip(".")
    if isinstance(error, GatedRepoError):
        return PermissionError(f"{said}; ask for access on the page of the dataset, and set HF_TOKEN")
    if status == 401 or (status == 403 and isinstance(error, RepositoryNotFoundError)):
        return PermissionError(f"{said}; the hub knows no such dataset or keeps it private: set HF_TOKEN")
    if status == 403:
        return PermissionError(said)
    if status == 404:
        return FileNotFoundError(said)
    if status == 429 and (wait := headers.get("Retry-After")):
        return OSError(f"too many requests; the hub asks to wait {wait} s")
    return OSError(said) if status >= 500 or status in _LATER else ValueError(said)
