"""Where datasets go in the trials: a folder, or a bucket of a server on loopback."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

from tests.support.stores.servers import KINDS, Server, serve

# The manifest holds it.
DATASET_NAME = "set"
_numbers = itertools.count(1)


class LocalPlace:
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder)

    def names(self) -> list[str]:
        """Returns the names of all files, those of work included."""
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())

    def read(self, name: str) -> bytes:
        """Returns a whole file."""
        return (self.folder / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Writes a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class StorePlace:
    """A folder of a bucket."""

    def __init__(self, url: str, client: Any) -> None:
        self.url = url
        self._client = client

    def names(self) -> list[str]:
        """Returns the names of all objects."""
        root = self.url.partition("://")[2]
        self._client.invalidate_cache()
        return sorted(path[len(root) + 1 :] for path in self._client.find(self.url))

    def read(self, name: str) -> bytes:
        """Returns a whole object."""
        return bytes(self._client.cat_file(f"{self.url}/{name}"))

    def write(self, name: str, content: bytes) -> None:
        """Writes an object."""
        self._client.pipe_file(f"{self.url}/{name}".rstrip("/"), content)

    def beside(self, name: str) -> StorePlace:
        """Returns the place of an object beside this folder; it is written by the name ``""``."""
        return StorePlace(f"{self.url.rpartition('/')[0]}/{name}", self._client)

    def num_open_uploads(self) -> int:
        """Returns how many uploads in parts were begun and neither ended nor aborted."""
        if not hasattr(self._client, "call_s3"):
            return 0
        bucket, _, prefix = self.url.partition("://")[2].partition("/")
        return len(self._client.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix).get("Uploads", ()))


Place = LocalPlace | StorePlace


class Store:
    """What makes places, of one kind.

    Args:
        name: `local`, or of a server.
        folder: For local places, and for work folders.
        server: None for local places.
    """

    def __init__(self, name: str, folder: Path, server: Server | None = None) -> None:
        self.name = name
        self._folder = folder
        self._server = server
        self._client = None if server is None else fsspec.filesystem(self.protocols[0], skip_instance_cache=True)

    @property
    def environment(self) -> Mapping[str, str]:
        """By which a conversion finds the store."""
        return {} if self._server is None else self._server.environment

    @property
    def protocols(self) -> tuple[str, ...]:
        """Of the store's URLs."""
        return () if self._server is None else (self._server.url.partition("://")[0],)

    @property
    def takes_small_parts(self) -> bool:
        """Whether uploads in parts can be tried with the small files of trials; SeaweedFS asks for 5 MiB as S3 does."""
        return self.name == "moto"

    @contextmanager
    def trial(self) -> Iterator[tuple[Place, Path]]:
        """Yields a place that is empty, and a folder for all else, both removed afterwards but for objects."""
        folder = self._folder / f"{self.name}-{next(_numbers)}"
        folder.mkdir()
        try:
            yield self.place(folder), folder
        finally:
            shutil.rmtree(folder)

    def place(self, folder: Path) -> Place:
        """Returns the place that goes with a folder."""
        if self._server is None:
            return LocalPlace(folder / "place" / DATASET_NAME)
        return StorePlace(f"{self._server.url}/{folder.name}/{DATASET_NAME}", self._client)


@contextmanager
def open_store(name: str, folder: Path) -> Iterator[Store]:
    """Yields a store, its server started."""
    if name == "local":
        yield Store(name, folder)
        return
    log_folder = folder / f"server-{name}"
    log_folder.mkdir()
    before = dict(os.environ)
    # As small as in the trials: moto refuses parts as S3 does.
    os.environ["S3_UPLOAD_PART_MIN_SIZE"] = "256"
    with serve(name, log_folder) as server:
        # Clients that are made here find it as a conversion does.
        os.environ.update(server.environment)
        try:
            yield Store(name, folder, server)
        finally:
            os.environ.clear()
            os.environ.update(before)


def is_there(name: str) -> bool:
    """Returns whether a store's server is installed."""
    return name == "local" or KINDS[name].find() is not None
