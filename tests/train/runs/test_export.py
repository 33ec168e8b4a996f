"""What is exported gives the trained model's answers without shardkit, and is there whole or not at all."""

from __future__ import annotations

import io
import json
import keyword
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import msgspec
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardkit.cli.train import export as export_trained
from shardkit.errors import ConflictError, DamageError, ShardkitError, UsageError
from shardkit.features import Feature, make_feature
from tests.support.training.trained import make_rows, save, train
from train.reporting.report import Reporter
from train.runs.export import KERAS_FILE, export_run
from train.runs.export_signatures import argument_names, argument_specs
from train.runs.run_folder import RunFolder

pytestmark = pytest.mark.full

CLIENT = """
import json, sys
sys.modules["shardkit"] = sys.modules["train"] = None  # Neither is there for who uses the export.
import tensorflow as tf
folder, rows = sys.argv[1], json.loads(sys.stdin.read())
kinds = {int: ("int64_list", tf.train.Int64List), float: ("float_list", tf.train.FloatList)}

def example(row):
    found = {}
    for name, values in row.items():
        if name == "x":  # float64 is stored as its bytes.
            import struct
            values = [struct.pack("<d", values[0]).decode("latin1")]
        if isinstance(values[0], str):
            content = [v.encode("latin1") for v in values]
            found[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=content))
        else:
            key, kind = kinds[type(values[0])]
            found[name] = tf.train.Feature(**{key: kind(value=values)})
    return tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString()

answer = tf.saved_model.load(folder).signatures["serving_default"](examples=tf.constant([example(r) for r in rows]))
read = lambda values: [v.decode() if isinstance(v, bytes) else v for v in values]
print(json.dumps({name: read(tensor.numpy().tolist()) for name, tensor in answer.items()}))
"""


