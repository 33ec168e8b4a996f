"""A conversion removes its intermediate files in the end, and nothing that a link makes look like them."""

import msgspec
import pytest

from shardkit.cli import main
from shardkit.conversion.inputs.database_rows import server_rows
from shardkit.conversion.prepare import prepare
from shardkit.conversion.request import ConvertRequest
from shardkit.errors import UnsafeError
from shardkit.sources.base import SourceOptions


@pytest.fixture
def request_(tmp_path):
    (tmp_path / "0.csv").write_text("a,b\n1,2\n3,4\n")
    return ConvertRequest(inputs=(str(tmp_path / "0.csv"),), destination=str(tmp_path / "out"))


@pytest.mark.full
@pytest.mark.parametrize("linked", ["", "spool"])
def test_a_work_folder_with_a_link_is_refused(request_, tmp_path, capsys, linked):
    fingerprint = prepare(request_).plan.fingerprint
    precious = [tmp_path / "mine/shards/f", tmp_path / "mine/0.run"]
    for path in precious:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    link = tmp_path / "out/work" / fingerprint / linked
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "mine")
    assert main(["convert", *request_.inputs, request_.destination]) == 7
    assert f"{link.name} is a link" in capsys.readouterr().err
    assert all(path.exists() for path in (*precious, link))


@pytest.mark.full
@pytest.mark.parametrize("linked", ["data", "data/FINGERPRINT", "manifests", "work"])
def test_data_of_another_dataset_behind_a_link_stays(request_, tmp_path, capsys, linked):
    """Names and sizes of inputs name a dataset: other rows of equal size would go to shards of the same names."""
    other = tmp_path / "other"
    assert main(["convert", *request_.inputs, str(other)]) == 0
    (tmp_path / "0.csv").write_text("a,b\n5,6\n7,8\n")
    fingerprint = prepare(request_).plan.fingerprint
    of_dead_writer = other / "data" / fingerprint / ".x.0123456789abcdef"
    of_dead_writer.touch()
    link = tmp_path / "out" / linked.replace("FINGERPRINT", fingerprint)
    behind = other / link.relative_to(tmp_path / "out")
    behind.mkdir(exist_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(behind)
    before = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    for option in ("", "--overwrite", "--dry-run"):
        capsys.readouterr()
        assert main(["convert", *request_.inputs, request_.destination, *filter(None, [option])]) == 7
        assert f"{link.relative_to(tmp_path / 'out')} is a link" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in other.rglob("*") if path.is_file()} == before


@pytest.mark.full
def test_the_folder_of_a_dataset_may_be_a_link(request_, tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "large")
    assert main(["convert", *request_.inputs, request_.destination]) == 0
    assert main(["convert", *request_.inputs, request_.destination, "--overwrite"]) == 0
    assert main(["clean", request_.destination, "--older-than", "0", "--keep-versions", "1", "--delete"]) == 0
    assert main(["verify", request_.destination]) == 0


@pytest.mark.full
@pytest.mark.parametrize("below", ["", "sub"])
def test_a_work_dir_may_be_a_link_or_lie_behind_one(request_, tmp_path, below):
    (tmp_path / "large").mkdir()
    (tmp_path / "scratch").symlink_to(tmp_path / "large")
    work_dir = str(tmp_path / "scratch" / below)
    assert main(["convert", *request_.inputs, request_.destination, "--work-dir", work_dir]) == 0


def test_rows_of_a_server_are_not_kept_behind_a_link(request_, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/queries").symlink_to(tmp_path)
    source = SourceOptions(table="t")
    asked = msgspec.structs.replace(request_, inputs=("postgresql://localhost:1/none",), source=source)
    with pytest.raises(UnsafeError, match="queries is a link"), server_rows(asked, str(tmp_path / "work")):
        pass
