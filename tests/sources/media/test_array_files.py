"""Arrays that are a file each: all of one type and shape, or lists."""

import numpy as np
import pytest

from shardkit.cli import main
from shardkit.dataset.open import open_dataset
from shardkit.errors import BadInputError, UsageError
from shardkit.sources import choose_source, list_inputs
from shardkit.sources.base import SourceOptions, settle
from shardkit.testing.reading import read_paths
from tests.support.in_process import read_rows

pytestmark = pytest.mark.full


def read(folder, **given):
    files = list_inputs([str(folder)]).files
    options = SourceOptions(array_record="file", **given)
    source = choose_source(files, options)
    return read_paths(source, [folder], settle(source, files, options))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_types_and_orders(tmp_path, dtype, order):
    arrays = [np.asarray(np.arange(6).reshape(2, 3) % 2 + i, dtype, order=order) for i in range(2)]
    for number, array in enumerate(arrays):
        np.save(tmp_path / f"{number}.npy", array)
    found = read(tmp_path)
    assert (found.features[0].dtype, found.features[0].shape) == (dtype, (2, 3))
    assert found.columns["array"] == [array.reshape(-1).tolist() for array in arrays]


def test_arrays_of_other_shapes_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.zeros((3, 2)))
    with pytest.raises(UsageError, match=r"different kinds: float64 \[2, 3\] and float64 \[3, 2\]"):
        read(tmp_path)


def test_an_array_of_another_shape_that_is_found_late_is_a_bad_row(tmp_path):
    # Of 100 files 64 are looked at, the first two of them with a gap between.
    for number in range(100):
        np.save(tmp_path / f"{number:03}.npy", np.zeros((3, 2) if number == 2 else (2, 3), np.float32))
    with pytest.raises(BadInputError, match=r"an array of shape \[3, 2\] among those of \[2, 3\]"):
        read(tmp_path)
    found = read(tmp_path, tolerates_bad_rows=True)
    assert (len(found.columns["array"]), len(found.rejected)) == (99, 1)


def test_objects_are_not_run(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="pickled objects, which run code"):
        read(tmp_path)


def test_labels_beside_arrays_are_found(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(4):
        np.save(tmp_path / "in" / f"{number}.npy", np.full((2,), number, np.float32))
    rows = "".join(f"{number}.npy,{number % 2}\n" for number in range(4))
    (tmp_path / "in/metadata.csv").write_text(f"file_name,y\n{rows}")
    assert main(["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--array-record", "file"]) == 0
    found = read_rows(open_dataset(str(tmp_path / "out")), "train")
    assert sorted((row["array"][0], row["y"]) for row in found) == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_several_files_of_one_kind_are_refused_without_the_option(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for number in range(3):
        np.save(tmp_path / "in" / f"{number}.npy", np.zeros((2 + number, 3)))
    assert main(["convert", str(tmp_path / "in"), str(tmp_path / "out")]) == 2
    assert "--array-record file or --array-record row" in " ".join(capsys.readouterr().err.split())
