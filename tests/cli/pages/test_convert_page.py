"""What `shardkit convert` says of features, of a plan that is not run, and of what was made."""

import re

import pytest

from shardkit.cli import main
from shardkit.cli.pages.convert_page import fill


@pytest.fixture
def run(capsys, monkeypatch):
    def invoke(*arguments, columns="80"):
        monkeypatch.setenv("COLUMNS", columns)
        code = main(["convert", *map(str, arguments)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return invoke


@pytest.mark.full
def test_many_features_are_cut_and_the_rest_is_counted(run, tmp_path):
    (tmp_path / "wide.csv").write_text(
        ",".join(f"column {i}" for i in range(500)) + "\n" + ",".join(["1"] * 400 + ["a"] * 100) + "\n"
    )
    code, _, err = run(tmp_path / "wide.csv", tmp_path / "out")
    assert code == 0
    assert "column 29 " in err
    assert "column 30 " not in err
    assert "... and 470 more (370 int64, 100 string); 'shardkit inspect' shows all" in err
    (tmp_path / "fit.csv").write_text(",".join(f"column {i}" for i in range(40)) + "\n" + ",".join(["1"] * 40) + "\n")
    _, _, err = run(tmp_path / "fit.csv", tmp_path / "fits")
    assert "column 39 " in err
    assert "more" not in err.split("note:")[0]


@pytest.mark.full
@pytest.mark.parametrize("columns", ["80", "40"])
def test_long_and_hostile_names_stay_within_the_terminal(run, tmp_path, columns):
    names = ["\x1b[31mred", "x" * 300, "日本語" * 40, "[bold]b[/bold]"]
    (tmp_path / "odd.csv").write_text(",".join(names) + "\n1,2,3,4\n")
    code, _, err = run(tmp_path / "odd.csv", tmp_path / "out", columns=columns)
    assert code == 0
    assert "\x1b" not in err
    assert r"\x1b[31mred" in err
    assert "[bold]b[/bold]" in err
    shown = err.split("note:")[0].splitlines()
    # A wide character takes two columns.
    assert max(len(line) + len(re.findall("[日本語の列]", line)) for line in shown) <= int(columns)
    assert len(shown) < 20


def test_a_dry_run_shows_splits_and_space_and_writes_nothing(run, table, tmp_path):
    options = ("--split", "train=0.9", "--split", "test=0.1", "--num-shards", "3", "--dedup", "--dry-run")
    code, out, _ = run(table, tmp_path / "new" / "out", *options)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[6:9]] == ["id", "zip", "x"]
    assert "splits   train 90 %, test 10 %  (--split)" in out
    assert "shards   3 shards a split, compression gzip, level balanced" in out
    assert "1 part of input, read twice" in out
    size = r"[\d.]+ \w+"
    assert re.search(rf"about {size} \({size} for the spool, .*{size} for shards, .*\) needed, {size} free in", out)
    assert out.splitlines()[-1] == "This was a dry run: nothing was written."
    assert not (tmp_path / "new" / "out").exists()


@pytest.mark.full
def test_a_dry_run_leaves_what_is_there_and_refuses_what_would_be_refused(run, table, tmp_path):
    (tmp_path / "out").mkdir()
    assert run(table, tmp_path / "out", "--dry-run")[0] == 0
    assert list((tmp_path / "out").iterdir()) == []
    assert run(table, tmp_path / "out")[0] == 0
    before = sorted((tmp_path / "out").rglob("*"))
    code, _, err = run(table, tmp_path / "out", "--dry-run")
    assert code == 4
    assert "--overwrite" in err
    assert run(table, tmp_path / "out", "--dry-run", "--overwrite")[0] == 0
    assert sorted((tmp_path / "out").rglob("*")) == before


@pytest.mark.full
def test_the_summary_adds_up_and_fits_eighty_columns(run, tmp_path):
    rows = [f"{i % 150},{i % 150}" for i in range(200)] + ["x,1"] * 7
    (tmp_path / "a.csv").write_text("id,n\n" + "\n".join(rows) + "\n")
    options = ("--dedup", "--on-bad-record", "quarantine", "--select", "SELECT * FROM rows WHERE n >= 10")
    split = ("--split", "train=0.5", "--split", "test=0.5")
    destination = tmp_path / "a folder" / "out"
    (tmp_path / "s.json").write_text('{"features": {"id": {"dtype": "int64"}, "n": {"dtype": "int64"}}}')
    code, out, err = run(tmp_path / "a.csv", destination, *options, *split, "--schema", tmp_path / "s.json")
    assert code == 0, err
    (books,) = [line for line in out.splitlines() if " rows in" in line]
    counts = [int(n) for n in re.findall(r"(\d+) (?:rows? in|example|filtered|duplicate|rejected)", books)]
    assert counts[0] == sum(counts[1:]) == 207
    assert len(books) <= 80
    total = out.strip().splitlines()[3].split()
    assert int(total[1]) == counts[1], "the last line of the table sums the splits"
    assert f"All that was left out: shardkit inspect '{destination}' --rejected" in out
    assert out.splitlines()[-1] == f"Next: shardkit inspect '{destination}'"


def test_pieces_are_never_broken():
    assert fill(["a" * 30, "b" * 30, "c" * 30], 80) == [f"{'a' * 30}, {'b' * 30}", "c" * 30]
    assert fill(["a" * 100, "b"], 80) == ["a" * 100, "b"]
