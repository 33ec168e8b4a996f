"""An appended version that is broken: the advice brings all rows back, and nothing is appended to it."""

import shlex
from pathlib import Path

import pytest

from shardkit.cli import main
from shardkit.dataset.open import list_versions, open_dataset

pytestmark = pytest.mark.full


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    found = capsys.readouterr()
    return code, found.out + found.err


@pytest.fixture
def out(tmp_path, capsys):
    """Returns a dataset of 0.csv, with 1.csv appended."""
    for number, options in enumerate(((), ("--append",))):
        path = tmp_path / f"{number}.csv"
        path.write_text("x,y\n" + "".join(f"{i},{number}\n" for i in range(20)))
        assert run(capsys, "convert", path, tmp_path / "out", *options)[0] == 0
    return tmp_path / "out"


def spoil(path):
    path.write_bytes(b"spoilt")


@pytest.mark.parametrize(
    ("file", "harm"), [("00000002-*", Path.unlink), ("00000002-*", spoil), ("00000002.json", spoil)]
)
def test_the_advice_for_a_broken_append_brings_all_rows_back(out, tmp_path, capsys, file, harm):
    harm(next(out.glob(f"manifests/{file}")))
    give_up = f"shardkit clean {out} --drop-broken-version --delete"
    advice = f"Give version 2 up: {give_up}. Then run again the command that made it"
    append = ("convert", tmp_path / "1.csv", out, "--append")
    for command in (("verify", out), append):
        code, said = run(capsys, *command)
        assert (code, advice in " ".join(said.split())) == (1, True), said
        assert "--overwrite" not in said
    assert list_versions(out) == [1, 2]
    assert run(capsys, *shlex.split(give_up)[1:])[0] == 0
    assert run(capsys, *append)[0] == 0
    assert open_dataset(out).manifest.accounting.num_rows == 40
    assert run(capsys, "verify", out)[0] == 0


def test_an_append_with_a_damaged_shard_is_not_overwritten_with_its_own_inputs_alone(out, capsys):
    spoil(out / open_dataset(out).shards[0].path)
    code, said = run(capsys, "verify", out)
    assert code == 1
    assert "convert all of it again, the inputs of version 1 and those that were appended, with --overwrite" in said
    assert "the same `shardkit convert`" not in said
