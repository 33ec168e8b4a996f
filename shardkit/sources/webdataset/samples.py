"""The samples of a WebDataset archive: neighbouring members whose names agree up to the first dot.

The rule is that of the `webdataset` package: of `a/b/000017.seg.png` the key is `a/b/000017` and the extension
`seg.png`, in lower case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from shardkit.file_types import is_document_name
from shardkit.messages import shown
from shardkit.sources.base import MAX_RAW_BYTES, SourceOptions
from shardkit.sources.files.tar_headers import padding_of
from shardkit.sources.files.tar_stream import TarMember, TarStream, cut_name
from shardkit.units import format_size

MAX_EXTENSIONS = 256

_RECENT_KEYS = 65_536


class Sample(msgspec.Struct):
    """One group of members.

    Attributes:
        key: What their names have in common.
        first_byte: Where the first header starts, after decompression.
        data: Content by extension.
        problem: Why it cannot be used, None if nothing is known to be wrong.
        raw: The members as they are in the archive, the first MAX_RAW_BYTES of them.
        num_raw_bytes: Of `raw`, without padding.
    """

    key: str
    first_byte: int
    data: dict[str, bytes] = {}
    problem: str | None = None
    raw: list[bytes] = []
    num_bytes: int = 0
    num_raw_bytes: int = 0


def is_passed_over(name: str) -> bool:
    """Whether a member is no part of a sample and not missed: hidden, or called like a document without a dot."""
    base = name.rpartition("/")[2]
    return base.startswith(".") or "__MACOSX/" in name or ("." not in base and is_document_name(name))


def read_samples(tar: TarStream, options: SourceOptions, known: Collection[str] | None = None) -> Iterator[Sample]:
    """Yields the samples of an archive; those that cannot be used say why.

    Args:
        known: The extensions that are columns; None takes all.

    Raises:
        TarDamageError: If the archive is cut off or damaged.
    """
    sample: Sample | None = None
    for member in tar.members():
        parts = cut_name(member.name)
        if parts is None and member.refusal is None and is_passed_over(member.name):
            continue
        key = member.name if parts is None else parts[0]
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = Sample(key=key, first_byte=member.first_byte)
        _add(sample, member, None if parts is None else parts[1], tar, options, known)
    if sample is not None:
        yield sample


def _add(
    sample: Sample,
    member: TarMember,
    extension: str | None,
    tar: TarStream,
    options: SourceOptions,
    known: Collection[str] | None,
) -> None:
    problem = _problem_of(sample, member, extension, options, known)
    num_bytes = member.num_bytes if extension is not None else 0
    if problem is not None:
        num_bytes = min(num_bytes, max(0, MAX_RAW_BYTES - sample.num_raw_bytes))
    data = _read(tar, num_bytes)
    if problem is None and extension is not None:
        sample.data[extension] = data
        sample.num_bytes += len(data)
    if sample.num_raw_bytes < MAX_RAW_BYTES:
        sample.raw += [member.header, data, bytes(padding_of(len(data)))]
        sample.num_raw_bytes += len(member.header) + len(data)
    sample.problem = sample.problem or problem


def _problem_of(
    sample: Sample, member: TarMember, extension: str | None, options: SourceOptions, known: Collection[str] | None
) -> str | None:
    if member.refusal is not None:
        return f"{shown(member.name)} is refused: {member.refusal}"
    if extension is None:
        return f"{shown(member.name)} has no extension, which would name its column"
    if extension in sample.data:
        return f"it has {shown(extension)} twice"
    if known is not None and extension not in known:
        return f"the extension {shown(extension)} is no column: no sample that the columns were inferred from has it"
    if len(sample.data) >= MAX_EXTENSIONS:
        return f"it has more than {MAX_EXTENSIONS} members: the key ends at the first dot of a name"
    if sample.num_bytes + member.num_bytes > options.max_record_bytes:
        limit = format_size(options.max_record_bytes)
        return f"{shown(member.name)} makes it larger than the {limit} that a record may have"
    return None


def _read(tar: TarStream, num_bytes: int) -> bytes:
    first = tar.read(num_bytes)
    if len(first) == num_bytes:
        return first
    parts, missing = [first], num_bytes - len(first)
    while missing and (part := tar.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


class SeenKeys:
    """The keys of an archive, 8 bytes each, to tell when one comes again."""

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._sorted: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)

    def add(self, key: str) -> bool:
        """Takes in a key, and returns whether it was there already."""
        digest = xxhash.xxh3_64_intdigest(key.encode())
        if digest in self._recent or self._is_sorted_in(digest):
            return True
        self._recent.add(digest)
        if len(self._recent) == _RECENT_KEYS:
            recent = np.fromiter(self._recent, dtype=np.uint64, count=_RECENT_KEYS)
            self._sorted = np.sort(np.concatenate([self._sorted, recent]))
            self._recent.clear()
        return False

    def _is_sorted_in(self, digest: int) -> bool:
        if not len(self._sorted):
            return False
        position = int(np.searchsorted(self._sorted, np.uint64(digest)))
        return position < len(self._sorted) and int(self._sorted[position]) == digest