def ask(folder: Path, rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns the answers of a SavedModel in a process that has no shardkit."""
    listed = [
        {k: v if isinstance(v, list) else [v] for k, v in r.items() if v is not None and k not in ("sides", "size")}
        for r in rows
    ]
    found = subprocess.run(
        [sys.executable, "-c", CLIENT, str(folder)],
        input=json.dumps(listed),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow
def test_classes_and_probabilities_of_raw_examples(classified, tmp_path, capsys) -> None:
    export_run(classified, tmp_path / "model", Reporter())
    assert "largest difference on 64 examples" in capsys.readouterr().err
    rows = make_rows(101, seed=1)
    answer = ask(tmp_path / "model" / "saved_model", rows)
    accuracy = np.mean([a == r["sides"] for a, r in zip(answer["prediction"], rows, strict=True)])
    assert accuracy == pytest.approx(classified.read_metrics()[-1].validation["accuracy"])
    probabilities = np.array(answer["probabilities"])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(probabilities.max(axis=1), answer["probability"], rtol=1e-6)
    description = json.loads((tmp_path / "model" / "export.json").read_text())
    assert description["classes"] == ["few", "many"]
    assert description["saved_model"]["features"]["hour_of_day"] == "int64 [None]"


def test_numbers_of_features_by_name(measured, tmp_path) -> None:
    export_run(measured, tmp_path / "model", Reporter())
    rows = make_rows(101, seed=1)
    ask_features = tf.saved_model.load(str(tmp_path / "model" / "saved_model")).signatures["features"]
    answer = ask_features(
        x=tf.constant([r["x"] or 0.0 for r in rows], tf.float64),
        x_present=[r["x"] is not None for r in rows],
        color=[r["color"] or "" for r in rows],
        color_present=[r["color"] is not None for r in rows],
        hour_of_day=tf.constant([r["hour-of-day"] for r in rows], tf.int64),
        when=tf.constant([r["when"] or 0 for r in rows], tf.int64),
        when_present=[r["when"] is not None for r in rows],
        vector=tf.constant([r["vector"] for r in rows]),
    )
    error = np.abs(answer["prediction"].numpy() - [r["size"] for r in rows]).mean()
    assert error == pytest.approx(measured.read_metrics()[-1].validation["mae"], rel=1e-5)


def test_a_model_of_ones_own_that_moved(own, place, tmp_path) -> None:
    (tmp_path / "moved.py").write_text((place / "own.py").read_text())
    export_run(own, tmp_path / "model", Reporter(), model=f"{tmp_path}/moved.py:build")
    again = tf.keras.models.load_model(tmp_path / "model" / "model.keras")
    assert {i.name for i in again.inputs} == {"x", "x.present", "vector"}


@pytest.mark.parametrize(("is_best", "epoch"), [(True, 1), (False, 2)])
def test_a_training_that_may_end_early_exports_its_best_epoch(measured, tmp_path, is_best, epoch) -> None:
    folder = RunFolder(str(shutil.copytree(measured.path, tmp_path / "run")))
    shutil.rmtree(folder.best)
    lines = folder.read_metrics()
    folder.write_metrics([msgspec.structs.replace(e, validation={"loss": [3.0, 1.0, 2.0][e.epoch]}) for e in lines])
    export_trained(folder, str(tmp_path / "model"), is_best=is_best)
    assert json.loads((tmp_path / "model" / "export.json").read_text())["step"] == lines[epoch].step


def test_what_is_there_is_kept(classified, tmp_path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ConflictError, match="untouched"):
        export_run(classified, tmp_path / "model", Reporter())
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]


@pytest.mark.parametrize(
    ("layer", "kind", "message"),
    [
        ("keras.layers.Lambda(lambda x: x * 2.0, output_shape=(8,))", UsageError, "as a .keras file"),
        ("Noise()", DamageError, "gives other outputs than the trained one"),
    ],
)
def test_a_model_that_cannot_be_trusted_is_not_there(own, place, tmp_path, layer, kind, message) -> None:
    noise = """
        @keras.saving.register_keras_serializable()
        class Noise(keras.layers.Layer):
            def call(self, x):
                return x + keras.random.normal(keras.ops.shape(x), seed=None)
    """
    head, body = (place / "own.py").read_text().split("def build")
    dropout = "keras.layers.Dropout(0.5)"
    assert dropout in body
    (tmp_path / "odd.py").write_text(head + textwrap.dedent(noise) + "\ndef build" + body.replace(dropout, layer))
    with pytest.raises(ShardkitError, match=message) as caught:
        export_run(own, tmp_path / "model", Reporter(), model=f"{tmp_path}/odd.py:build")
    assert isinstance(caught.value, kind)
    assert [p.name for p in tmp_path.iterdir()] == ["odd.py"]


@pytest.fixture
def drawn(tmp_path) -> RunFolder:
    """Returns a run of the image model."""

    def image(i: int) -> bytes:
        sink = io.BytesIO()
        Image.new("RGB", (20 + i, 24), (250, 10, 10) if i % 2 else (10, 10, 250)).save(sink, "JPEG")
        return sink.getvalue()

    features = (
        make_feature("image", "bytes", media_type="image/jpeg"),
        make_feature("label", "int64", vocabulary=("blue", "red")),
    )
    rows = [{"image": image(i), "label": i % 2} for i in range(16)]
    dataset = save(tmp_path / "dataset", features, {"train": rows, "test": rows})
    return train(dataset, tmp_path / "pictures", label="label", epochs=1, global_batch_size=8, image_size=32)


@pytest.mark.slow
def test_files_of_images(drawn, tmp_path) -> None:
    export_run(drawn, tmp_path / "model", Reporter())
    sink = io.BytesIO()
    Image.new("RGB", (50, 40), (250, 10, 10)).save(sink, "PNG")
    answer = ask(tmp_path / "model" / "saved_model", [{"image": sink.getvalue().decode("latin1")}])
    assert answer["prediction"][0] in ("blue", "red")
    assert len(answer["probabilities"][0]) == 2


NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=6)
SHAPES = st.sampled_from([(), (3,), (None,)])


@given(st.dictionaries(NAMES, st.tuples(SHAPES, st.booleans()), min_size=1, max_size=8))
def test_arguments_are_names_and_none_is_twice(declared) -> None:
    features: tuple[Feature, ...] = tuple(
        make_feature(name, "float32", shape, nullable=nullable) for name, (shape, nullable) in declared.items()
    )
    names = argument_names(features)
    specs = argument_specs(features)
    expected = sum(1 + (f.shape == (None,)) + f.nullable for f in features)
    assert len(specs) == expected
    assert all(name.isidentifier() and name.isascii() and not keyword.iskeyword(name) for name in specs)
    assert set(names) == {f.name for f in features}


def test_features_may_have_names_that_python_keeps_for_itself(tmp_path) -> None:
    names = ("self", "class", "cls", "args", "None", "name", "inputs")
    features = (*(make_feature(name, "int64") for name in names), make_feature("sides", "bool"))
    rows = [{**dict.fromkeys(names, i), "sides": i % 2 == 0} for i in range(40)]
    folder = train(save(tmp_path / "dataset", features, {"train": rows}), tmp_path / "run", label="sides")
    export_run(folder, tmp_path / "model", Reporter())
    ask_features = tf.saved_model.load(str(tmp_path / "model" / "saved_model")).signatures["features"]
    arguments = argument_names(features[:-1])
    answer = ask_features(**{arguments[name]: tf.constant([1, 2], tf.int64) for name in names})
    assert len(answer["prediction"]) == 2


def test_a_removed_dataset_has_a_way_out(classified, place, tmp_path) -> None:
    folder = RunFolder(str(shutil.copytree(classified.path, tmp_path / "run")))
    record = folder.record_path.read_text().replace(str(place / "data"), str(tmp_path / "gone"))
    folder.record_path.write_text(record)
    with pytest.raises(UsageError, match="no dataset"):
        export_run(folder, tmp_path / "model", Reporter())
    export_run(folder, tmp_path / "model", Reporter(), dataset=str(place / "data"))
    assert (tmp_path / "model" / "model.keras").is_file()


@pytest.mark.usefixtures("float32_again")
def test_a_bfloat16_run_is_exported_in_float32(place, tmp_path) -> None:
    folder = train(
        place / "data", tmp_path / "run", label="size", ignore=("id", "sides"), precision="bfloat16", epochs=1
    )
    export_run(folder, tmp_path / "model", Reporter())
    model = keras.models.load_model(tmp_path / "model" / KERAS_FILE)
    assert {layer.compute_dtype for layer in model.layers} == {"float32"}
