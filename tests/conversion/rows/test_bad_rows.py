"""Rows that do not fit, from the command line to the books of the dataset."""

import gzip
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardkit.cli import main
from shardkit.conversion.rows.bad_rows import BadLimit, ReasonCounts
from shardkit.dataset.open import open_dataset
from shardkit.dataset.rejected_rows import RejectedRecord, encode_record, pack_files, read_rejected
from shardkit.errors import UsageError
from shardkit.verify.shards import verify_dataset

NUM_ROWS = 3000
BAD = (17, 18, 1000, 2999)


def write_csv(path, bad=BAD, num_rows=NUM_ROWS):
    lines = [f"{i},{'oops' if i in bad else i * 2},w{i % 3}" for i in range(num_rows)]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["a,b,c", *lines, ""]))
    return path


def convert(*arguments):
    return main(["convert", *map(str, arguments), "--workers", "1"])


def declared(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text('[features]\nb = "int64"\n')
    return ("--schema", path)


@pytest.mark.full
def test_fail_names_the_first_and_commits_nothing(tmp_path, capsys):
    source = write_csv(tmp_path / "in" / "a.csv")
    assert convert(source, tmp_path / "out", *declared(tmp_path)) == 3
    message = capsys.readouterr().err
    assert "a.csv, line 19: expected int64, got 'oops'" in message
    assert "Nothing was committed" in message
    assert not (tmp_path / "out" / "manifests").exists()


@pytest.mark.full
@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_rows_in_are_examples_and_rejected(tmp_path, capsys, policy):
    for name, bad in (("a.csv", BAD), ("b.csv", ()), ("c.csv", (5,))):
        write_csv(tmp_path / "in" / name, bad)
    assert convert(tmp_path / "in", tmp_path / "out", "--on-bad-record", policy, *declared(tmp_path)) == 0
    printed = capsys.readouterr()
    assert "9,000 rows in, 8,995 examples out, 5 rejected" in printed.out
    assert "left out: a.csv, line 19: column 'b' does not fit: expected int64, got 'oops'" in printed.err
    dataset = open_dataset(str(tmp_path / "out"))
    accounting = dataset.manifest.accounting
    assert [(i.name, i.num_rows, i.num_examples, i.num_rejected) for i in accounting.inputs] == [
        ("a.csv", NUM_ROWS, NUM_ROWS - 4, 4),
        ("b.csv", NUM_ROWS, NUM_ROWS, 0),
        ("c.csv", NUM_ROWS, NUM_ROWS - 1, 1),
    ]
    statistics = dataset.manifest.split("train").statistics["a"]
    assert statistics.count == 8995
    kept = list(read_rejected(dataset)) if policy == "quarantine" else []
    assert len(kept) == (5 if policy == "quarantine" else 0)
    assert verify_dataset(dataset).damages == ()


@pytest.mark.full
def test_what_was_quarantined_can_be_read(tmp_path, capsys):
    source = write_csv(tmp_path / "in" / "a.csv")
    convert(source, tmp_path / "out", "--on-bad-record", "quarantine", *declared(tmp_path))
    dataset = open_dataset(str(tmp_path / "out"))
    content = source.read_bytes()
    for record, number in zip(read_rejected(dataset), BAD, strict=True):
        assert record.position == f"line {number + 2}"
        assert record.raw.rstrip(b"\n") == f"{number},oops,w{number % 3}".encode()
        assert content[record.byte :].startswith(record.raw)
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out"), "--rejected"]) == 0
    page = capsys.readouterr().out
    assert page.count("expected int64, got 'oops'") == 4
    assert "17,oops,w2" in page
    assert main(["inspect", str(tmp_path / "out"), "--rejected", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["position"] for line in lines] == [f"line {n + 2}" for n in BAD]
    (info,) = dataset.manifest.accounting.rejected_files
    path = tmp_path / "out" / info.path
    assert len(gzip.decompress(path.read_bytes()).splitlines()) == info.num_rows == 4
    path.write_bytes(path.read_bytes()[:-1])
    (damage,) = verify_dataset(dataset).damages
    assert damage.path == info.path


@pytest.mark.full
@pytest.mark.parametrize(("limit", "code"), [("4", 0), ("3", 3), ("0.1334%", 0), ("0.1333%", 3), ("100%", 0)])
def test_the_limit_is_exact(tmp_path, limit, code):
    source = write_csv(tmp_path / "in" / "a.csv")
    options = ("--on-bad-record", "skip", "--max-bad", limit)
    assert convert(source, tmp_path / "out", *options, *declared(tmp_path)) == code
    assert (tmp_path / "out" / "manifests").exists() == (code == 0)


@pytest.mark.parametrize(
    ("num_bad", "num_rows", "is_exceeded"),
    [
        (1, 2, False),
        (2, 3, True),
        (99, 198, False),
        (99, 197, True),
        (2, 2, False),
        (99, 99, False),
        (100, 100, True),
        (100, 1000, False),
        (101, 1000, True),
        (100, 999, True),
    ],
)
def test_without_a_limit_a_tenth_may_be_bad_and_of_few_rows_half(num_bad, num_rows, is_exceeded):
    assert BadLimit(None).is_exceeded(num_bad, num_rows) == is_exceeded


@pytest.mark.full
def test_more_than_a_tenth_is_left_out_only_with_a_limit(tmp_path, capsys):
    source = write_csv(tmp_path / "in" / "a.csv", range(0, NUM_ROWS, 9))
    options = ("--on-bad-record", "skip", *declared(tmp_path))
    assert convert(source, tmp_path / "out", *options) == 3
    message = " ".join(capsys.readouterr().err.split())
    assert "334 of 3,000 rows are bad, most often (334): column 'b' does not fit: expected int64, got 'oops'" in message
    assert "such as --max-bad 50%" in message
    assert not (tmp_path / "out").exists()
    assert convert(source, tmp_path / "out", *options, "--max-bad", "12%") == 0


def test_reasons_that_differ_in_values_are_one():
    reasons = ReasonCounts()
    for reason in ("'a' is no int64", "5 bytes missing", "'b' is no int64", "17 bytes missing", "'c' is no int64"):
        reasons.add(reason)
    assert reasons.counts == {"'a' is no int64": 3, "5 bytes missing": 2}


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 1000))
def test_a_share_is_compared_exactly(num_bad, num_rows, thousandths):
    share = Fraction(thousandths, 1000)
    limit = BadLimit(f"{thousandths / 1000}%")
    assert limit.is_exceeded(num_bad, num_rows) == (Fraction(num_bad, num_rows) > share / 100)


