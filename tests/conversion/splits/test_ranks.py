"""`--split-by`, `--sample` and `--limit`: which rows they take, against pandas."""

import gzip
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.conversion.option_forms import SplitShare
from shardkit.conversion.splits.ranks import sort_keys
from shardkit.errors import BadInputError, UsageError
from shardkit.features import make_feature
from shardkit.transforms.options import TransformOptions
from tests.support.files.image_makers import encoded
from tests.support.files.source_makers import write_file
from tests.support.in_process import read_rows

pytestmark = pytest.mark.full

SPLITS = (
    SplitShare(name="train", fraction=0.7),
    SplitShare(name="dev", fraction=0.2),
    SplitShare(name="test", fraction=0.1),
)
VALUES = {
    "int8": st.integers(-128, 127),
    "uint8": st.integers(0, 255),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float16": st.floats(width=16, allow_nan=False),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
    "date": st.integers(-(2**20), 2**20),
    "timestamp[ns]": st.integers(-(2**63) + 1, 2**63 - 1),
    "time[ms]": st.integers(0, 86_399_999),
}


@given(st.data())
def test_keys_ascend_as_values_do(data):
    dtype = data.draw(st.sampled_from(sorted(VALUES)))
    feature = make_feature("x", dtype)
    drawn = data.draw(st.lists(VALUES[dtype], min_size=1, max_size=20))
    is_time = dtype in ("date", "timestamp[ns]", "time[ms]")
    raw = {32: pa.int32(), 64: pa.int64()}[feature.arrow_type.bit_width] if is_time else feature.arrow_type
    column = pa.array(np.array(drawn, np.float16) if dtype == "float16" else drawn, raw)
    keys = sort_keys(column.view(feature.arrow_type), feature).tolist()
    numbers = [float(v) for v in drawn] if "float" in dtype else drawn
    for a, key_of_a in zip(numbers, keys, strict=True):
        for b, key_of_b in zip(numbers, keys, strict=True):
            assert (a < b) == (key_of_a < key_of_b)
            assert (a == b) == (key_of_a == key_of_b)


