"""Files of other tools are named as what they are, with a command that makes a readable file of them."""

from __future__ import annotations

import gzip
import io
import re
import shlex
import zipfile

import h5py
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import scipy.io

from shardkit.errors import BadInputError, UsageError
from shardkit.sources import list_inputs, source_for
from shardkit.sources.base import SourceOptions
from shardkit.sources.registry import choose
from tests.support.commands import run_as_typed
from tests.support.files.source_makers import read_all

TABLE = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})


def zipped(name, content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def hdf5():
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["x"] = np.arange(3)
    return buffer.getvalue()


def matlab():
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"x": np.arange(3)})
    return buffer.getvalue()


def tensors():
    torch = pytest.importorskip("torch")
    buffer = io.BytesIO()
    torch.save({"x": torch.arange(3)}, buffer)
    return buffer.getvalue()


def stata(version):
    buffer = io.BytesIO()
    TABLE.to_stata(buffer, version=version)
    return buffer.getvalue()


def pickled(value=TABLE):
    buffer = io.BytesIO()
    pd.to_pickle(value, buffer)
    return buffer.getvalue()


def pickled_by_python_2(**values):
    """Returns a dictionary of texts, lists of small numbers and an array of bytes, pickled as CIFAR is."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    def dumped(value):
        if isinstance(value, bytes):
            return text(value)
        if isinstance(value, list):
            items = (b"K" + bytes([item]) if isinstance(item, int) else text(item) for item in value)
            return b"](" + b"".join(items) + b"e"
        shape = b"".join(b"M" + size.to_bytes(2, "little") for size in value.shape) + b"\x86"
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
        dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        content = b"T" + value.size.to_bytes(4, "little") + value.tobytes()
        return made + b"(K\x01" + shape + dtype + b"\x89" + content + b"tb"

    return b"\x80\x02}(" + b"".join(text(k.encode()) + dumped(v) for k, v in values.items()) + b"u."


PIXELS = np.arange(3 * 3072, dtype=np.uint8).reshape(3, 3072)


def cifar():
    labels, names = [1, 9, 3], [b"a.png", b"b.png", b"c.png"]
    return pickled_by_python_2(batch_label=b"training batch 1 of 5", labels=labels, data=PIXELS, filenames=names)


def arff():
    return b"@RELATION a\n@ATTRIBUTE a NUMERIC\n@ATTRIBUTE b {x,y}\n@DATA\n1,x\n2,y\n"


def yaml():
    return b"- {a: 1, b: x}\n- {a: 2, b: y}\n"


MADE = {
    "a.arff": (arff, "ARFF text"),
    "a.yaml": (yaml, "YAML text"),
    "a.h5": (hdf5, "an HDF5 file"),
    "a.mat": (matlab, "a MATLAB file"),
    "a.pt": (tensors, "a file of PyTorch"),
    "model.bin": (tensors, "a file of PyTorch"),
    "a.pkl": (pickled, "a pickle of Python"),
    "data_batch_1": (cifar, "a pickle of Python"),
    "a.dta": (lambda: stata(118), "a Stata file"),
    "old.dta": (lambda: stata(114), "a Stata file"),
}
NAMED = {
    "a.xlsx": (zipped("[Content_Types].xml", "<Types/>"), "an Excel or Office document", "read_excel"),
    "a.ods": (
        zipped("mimetype", "application/vnd.oasis.opendocument.spreadsheet"),
        "an OpenDocument file",
        "read_excel",
    ),
    "a.rds": (gzip.compress(b"X\n\0\0\0\3\0\4\1\2" + bytes(40)), "an object of R", "readRDS"),
    "a.arff": (b"@RELATION a\n@DATA\n1,b\n", "ARFF text", "loadarff"),
    "a.xml": (b"<a>\n<b/>\n</a>\n", "XML text", "read_xml"),
    "a.html": (b"<html>\n<table>\n</table>\n</html>\n", "HTML text", "read_html"),
    "a.yaml": (b"- a: 1\n  b: 2\n", "YAML text", "safe_load"),
    "a.sql": (b"INSERT INTO t VALUES (1);\n" * 3, "SQL text", "sqlite3 a.sql.sqlite"),
    "a.sgm": (b'<srcset>\n<seg id="1">A</seg>\n', "SGML text", "--format text"),
    "a.xml.gz": (gzip.compress(b"<a>\n</a>\n"), "XML text", "--format text"),
    "a.jpg": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a pointer of Git LFS", "git lfs"),
    "a.RData": (gzip.compress(b"RDX3\nX\n\0\0\0\3" + bytes(40)), "a workspace of R", "Parquet first"),
}


def refusal(folder):
    with pytest.raises(UsageError) as caught:
        choose(list_inputs([str(folder)]).files, SourceOptions())
    return caught.value


@pytest.mark.full
@pytest.mark.parametrize("name", MADE)
def test_the_command_makes_a_readable_file(tmp_path, name):
    make, kind = MADE[name]
    (tmp_path / name).write_bytes(make())
    error = refusal(tmp_path)
    assert kind in error.what
    command = re.search("run  (.*)  and convert ", error.next_step)[1]
    run_as_typed(command, tmp_path)
    made = next(path for path in tmp_path.iterdir() if path.name.startswith(f"{name}."))
    assert choose(list_inputs([str(made)]).files, SourceOptions()).source.format in ("numpy", "parquet")


@pytest.mark.parametrize("name", NAMED)
def test_a_file_is_named_alone_and_beside_a_table(tmp_path, name):
    content, kind, way = NAMED[name]
    (tmp_path / name).write_bytes(content)
    error = refusal(tmp_path)
    assert kind in error.what
    assert way in error.next_step
    (tmp_path / "b.csv").write_text("a,b\n1,2\n")
    assert kind[:9] in "".join(refusal(tmp_path).table)


def test_texts_of_other_tools_are_lines_where_that_is_asked(tmp_path):
    (tmp_path / "a.xml").write_text("<a>\n</a>\n")
    files = list_inputs([str(tmp_path)]).files
    assert choose(files, SourceOptions(format="text")).source.format == "text"
    assert "--format text" in refusal(tmp_path).next_step


FASTA = b">sp|P1 first one\r\nMKTAYIAKQR\r\nQISFVKSH\r\n>P2\r\nMKLV*\r\n"
FASTQ = b"@r1 x\nACGTN\n+\nIIII@\n@r2\nAC\n+r2\nII\n\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.fa", FASTA, [("sp|P1", "first one", "MKTAYIAKQRQISFVKSH"), ("P2", "", "MKLV*")]),
        ("a.txt", FASTA, [("sp|P1", "first one", "MKTAYIAKQRQISFVKSH"), ("P2", "", "MKLV*")]),
        ("a.fastq.gz", gzip.compress(FASTQ, mtime=0), [("r1 x", "ACGTN", "IIII@"), ("r2", "AC", "II")]),
    ],
)
def test_the_command_for_sequences_makes_a_row_of_each(tmp_path, name, content, rows):
    (tmp_path / name).write_bytes(content)
    error = refusal(tmp_path)
    assert "FAST" in error.what
    run_as_typed(re.search("run  (.*)  and convert ", error.next_step)[1], tmp_path)
    assert [tuple(row.values()) for row in pq.read_table(tmp_path / f"{name}.parquet").to_pylist()] == rows


@pytest.mark.parametrize("text", [">quoted\nhello\n", "> Yes\nNO\n", "@user\nhello you\n+\nb\n", ">A\n>B\n", "@a\n"])
def test_texts_that_begin_alike_are_no_sequences(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    assert choose(list_inputs([str(tmp_path)]).files, SourceOptions()).source.format == "text"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "batch", [cifar(), pickled({b"batch_label": b"1 of 5", b"labels": [1, 9, 3], b"data": PIXELS})]
)
def test_the_command_for_a_batch_of_cifar_keeps_its_images_and_labels(tmp_path, monkeypatch, batch):
    (tmp_path / "batches.meta").write_bytes(pickled_by_python_2(label_names=[b"airplane", b"frog"]))
    (tmp_path / "data_batch_1").write_bytes(batch)
    error = refusal(tmp_path)
    assert error.where.endswith("data_batch_1")
    assert error.why == "it is the largest of 2 such files"
    command = re.search("run  (.*)  and convert data_batch_1.parquet", error.next_step)[1]
    monkeypatch.chdir(tmp_path)
    exec(shlex.split(command)[2], {})  # noqa: S102 - the command that is advised
    made = tmp_path / "data_batch_1.parquet"
    assert choose(list_inputs([str(made)]).files, SourceOptions()).source.format == "parquet"
    table = pq.read_table(made)
    assert table["labels"].to_pylist() == [1, 9, 3]
    assert table["data"].to_pylist() == PIXELS.tolist()
    assert "batch_label" not in table.column_names


@pytest.mark.parametrize("darkest", [0, 3, 24, 40])
@pytest.mark.parametrize("format", ["text", "csv"])
def test_pixels_get_no_advice_on_encodings_of_texts(tmp_path, darkest, format):
    labels = np.arange(4, dtype=np.uint8)[:, None]
    pixels = np.random.default_rng(0).integers(darkest, 256, (4, 3072), np.uint8)
    (tmp_path / "data_batch_1.bin").write_bytes(np.hstack([labels, pixels]).tobytes())
    error = refusal(tmp_path)
    assert "a binary file" in error.what
    assert "encoding" not in str(error)
    with pytest.raises(BadInputError, match=r"is no text|binary") as caught:
        read_all(source_for(format), tmp_path)
    assert "encoding" not in str(caught.value)
