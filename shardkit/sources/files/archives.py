"""Archives among the inputs, listed as the folders that they stand for.

A ZIP archive, and a tar that is no WebDataset, becomes its members. So does a tar in a tar: the archive of ImageNet
holds one for each class. A tar is a WebDataset if most members share their names up to the first dot with a neighbour,
as `1.jpg` and `1.cls` do, but not as `cat.0.jpg` and `cat.1.jpg` do; and else if most are columns such as `.json` or
`.npy`. One that holds tables, or folders of several splits, is none.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from glob import escape
from typing import BinaryIO, NamedTuple, cast

import msgspec

from shardkit.encoding.byte_stream import ByteStream
from shardkit.errors import BadInputError, DamagedFileError, UnsafeInputError
from shardkit.file_types import COMPRESSED_PATTERN, compression_of, foreign_format, has_image_suffix
from shardkit.messages import printable, shown
from shardkit.sources.base import ArchiveMember, RawFile, SourceOptions, place
from shardkit.sources.file_globs import glob_options, without_excluded
from shardkit.sources.files.archive_members import remember_head
from shardkit.sources.files.expansion_limit import expansion_error, largest_expansion
from shardkit.sources.files.streams import open_raw, open_stored, open_stream, read_exactly, read_head
from shardkit.sources.files.tar_headers import BLOCK_BYTES, is_tar
from shardkit.sources.files.tar_stream import TarDamageError, TarMember, TarStream, cut_name, tar_error, unsafe_name
from shardkit.sources.files.zip_directory import NoDirectoryError, ZipEntry, ZipError, ZipUnsafeError, read_directory
from shardkit.sources.split_words import split_in_name
from shardkit.units import KiB, format_number

ARCHIVE_HEAD_BYTES = BLOCK_BYTES
MAX_MEMBERS = 1_000_000

_LOOKED_AT_MEMBERS = 1_000
_HEAD_BYTES = 16
_REMEMBERED_BYTES = 64 * KiB
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
# ZIP archives that are used as documents, programs, models or arrays.
_OTHER_ZIPS = re.compile(
    r"\.(npz|docx|xlsx|xlsm|pptx|odt|ods|odp|epub|jar|war|apk|whl|egg|keras|pt|pth|ckpt|kmz|vsix)", re.IGNORECASE
)
_COMPRESSED = re.compile(f"{COMPRESSED_PATTERN}$", re.IGNORECASE)
_TAR_NAME = re.compile(f"\\.(?:tar(?:{COMPRESSED_PATTERN})?|tgz|tbz2?|txz)$", re.IGNORECASE)
_TABLES = re.compile(
    r"\.(csv|tsv|jsonl|ndjson|parquet|arrow|feather|ipc|orc|avro|tfrecord|tfrecords|sqlite3?|db3?|tar)",
    re.IGNORECASE,
)
_IDX = re.compile(r"-idx[1-9]-ubyte$")
# Columns that are samples also where no file is called like its neighbour.
_OF_SAMPLES = re.compile(r"\.(json|cls2?|index|pyd|pickle|pth|npy|ten|mp|msg|cbor)", re.IGNORECASE)
_OF_WEBDATASET = re.compile(
    r"jpe?g|png|webp|gif|bmp|tiff?|pp?gm|ppm|wav|flac|ogg|mp3|mp4|avi|txt|text|transcript|caption|json|cls2?|index|inx|"
    r"id|count|pyd|pickle|pth|np[yz]|ten|tb|mp|msg|cbor|bin",
    re.IGNORECASE,
)


class Members(NamedTuple):
    """What an archive holds.

    Attributes:
        files: Its members, named within the archive, sorted unless it can be read from front to back only.
    """

    files: tuple[RawFile, ...]
    note: str = ""


def expand_archive(file: RawFile, head: bytes, options: SourceOptions) -> Members | None:
    """Returns the members of an archive, None for anything else and for a WebDataset.

    Hidden members are passed over. Names with `..`, absolute ones, links, devices and names that come twice are
    refused, and nothing is extracted: a member is a place in the archive.

    Args:
        head: Its first bytes as stored, ARCHIVE_HEAD_BYTES of them.
        options: Their format may say that a tar is a WebDataset, or is none.

    Raises:
        BadInputError: If the archive holds what is not read.
        DamagedFileError: If it is damaged, or becomes too large.
        StorageError: If the store fails.
    """
    suffix = _suffix_of(file.name).lower()
    if file.compression is None and (head.startswith(_ZIP_STARTS) or suffix == ".zip"):
        if _OTHER_ZIPS.fullmatch(suffix) or foreign_format(head) == "a file of PyTorch":
            return None
        return _zip_members(file, head.startswith(_ZIP_STARTS), options)
    head = head if file.compression is None else _decompressed_head(file)
    if not is_tar(head, file.name) or options.format == "webdataset":
        return None
    return _tar_members(file, options)


def _decompressed_head(file: RawFile) -> bytes:
    try:
        return read_head(file, ARCHIVE_HEAD_BYTES)
    except DamagedFileError:
        # Reading the file reports the damage.
        return b""


def _zip_members(file: RawFile, is_sure: bool, options: SourceOptions) -> Members | None:
    with open_raw(file) as raw:
        try:
            entries = read_directory(raw, file.num_bytes, MAX_MEMBERS)
        except NoDirectoryError as error:
            if not is_sure or _suffix_of(file.name).lower() != ".zip":
                return None
            raise DamagedFileError(
                "the ZIP archive is cut off or damaged",
                where=place(file),
                why=str(error),
                next_step="Fetch or make it anew, or leave it out",
            ) from error
        except ZipError as error:
            kind = UnsafeInputError if isinstance(error, ZipUnsafeError) else BadInputError
            raise _refused("ZIP", file, str(error), kind) from error
    if any(e.name == "[Content_Types].xml" for e in entries):
        return None
    for entry in entries:
        if (unsafe := unsafe_name(entry.name)) is not None:
            raise _refused("ZIP", file, f"{shown(entry.name)}: {unsafe}", UnsafeInputError)
    found = [_zip_member(file, e) for e in entries if not _is_hidden(e.name)]
    return _checked(file, _with_nested(sorted(map(_with_compression, found), key=_name_of), options), "ZIP")


def _zip_member(file: RawFile, entry: ZipEntry) -> RawFile:
    if entry.num_bytes > largest_expansion(entry.num_stored_bytes, file.max_expansion):
        where = f"{place(file)}, member {shown(entry.name)}"
        raise expansion_error(where, entry.num_stored_bytes, file.max_expansion)
    member = ArchiveMember(
        kind="zip",
        start=entry.start,
        num_stored_bytes=entry.num_stored_bytes,
        is_deflated=entry.is_deflated,
        crc32=entry.crc32,
        archive_num_bytes=file.num_bytes,
    )
    return msgspec.structs.replace(
        file, name=entry.name, num_bytes=entry.num_bytes, compression="archive", member=member
    )


def _with_compression(file: RawFile) -> RawFile:
    # Images are not opened for this, as in folders.
    if has_image_suffix(file.name) or file.num_bytes == 0:
        return file
    try:
        with open_stored(file) as stream:
            compression = compression_of(read_exactly(stream, _HEAD_BYTES))
    except DamagedFileError:
        # Reading the member reports it.
        return file
    return file if compression is None else msgspec.structs.replace(file, compression=compression)


def _are_samples(names: Sequence[str]) -> bool:
    plain = [_COMPRESSED.sub("", name) for name in names]
    suffixes = [_suffix_of(name) for name in plain]
    if any(map(_TABLES.fullmatch, suffixes)) or any(map(_IDX.search, plain)) or _tell_splits(names):
        return False
    parts = [found for name in names if (found := cut_name(name)) is not None]
    groups = [(key, [own for _, own in group]) for key, group in itertools.groupby(parts, lambda part: part[0])]
    # A folder of samples has many; `cat/cat.0.jpg` and `cat/cat.1.jpg` are one group, and `dog/` holds its like.
    alike = Counter((key.rpartition("/")[0], tuple(own)) for key, own in groups)
    num_grouped = sum(
        len(own)
        for key, own in groups
        if len(own) > 1 and _is_sample(own, has_like=alike[key.rpartition("/")[0], tuple(own)] > 1)
    )
    if 2 * num_grouped > len(names):
        return True
    num_of_samples = sum(_OF_SAMPLES.fullmatch(suffix) is not None for suffix in suffixes)
    return 2 * num_of_samples > len(names) or not names


def _tell_splits(names: Sequence[str]) -> bool:
    found = {part.split for name in names if (part := split_in_name(name.rpartition("/")[0])) is not None}
    return len(found) > 1


def _is_sample(extensions: Sequence[str], *, has_like: bool) -> bool:
    """Whether neighbours of one name are the columns of a sample, and no numbered files."""
    suffixes = [extension.rpartition(".")[2] for extension in extensions]
    if "xml" in suffixes or not any(_OF_WEBDATASET.fullmatch(suffix) for suffix in suffixes):
        return False
    counts = Counter(suffixes)
    # As `0.jpg` and `1.jpg` are, or `train.tokens` and `test.tokens`; not `left.jpg` and `right.jpg` of many samples.
    is_numbered = len(counts) < len(suffixes)
    is_named = any(extension.rpartition(".")[0].isalpha() for extension in extensions) or 1 in counts.values()
    return not is_numbered or (has_like and is_named)


def _tar_members(file: RawFile, options: SourceOptions) -> Members | None:
    found = _Found(file, is_judged=options.format is not None)
    try:
        with open_stream(file, is_read_through=file.compression is not None) as stream:
            tar = _tar_of(file, stream)
            for member in tar.members():
                found.add(member, tar)
    except _WebDatasetError:
        return None
    except (TarDamageError, DamagedFileError) as error:
        # The members in front of the damage decide the format. Reading a WebDataset reports the damage.
        if found.is_webdataset():
            return None
        raise (tar_error(error, file) if isinstance(error, TarDamageError) else error) from error
    if found.is_webdataset():
        return None
    members = found.members()
    return _checked(file, members if file.member else _with_nested(members, options), "tar")


def _with_nested(members: list[RawFile], options: SourceOptions) -> list[RawFile]:
    """Returns members with what a tar among them holds in place of it, unless it is a WebDataset or excluded.

    Raises:
        BadInputError: If a tar is compressed or inside of a ZIP archive: the outer archive has no bytes of its members.
    """
    files = []
    for member in members:
        nested = _nested(member, options) if _TAR_NAME.search(member.name) else None
        inner = () if nested is None else nested.files
        files += [msgspec.structs.replace(file, name=f"{member.name}/{file.name}") for file in inner] or [member]
    return files


def _nested(file: RawFile, options: SourceOptions) -> Members | None:
    if not without_excluded([file], options) or not is_tar(_decompressed_head(file), file.name):
        return None
    members = _tar_members(file, options)
    if members is None or file.member is None or (file.member.kind == "tar" and file.compression in (None, "archive")):
        return members
    raise BadInputError(
        "an archive is inside of an archive",
        where=place(file),
        why="its files can be read there only if both are tars and the inner one is not compressed",
        next_step=f"Unpack the outer one and name the folder, or leave it out with "
        f"{glob_options('--exclude', [escape(file.name)])}",
    )


class _WebDatasetError(Exception):
    pass


class _Found:
    # The members of a tar, and the first of their names for telling whether it is a WebDataset.
    def __init__(self, file: RawFile, *, is_judged: bool) -> None:
        self._file = file
        self._is_judged = is_judged
        self._names: list[str] = []
        self._num_looked_at = 0
        self._files: list[RawFile] = []
        self._refusal: BadInputError | None = None

    def is_webdataset(self) -> bool:
        return not self._is_judged and _are_samples(self._names)

    def add(self, member: TarMember, tar: TarStream) -> None:
        if self._num_looked_at == _LOOKED_AT_MEMBERS:
            if self.is_webdataset():
                raise _WebDatasetError
            self._is_judged = True
        self._num_looked_at += 1
        if self._refusal is None and member.refusal is not None:
            kind = BadInputError if unsafe_name(member.name) is None else UnsafeInputError
            self._refusal = _refused("tar", self._file, f"{shown(member.name)} is refused: {member.refusal}", kind)
        if self._is_judged:
            self._check()
        if _is_hidden(member.name):
            return
        if len(self._files) == MAX_MEMBERS:
            why = f"it has more than the {MAX_MEMBERS:,} members that are read"
            raise _refused("tar", self._file, why, UnsafeInputError)
        if not self._is_judged:
            self._names.append(member.name)
        if self._refusal is None:
            self._files.append(_tar_member(self._file, member, tar))

    def members(self) -> list[RawFile]:
        self._check()
        if self._file.compression is None:
            self._files.sort(key=_name_of)
        return self._files

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal


def _tar_of(file: RawFile, stream: ByteStream) -> TarStream:
    if file.compression is not None:
        return TarStream(stream)
    return TarStream(stream, cast(BinaryIO, stream), file.num_bytes)


def _tar_member(file: RawFile, member: TarMember, tar: TarStream) -> RawFile:
    outer = file.member
    place_in = ArchiveMember(
        kind="tar",
        start=member.data_start + (outer.start if outer else 0),
        num_stored_bytes=member.num_bytes,
        archive_num_bytes=outer.archive_num_bytes if outer else file.num_bytes,
        archive_compression=outer.archive_compression if outer else file.compression,
    )
    head = tar.read(_HEAD_BYTES if file.compression is None else _REMEMBERED_BYTES)
    remember_head(file, place_in, head)
    compression = None if has_image_suffix(member.name) else compression_of(head)
    if compression is None and file.compression is not None:
        compression = "archive"
    return msgspec.structs.replace(
        file, name=member.name, num_bytes=member.num_bytes, compression=compression, member=place_in
    )


def _checked(file: RawFile, members: list[RawFile], kind: str) -> Members:
    counts = Counter(m.name for m in members)
    repeated = next((name for name, count in counts.items() if count > 1), None)
    if repeated is not None:
        raise _refused(kind, file, f"it has {shown(repeated)} {counts[repeated]} times")
    if not members:
        return Members((), f"{printable(file.name)} is an empty archive: 0 rows")
    if kind == "ZIP":
        return Members(tuple(members))
    return Members(
        tuple(members),
        f"{printable(file.name)} is read as a folder of {format_number(len(members), 'file')}; "
        "--format webdataset makes a row of each group of members that are called alike",
    )


def _is_hidden(name: str) -> bool:
    return name.startswith("__MACOSX/") or any(part.startswith(".") for part in name.split("/"))


def _suffix_of(name: str) -> str:
    stem, dot, suffix = name.rpartition("/")[2].rpartition(".")
    return f"{dot}{suffix}" if stem and dot else ""


def _name_of(file: RawFile) -> str:
    return file.name


def _refused(kind: str, file: RawFile, why: str, error: type[BadInputError] = BadInputError) -> BadInputError:
    return error(
        f"the {kind} archive is refused",
        where=place(file),
        why=why,
        next_step="Pack it anew with plain files only, or unpack it and name the folder",
    )
