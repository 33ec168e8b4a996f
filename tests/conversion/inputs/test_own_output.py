"""Destinations among the inputs: refused where the next conversion would read the dataset as input."""

import pytest

from shardkit.cli import main
from shardkit.storage.local_listing import list_local_files
from shardkit.storage.locations import names_path

SHARD = "data/0/train-00000-of-00001.tfrecord.gz"
PATTERNS = ["in", "in/*", "in/*/*", "in/**", "in/**/*.gz", "in/*.csv", "in/out/data", "in/.out", "*", "**/data", "*/.*"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("n,m\n" + "1,2\n" * 50)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("out", ["in/out", "in/.out", "out", "in/deep/out"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_a_pattern_would_name_is_what_it_names(folder, pattern, out):
    path = folder / out / SHARD
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    for other in ("in/out/data", "in/.out", "other/data", "other/.other"):
        (folder / other).mkdir(parents=True, exist_ok=True)
        (folder / other / "x.gz").write_bytes(b"")
    found = list_local_files(str(folder / pattern))
    files = found[0] if isinstance(found, tuple) else found
    named = str(path) in {file.path for file in files}
    assert names_path(str(folder / pattern), str(path)) == named


@pytest.mark.parametrize(
    ("source", "out"),
    [("in", "in/out"), ("in", "in/a/b"), ("in/*", "in/out"), (".", "out"), ("in", "in/../in/out"), ("link", "in/out")],
)
def test_a_destination_inside_of_an_input_is_refused(folder, capsys, source, out):
    (folder / "link").symlink_to(folder / "in")
    assert main(["convert", source, out, "--workers", "1"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "the destination lies inside of an input" in message
    assert "Choose a destination outside of the input folders" in message
    assert [p.name for p in (folder / "in").iterdir()] == ["a.csv"]


def test_an_input_inside_of_the_destination_is_refused(folder, capsys):
    (folder / "in" / "sub").mkdir()
    (folder / "in" / "a.csv").rename(folder / "in" / "sub" / "a.csv")
    assert main(["convert", "in/sub", "in", "--workers", "1"]) == 2
    assert "the destination lies among the inputs" in " ".join(capsys.readouterr().err.split())


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [("in/*.csv", "in/out"), ("in", "in/out", "--include", "*.csv"), ("in", "in/out", "--exclude", "out/*")],
)
def test_where_the_pattern_cannot_match_it_can_be_made_again(folder, options):
    arguments = ["convert", *options, "--workers", "1"]
    assert main(arguments) == 0
    assert main([*arguments, "--overwrite"]) == 0
    assert main([*arguments, "--overwrite", "--seed", "1"]) == 0
