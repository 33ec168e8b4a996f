"""A size that no file has, in the header of an archive or an array, is refused as unsafe: all formats alike."""

import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from shardkit.cli import main
from shardkit.errors import ShardkitError, UnsafeFileError
from tests.support.files.archive_makers import TABLES, patched, tar_of, zip_of
from tests.support.files.source_makers import write_file

TABLE = b"a\n1\n" + bytes(508)


def tar_header(num_bytes, name=b"a.csv", kind=b"0"):
    # `tarfile` writes no such sizes.
    block = bytearray(tarfile.TarInfo(name.decode()).tobuf(tarfile.USTAR_FORMAT))
    wide = num_bytes >= 8**11
    block[124:136] = b"\x80" + num_bytes.to_bytes(11, "big") if wide else b"%011o\0" % num_bytes
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax_header(num_bytes):
    record = b" size=%d\n" % num_bytes
    record = str(len(record) + 2).encode() + record
    return tar_header(len(record), b"pax", b"x") + record.ljust(512, b"\0")


def tar_with(*headers, first=b"z.csv"):
    """Returns a tar of a table and a member that the headers begin."""
    return tar_header(4, first) + TABLE + b"".join(headers) + TABLE + bytes(1024)


def npy(*shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(800)


def npz(*shape):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", npy(*shape))
    return file.getvalue()


def npz_that_shares_bytes():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", npy(100))
        archive.writestr("y.npy", npy(100))
    content = file.getvalue()
    return patched(content, 42, "<I", 5, content.rindex(b"PK\x01\x02"))


def idx(*sizes):
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, 0x0E, len(sizes), *sizes) + bytes(50)


EXTENSION = tar_header(4, b"pax", b"L") + TABLE
FILES = {
    "number.tar": tar_with(tar_header(2**80)),
    "record.tar": tar_with(pax_header(10**19), tar_header(4)),
    "extension.tar": tar_with(tar_header(2**35, b"pax", b"x")),
    "extensions.tar": tar_with(EXTENSION * 30, tar_header(4)),
    "packed.tar.gz": gzip.compress(tar_with(tar_header(2**80))),
    "samples.tar": tar_header(4, b"1.cls") + TABLE + tar_with(tar_header(2**80, b"2.txt"), first=b"1.txt"),
    "stored.zip": patched(zip_of(TABLES), 20, "<I", 1 << 30),
    "start.zip": patched(zip_of(TABLES), 42, "<I", 1 << 30),
    "array.npy": npy(2**62),
    "row.npy": npy(0, 2**62),
    "array.npz": npz(2**40, 2**40),
    "shared.npz": npz_that_shares_bytes(),
    "array-idx3-ubyte": idx(*[2**32 - 1] * 3),
}
# Files that are read together with those.
SOUND = {
    "samples.tar": ("sound.tar", tar_of([(f"{i}.{kind}", b"1") for i in range(3) for kind in ("txt", "cls")])),
    ".npy": ("sound.npy", npy(100)),
    ".npz": ("sound.npz", npz(100)),
    "ubyte": ("sound-idx2-ubyte", idx(5, 10)[:-50] + bytes(400)),
}


@pytest.mark.parametrize("name", FILES)
def test_an_impossible_size_is_unsafe(tmp_path, capsys, name):
    write_file(tmp_path, FILES[name], name)
    assert main(["convert", str(tmp_path / name), str(tmp_path / "out")]) == 7
    said = capsys.readouterr().err
    assert said.startswith("error[SK-E700]: ")
    assert name in said
    assert "Nothing was committed" in said


@pytest.mark.parametrize("name", FILES)
def test_where_bad_rows_are_left_out_such_a_file_is_one_that_is_damaged(tmp_path, capsys, name):
    write_file(tmp_path, FILES[name], f"in/{name}")
    sound, content = next((pair for end, pair in SOUND.items() if name.endswith(end)), ("sound.csv", b"a\n1\n"))
    write_file(tmp_path, content, f"in/{sound}")
    assert main(["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--on-bad-record", "skip"]) == 0
    shown = capsys.readouterr()
    assert name in shown.out + shown.err


def test_the_error_is_the_same_on_the_other_side_of_a_process():
    error = ShardkitError.from_dict(UnsafeFileError("the array is refused").to_dict())
    assert (type(error), error.exit_code) == (UnsafeFileError, 7)