@pytest.mark.parametrize("text", ["", "-1", "x", "1.5", "101%", "1/2", "%", "nan", "inf%", "-1%"])
def test_what_is_no_limit(text):
    with pytest.raises(UsageError):
        BadLimit(text)


@pytest.mark.full
def test_a_damaged_file_is_rejected_whole(tmp_path, capsys):
    write_csv(tmp_path / "in" / "a.csv", ())
    packed = gzip.compress(write_csv(tmp_path / "b.csv", ()).read_bytes())
    (tmp_path / "in" / "b.csv.gz").write_bytes(packed[: len(packed) // 2])
    assert convert(tmp_path / "in", tmp_path / "no") == 3
    assert convert(tmp_path / "in", tmp_path / "out", "--on-bad-record", "quarantine") == 0
    printed = capsys.readouterr()
    assert "3,000 rows in, 3,000 examples out, 1 file rejected whole, their rows unknown" in printed.out
    dataset = open_dataset(str(tmp_path / "out"))
    damaged = dataset.manifest.accounting.inputs[1]
    assert (damaged.name, damaged.num_rows, damaged.num_examples) == ("b.csv.gz", None, 0)
    (record,) = read_rejected(dataset)
    assert (record.file, record.raw) == ("b.csv.gz", None)
    assert convert(tmp_path / "in", tmp_path / "no", "--on-bad-record", "skip", "--max-bad", "0") == 3


@pytest.mark.full
@pytest.mark.parametrize("limit", ["1", "0.1%", "100000"])
def test_no_limit_holds_where_rows_cannot_be_counted(tmp_path, capsys, limit):
    write_csv(tmp_path / "in" / "a.csv", ())
    other = write_csv(tmp_path / "in" / "b[1].csv", ())
    other.write_text(other.read_text() + 'oops,"never closed,w\n')
    options = ("--on-bad-record", "skip", "--max-bad", limit)
    assert convert(tmp_path / "in", tmp_path / "out", *options) == 3
    message = " ".join(capsys.readouterr().err.split())
    assert f"b[1].csv: a quote opened at line {NUM_ROWS + 2} is never closed" in message
    assert f"how many rows it has is unknown, so --max-bad {limit} cannot be kept" in message
    assert "Nothing was committed. Correct it, leave it out with --exclude 'b[[]1].csv', or leave --max-bad" in message
    assert not (tmp_path / "out").exists()
    assert convert(tmp_path / "in", tmp_path / "out", *options, "--exclude", "b[[]1].csv") == 0
    assert convert(tmp_path / "in", tmp_path / "without", *options[:2]) == 0


@pytest.mark.full
def test_a_file_that_is_cut_off_on_the_way_cannot_be_counted(tmp_path, capsys):
    write_csv(tmp_path / "in" / "a.csv", ())
    packed = gzip.compress(write_csv(tmp_path / "b.csv", (), num_rows=400_000).read_bytes())
    (tmp_path / "in" / "b.csv.gz").write_bytes(packed[:-1000])
    assert convert(tmp_path / "in", tmp_path / "out", "--on-bad-record", "skip", "--max-bad", "1") == 3
    message = " ".join(capsys.readouterr().err.split())
    assert "rows are lost that cannot be counted in b.csv.gz: " in message
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_an_image_is_one_row_to_the_limit(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for number in range(4):
        Image.new("L", (4, 4), number).save(tmp_path / "in" / f"{number}.png")
    path = tmp_path / "in" / "1.png"
    path.write_bytes(path.read_bytes()[:20])
    options = ("--on-bad-record", "skip", "--max-bad")
    assert convert(tmp_path / "in", tmp_path / "out", *options, "0") == 3
    assert "1 of 4 rows are bad" in " ".join(capsys.readouterr().err.split())
    assert convert(tmp_path / "in", tmp_path / "out", *options, "25%") == 0


def test_a_limit_without_a_policy_is_refused(tmp_path, capsys):
    source = write_csv(tmp_path / "in" / "a.csv")
    assert convert(source, tmp_path / "out", "--max-bad", "1%") == 2
    assert "--on-bad-record" in capsys.readouterr().err


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_rejected_rows_come_back(raws):
    records = [RejectedRecord(file="f", position=f"line {i}", byte=i, reason="r", raw=r) for i, r in enumerate(raws)]
    lines = [encode_record(r) for r in records]
    (content, num_rows), *rest = pack_files(lines)
    assert not rest
    assert num_rows == len(lines)
    assert gzip.decompress(content) == b"".join(lines)
    assert list(pack_files(lines)) == [(content, num_rows)]
