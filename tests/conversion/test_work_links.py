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