def write(path, num_rows=3000, num_files=3, num_days=400):
    rng = np.random.default_rng(7)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, num_days, num_rows), "D")
    frame = pd.DataFrame(
        {"id": np.arange(num_rows), "day": days.strftime("%Y-%m-%d"), "x": rng.integers(0, 9, num_rows)}
    )
    path.mkdir()
    for number in range(num_files):
        part = frame.iloc[num_rows * number // num_files : num_rows * (number + 1) // num_files]
        part.to_csv(path / f"{number}.csv", index=False)
    return frame


def rows_of(dataset):
    return {s.name: pd.DataFrame(read_rows(dataset, s.name)) for s in dataset.manifest.splits}


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_last_split_has_the_last_rows(tmp_path, convert, shuffle):
    frame = write(tmp_path / "in")
    found = rows_of(convert(tmp_path / "in", splits=SPLITS, split_by="day", shuffle=shuffle))
    ends = [(part["day"].min(), part["day"].max()) for part in found.values()]
    assert all(before[1] < after[0] for before, after in pairwise(ends))
    assert sorted(pd.concat(found.values())["id"]) == frame["id"].tolist()
    # A day has 7.5 rows on average, and none is cut.
    for share, part in zip(SPLITS, found.values(), strict=True):
        assert abs(len(part) - share.fraction * len(frame)) < 12


def test_a_split_without_rows_is_refused(tmp_path, convert):
    write(tmp_path / "in", num_days=1)
    with pytest.raises(UsageError, match="leaves the split 'dev' without rows"):
        convert(tmp_path / "in", splits=SPLITS, split_by="day")


def test_a_row_without_a_rank_is_a_bad_row(tmp_path, convert):
    (tmp_path / "in.csv").write_text("id,x\n" + "".join(f"{i},{i / 4}\n" for i in range(20)) + "20,\n")
    with pytest.raises(BadInputError, match="does not fit") as caught:
        convert(tmp_path / "in.csv", splits=SPLITS, split_by="x")
    assert (caught.value.where, caught.value.why) == ("in.csv, row 21", "null has no rank")
    dataset = convert(tmp_path / "in.csv", "skipped", splits=SPLITS, split_by="x", on_bad_record="skip")
    assert [len(part) for part in rows_of(dataset).values()] == [14, 4, 2]
    assert dataset.manifest.accounting.num_rejected == 1


def test_text_has_no_ranks(tmp_path, convert):
    (tmp_path / "in.csv").write_text("id,word\n1,a\n2,b\n")
    with pytest.raises(UsageError, match="--split-by 'word' is string"):
        convert(tmp_path / "in.csv", splits=SPLITS, split_by="word")


@pytest.mark.parametrize("options", [{}, {"dedup": ("x",)}, {"stratify": "x"}, {"split_by": "day"}], ids=str)
def test_a_sample_has_the_wanted_size_whatever_else_is_asked(tmp_path, convert, options):
    frame = write(tmp_path / "in", num_files=2)
    wanted = 5 if "dedup" in options else 500
    splits = SPLITS if options and "dedup" not in options else ()
    dataset = convert(tmp_path / "in", splits=splits, sample=wanted, **options)
    found = pd.concat(rows_of(dataset).values())
    assert len(found) == found["id"].nunique() == wanted
    assert set(found["id"]) <= set(frame["id"])
    account = dataset.manifest.accounting
    assert account.num_rows == 3000 == account.num_examples + account.num_filtered + account.num_duplicates
    if "dedup" in options:
        assert found["x"].nunique() == wanted
    else:
        # A sample of 500 has a mean within five standard errors.
        assert abs(found["id"].mean() - 1499.5) < 5 * 866 / 500**0.5


def test_a_sample_does_not_depend_on_how_rows_are_split(tmp_path, convert):
    write(tmp_path / "in")
    alone = rows_of(convert(tmp_path / "in", "alone", sample=300))
    split = rows_of(convert(tmp_path / "in", "split", sample=300, splits=SPLITS))
    assert sorted(alone["train"]["id"]) == sorted(pd.concat(split.values())["id"])
    assert [abs(len(part) / 300 - s.fraction) < 0.12 for part, s in zip(split.values(), SPLITS, strict=True)] == [
        True
    ] * 3
    other = rows_of(convert(tmp_path / "in", "other", sample=300, seed=1))
    assert set(other["train"]["id"]) != set(alone["train"]["id"])


def test_a_sample_of_more_rows_than_there_are_has_all(tmp_path, convert):
    write(tmp_path / "in", num_rows=50)
    assert len(rows_of(convert(tmp_path / "in", sample=1000))["train"]) == 50


@pytest.mark.parametrize("limit", [1, 999, 1000, 1001, 2500, 9999])
def test_the_first_rows(tmp_path, convert, limit):
    frame = write(tmp_path / "in")
    dataset = convert(tmp_path / "in", limit=limit, shuffle=False)
    assert [row["id"] for row in read_rows(dataset, "train")] == frame["id"].tolist()[:limit]
    assert dataset.manifest.accounting.num_rows == min(limit, 3000)
    assert len(dataset.manifest.accounting.inputs) == min(3, -(-limit // 1000))


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "jsonl"])
def test_the_first_rows_of_each_split(tmp_path, convert, suffix):
    (tmp_path / "in").mkdir()
    for name in ("test", "train_1", "train_2"):
        frame = pd.DataFrame({"id": range(40), "part": name})
        path = tmp_path / "in" / f"{name}.{suffix}"
        if suffix == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        else:
            frame.to_parquet(path) if suffix == "parquet" else frame.to_csv(path, index=False)
    found = rows_of(convert(tmp_path / "in", limit=60, shuffle=False))
    assert found["test"]["id"].tolist() == list(range(40))
    assert found["train"][["part", "id"]].to_numpy().tolist() == [
        *(["train_1", i] for i in range(40)),
        *(["train_2", i] for i in range(20)),
    ]


def test_the_first_files_of_each_split(tmp_path, convert):
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            for number in range(5):
                write_file(tmp_path / "in" / split / name, encoded("RGB", "PNG", (3, 2)), f"{number}.png")
    found = rows_of(convert(tmp_path / "in", limit=8, shuffle=False))
    for split in ("train", "test"):
        names = [f"cat/{number}.png" for number in range(5)] + [f"dog/{number}.png" for number in range(3)]
        assert found[split]["filename"].tolist() == [f"{split}/{name}" for name in names]
    with pytest.raises(UsageError, match="the first 4 rows of each split have 1 of 2 classes"):
        convert(tmp_path / "in", "few", limit=4)


def test_the_first_rows_go_on_behind_a_damaged_file(tmp_path, convert):
    write(tmp_path / "in")
    whole = gzip.compress((tmp_path / "in/0.csv").read_bytes())
    (tmp_path / "in/0.csv").unlink()
    (tmp_path / "in/0.csv.gz").write_bytes(whole[:-20])
    dataset = convert(tmp_path / "in", limit=1500, shuffle=False, on_bad_record="skip")
    assert [row["id"] for row in read_rows(dataset, "train")] == list(range(1000, 2500))


def test_the_first_rows_are_those_before_rows_are_left_out(tmp_path, convert):
    write(tmp_path / "in")
    select = TransformOptions(select="SELECT * FROM rows WHERE id % 2 = 0")
    assert len(read_rows(convert(tmp_path / "in", limit=1500, transforms=select), "train")) == 750


def test_each_row_names_its_file(tmp_path, convert):
    frame = write(tmp_path / "in")
    options = TransformOptions(source_column="file", select="SELECT id, file || '!' AS file FROM rows")
    found = read_rows(convert(tmp_path / "in", transforms=options), "train")
    assert {row["id"]: row["file"] for row in found} == {i: f"{i // 1000}.csv!" for i in frame["id"]}


def test_a_column_that_is_there_is_not_overwritten(tmp_path, convert):
    write(tmp_path / "in")
    with pytest.raises(UsageError, match="--source-column names the column 'x', which the inputs have"):
        convert(tmp_path / "in", transforms=TransformOptions(source_column="x"))


WORDS = ("train", "Training", "val", " valid", "validation", "dev_set", "test", "testing", "eval")


def test_words_for_splits_need_no_option(tmp_path, convert):
    (tmp_path / "in.csv").write_text("id,part\n" + "".join(f"{i},{WORDS[i % 9]}\n" for i in range(90)))
    found = rows_of(convert(tmp_path / "in.csv", split_column="part"))
    assert {name: set(part["part"]) for name, part in found.items()} == {
        "train": set(WORDS[:2]),
        "validation": set(WORDS[2:6]),
        "test": set(WORDS[6:]),
    }


def test_other_words_are_bad_rows(tmp_path, convert):
    (tmp_path / "in.csv").write_text("id,part\n1,train\n2,later\n")
    with pytest.raises(BadInputError) as caught:
        convert(tmp_path / "in.csv", split_column="part")
    assert caught.value.why == "'later' is no split"


def rows_with_faults(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode("latin-1")) if name.endswith(".gz") else content.encode("latin-1"))
    return path


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("a.csv", "{0},w{0}\n", "{0},b,c\n"),
        ("a.csv.gz", "{0},w{0}\n", "{0},b,c\n"),
        ("a.jsonl", '{{"id": {0}, "w": "w{0}"}}\n', '{{"id": {0}\n'),
        ("a.txt", "w{0}\n", "w\xff{0}\n"),
        ("a.libsvm", "{0} 1:2\n", "{0} 1:x\n"),
    ],
)
def test_rows_behind_the_limit_are_not_judged(tmp_path, convert, name, good, bad):
    header = "id,w\n" if ".csv" in name else ""
    lines = [(bad if i % 20 == 3 else good).format(i) for i in range(1000)]
    path = rows_with_faults(tmp_path, name, header + "".join(lines))
    dataset = convert(path, "skipped", limit=50, shuffle=False, on_bad_record="skip")
    account = dataset.manifest.accounting
    # Rows 3, 23 and 43 stand before the 50th good one, which is row 52.
    assert (account.num_rows, account.num_examples, account.num_rejected) == (53, 50, 3)
    if name == "a.jsonl":
        return  # The types of JSON come from its first rows, which are judged.
    late = rows_with_faults(tmp_path, f"late-{name}", header + "".join(lines[4:23] + lines[23:24] + lines[4:23]))
    assert convert(late, "late", limit=19).manifest.accounting.num_rows == 19
    with pytest.raises(BadInputError):
        convert(late, "judged", limit=20)


def test_numbers_may_name_splits(tmp_path, convert):
    (tmp_path / "in.csv").write_text("id,part\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    splits = (SplitShare(name="0"), SplitShare(name="1"))
    found = rows_of(convert(tmp_path / "in.csv", split_column="part", splits=splits))
    assert {name: len(part) for name, part in found.items()} == {"0": 10, "1": 10}
