"""A trained model for use without shardkit: a SavedModel and a `.keras` file, compared before they are shown."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import keras
import msgspec
import numpy as np
import tensorflow as tf

from shardkit.adapters.tensorflow import to_tensors
from shardkit.adapters.tfdata import ParsedBatch
from shardkit.dataset.block_index import list_blocks
from shardkit.dataset.block_reader import read_block
from shardkit.dataset.open import Dataset
from shardkit.encoding.tfrecord import iter_records
from shardkit.errors import DamageError, UsageError
from shardkit.reading.split import Split
from shardkit.reading.splits import open_splits
from shardkit.storage import files as storage
from shardkit.units import format_number
from train.input.preparation import parsed_batch
from train.reporting.report import Reporter
from train.runs.dataset_check import check_dataset, choose_split
from train.runs.export_signatures import answer_examples, answer_features, argument_names, argument_specs, arguments_of
from train.runs.restore_model import NEWEST, RestoredModel, model_inputs, model_outputs, readable_outputs, restore_model
from train.runs.run_folder import RunFolder, check_target, read_trained

SAVED_MODEL = "saved_model"
KERAS_FILE = "model.keras"
DESCRIPTION = "export.json"
NUM_CHECKED = 64
MAX_DIFFERENCE = 1e-4


class Exported(NamedTuple):
    """What was exported.

    Attributes:
        folder: Holds a SavedModel, a `.keras` file and their description.
        num_checked: Examples whose outputs were compared.
        differences: Largest one of each way to ask, in probabilities, or in standard deviations of the label.
        notes: What the user should know.
    """

    folder: Path
    num_checked: int
    differences: dict[str, float]
    notes: tuple[str, ...]


def export_run(
    folder: RunFolder,
    target: Path,
    reporter: Reporter,
    *,
    which: str = NEWEST,
    model: str | None = None,
    dataset: str | None = None,
    split: str | None = None,
) -> None:
    """Exports the model of a run and says so; it computes in float32 whatever the run did, so that it fits anywhere.

    Args:
        folder: Of the run.
        target: Folder, which must not exist.
        reporter: Gets the result.
        which: Checkpoint: `newest`, `best` or the number of a step.
        model: Where the user's file is now; None if it is where it was.
        dataset: Outputs are compared on its examples; None means that of the training, in its version.
        split: Split of that dataset; None takes `test`, else the one that the run validated on.

    Raises:
        ShardkitError: As `export` and `restore_model.restore_model`.
    """
    check_target(target)
    record, _ = read_trained(folder)
    # A newer version of the dataset may have other columns.
    opened = open_splits(record.dataset, record.version) if dataset is None else open_splits(dataset)
    name = choose_split(opened.manifest, split, record.splits.validation or record.splits.train)
    restored = restore_model(folder, which, model, precision="float32")
    exported = export(restored, opened[name], target)
    for note in (*restored.notes, *exported.notes):
        reporter.note(note)
    found = ", ".join(f"{name} {difference:.1g}" for name, difference in exported.differences.items())
    reporter.say(f"export      {target}: {SAVED_MODEL}/, {KERAS_FILE} and {DESCRIPTION}, after step {restored.step:,}")
    reporter.say(
        f"            both were loaded again; largest difference on {format_number(exported.num_checked, 'example')}: "
        f"{found}"
    )


def export(restored: RestoredModel, split: Split, target: Path) -> Exported:
    """Writes a model, loads it again, compares it with the trained one, and only then shows it under its name.

    Raises:
        ConflictError: If `target` exists.
        UsageError: If the dataset does not suit, the folder cannot be written, or Keras cannot save or load the model.
        DamageError: If the model that was loaded again gives other outputs; nothing is left then.
    """
    check_target(target)
    check_dataset(restored.bundle.features, split.dataset, split.name)
    with _whole_or_absent(target) as folder:
        _write_saved_model(restored, folder / SAVED_MODEL)
        _write_keras_file(restored, folder / KERAS_FILE)
        num_checked, differences = _compare(restored, split, folder)
        wrong = {name: d for name, d in differences.items() if not d <= MAX_DIFFERENCE}
        if wrong:
            name, difference = max(wrong.items(), key=lambda item: item[1])
            raise DamageError(
                f"the exported model gives other outputs than the trained one, by {name}",
                why=f"the largest difference is {difference:.3g}, allowed are {MAX_DIFFERENCE:g}",
                state="Nothing was exported",
                next_step="See whether the model draws random numbers outside of training, or keeps a state",
            )
        (folder / DESCRIPTION).write_bytes(_description(restored, num_checked, differences))
    return Exported(target, num_checked, differences, _notes(target / KERAS_FILE, restored))


def _write_saved_model(restored: RestoredModel, folder: Path) -> None:
    archive = keras.export.ExportArchive()
    archive.track(restored.bundle.model)
    if isinstance(restored.bundle.prepare, tf.Module):
        archive.track(restored.bundle.prepare)
    examples = tf.TensorSpec([None], tf.string, name="examples")
    archive.add_endpoint("serve", answer_examples(restored), input_signature=[examples])
    archive.add_endpoint(
        "features", answer_features(restored), input_signature=[argument_specs(restored.bundle.features)]
    )
    archive.write_out(str(folder), verbose=False)


def _write_keras_file(restored: RestoredModel, path: Path) -> None:
    try:
        restored.bundle.model.save(path)
        keras.saving.load_model(path, compile=False)
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise UsageError(
            "Keras cannot save the model as a .keras file and load it again",
            why=(str(error).strip().splitlines() or [type(error).__name__])[0],
            state="Nothing was exported",
            next_step="Give classes of your own a get_config and keras.saving.register_keras_serializable, "
            "and write Lambda layers as such classes",
        ) from error


def _compare(restored: RestoredModel, split: Split, folder: Path) -> tuple[int, dict[str, float]]:
    features, label = restored.bundle.features, restored.label
    batch, num_rows = _first_batch(restored, split)
    expected = readable_outputs(label, model_outputs(restored.bundle, restored.record.image_size, batch))
    loaded = tf.saved_model.load(str(folder / SAVED_MODEL))
    serialized = tf.constant(list(_first_records(split.dataset, split.name, num_rows)), tf.string)
    inputs = model_inputs(restored.bundle, restored.record.image_size, batch)
    again = keras.saving.load_model(folder / KERAS_FILE, compile=False)
    found = {
        "examples": loaded.signatures["serving_default"](examples=serialized),
        "features": loaded.signatures["features"](**arguments_of(batch, features)),
        "the .keras file": readable_outputs(label, tf.cast(again(inputs, training=False), tf.float32)),
    }
    key, unit = ("prediction", label.std) if label.task == "regression" else ("probabilities", 1.0)
    return num_rows, {
        name: float(np.max(np.abs(answer[key].numpy().astype(np.float64) - expected[key].numpy())) / unit)
        for name, answer in found.items()
    }


def _first_batch(restored: RestoredModel, split: Split) -> tuple[ParsedBatch, int]:
    num_rows = min(NUM_CHECKED, split.num_examples)
    names = [f.name for f in restored.bundle.features]
    reader = split.batches(global_batch_size=num_rows, shuffle=False, features=names, decodes_text=False)
    batch = next(iter(reader))
    reader.close()
    return parsed_batch(to_tensors(batch), restored.bundle.features), num_rows


def _first_records(dataset: Dataset, split: str, num_records: int) -> Iterator[bytes]:
    for shard in dataset.split_shards(split):
        for block in list_blocks(shard):
            for record in iter_records(read_block(dataset, block), shard.path):
                if not num_records:
                    return
                num_records -= 1
                yield bytes(record)


def _description(restored: RestoredModel, num_checked: int, differences: dict[str, float]) -> bytes:
    features, label = restored.bundle.features, restored.label
    names = argument_names(features)
    document: dict[str, Any] = {
        "saved_model": {
            "serving_default": {"examples": "serialized tf.train.Example"},
            "features": {n: f"{s.dtype.name} {s.shape.as_list()}" for n, s in argument_specs(features).items()},
        },
        "features": {names[f.name]: msgspec.to_builtins(f) for f in features},
        "label": label.name,
        "task": label.task,
        "classes": label.class_names,
        "keras_outputs": "logits" if label.task == "classification" else "the number",
        "run": str(Path(restored.checkpoint).parent.parent),
        "step": restored.step,
        "num_checked": num_checked,
        "largest_differences": differences,
        "tool_versions": restored.record.tool_versions,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _notes(path: Path, restored: RestoredModel) -> tuple[str, ...]:
    with zipfile.ZipFile(path) as archive:
        modules = set(_modules(json.loads(archive.read("config.json"))))
    if all(m == "builtins" or m.partition(".")[0] == "keras" for m in modules):
        return ()
    recipe = restored.record.recipe
    return (
        f"{KERAS_FILE} holds classes of {recipe.model_file if recipe else 'other files'}"
        ": import that file before keras.saving.load_model; the SavedModel needs nothing",
    )


def _modules(config: Any) -> Iterator[str]:
    if isinstance(config, dict):
        if isinstance(config.get("module"), str) and "class_name" in config:
            yield config["module"]
        for value in config.values():
            yield from _modules(value)
    elif isinstance(config, list):
        for value in config:
            yield from _modules(value)


@contextmanager
def _whole_or_absent(target: Path) -> Iterator[Path]:
    folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    with storage.translate_os_errors(target):
        folder.mkdir(parents=True)
    try:
        yield folder
        with storage.translate_os_errors(target):
            os.rename(folder, target)  # noqa: PTH104 - of a folder, to a name that is free
    finally:
        shutil.rmtree(folder, ignore_errors=True)
