"""Files of rejected rows of a hostile dataset: their hashes are right, and what they hold is no record."""

import gzip
import hashlib

import msgspec
import pytest

from shardkit.dataset.documents import Accounting, RejectedFile
from shardkit.dataset.open import Dataset
from shardkit.dataset.rejected_rows import RejectedRecord, encode_record, read_rejected
from shardkit.errors import DamageError
from tests.dataset.test_manifest import MANIFEST

RECORD = RejectedRecord(file="a.csv", position="line 1", byte=5, reason="bad", raw=b"x,y")
LINE = encode_record(RECORD)


def holding(folder, content):
    """Returns a dataset whose only file of rejected rows has some content."""
    (folder / "r.gz").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    info = RejectedFile(path="r.gz", num_rows=1, num_bytes=len(content), sha256=digest)
    accounting = Accounting(num_rows=1, num_examples=0, num_rejected=1, rejected_files=(info,))
    return Dataset(str(folder), 1, msgspec.structs.replace(MANIFEST, accounting=accounting))


def test_records_are_read(tmp_path):
    assert list(read_rejected(holding(tmp_path, gzip.compress(LINE * 2)))) == [RECORD, RECORD]


@pytest.mark.parametrize(
    "content",
    [
        b"q\x01\xcf",
        gzip.compress(LINE, mtime=0)[:-3],
        gzip.compress(LINE, mtime=0)[:-6] + b"\1" + gzip.compress(LINE, mtime=0)[-5:],
        b"\x1f\x8b\x08\x00\x00\xa0\xb2\x8d+$&",
        gzip.compress(b"{", mtime=0),
        gzip.compress(LINE.replace(b"byte", b"bytee"), mtime=0),
        gzip.compress(LINE.replace(b"bad", b"b\xf4d"), mtime=0),
        gzip.compress(LINE + b'{"file":"' + b"x" * 2**24 + b'"}', mtime=0),
    ],
    ids=["no gzip", "cut off", "wrong checksum", "damaged", "no JSON", "unknown field", "no UTF-8", "endless line"],
)
def test_other_content_is_damage(tmp_path, content):
    with pytest.raises(DamageError, match=r"a file of rejected rows cannot be read in r\.gz"):
        list(read_rejected(holding(tmp_path, content)))
