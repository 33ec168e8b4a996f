"""The folder of a run: what it trains, what it measured, and where its checkpoints and TensorBoard files lie."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from shardkit.decode_errors import DECODE_ERRORS
from shardkit.errors import ConflictError, DamageError, UsageError, place_is_taken
from shardkit.storage import files as storage
from shardkit.storage.links import refuse_link
from shardkit.storage.regular_files import NotRegularError, open_regular
from shardkit.units import format_number
from train.models.model_recipe import ModelRecipe
from train.options.choices import Splits
from train.options.config import LabelSpec, ReaderChoice, TrainOptions
from train.options.optimizer_options import OptimizerOptions, Schedule
from train.options.step_plan import Shared
from train.reporting.metrics import EpochMetrics, decode_lines, encode_line

CHECKPOINT_PREFIX = "step"
_Count = Annotated[int, msgspec.Meta(ge=1)]

_STEP = r"\d{1,18}"  # An int64 of TensorFlow.
_INDEX_NAME = re.compile(rf"{CHECKPOINT_PREFIX}-({_STEP})\.index")
_STATE_LINE = re.compile(rf'^all_model_checkpoint_paths: "(?:.*/)?{CHECKPOINT_PREFIX}-({_STEP})"$', re.MULTILINE)
# Titles of parts of an identity, where the title differs from the name of the part.
_PART_NAMES = {
    ("optimizer", "name"): "optimizer", ("label", "name"): "label", ("label", "classes"): "set of classes",
    ("label", "class_names"): "set of classes", ("splits", "train"): "train split",
    ("splits", "validation"): "split to validate on", ("", "sync_every"): "number of steps between averages",
}  # fmt: skip
# Options that round sums in another way, so that a run goes on well, but not bit for bit.
_ROUNDING = ("xla", "recompute")
# A run that goes on with other values of these would not be the same run.
_IDENTITY = (
    "fingerprint", "splits", "label", "features", "model", "image_size", "global_batch_size", "optimizer", "seed",
    "num_lanes", "reader", "bucket_boundaries", "label_smoothing", "class_weights", "sync_every",
)  # fmt: skip


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run trains; `train.json`.

    Attributes:
        dataset: Where it was read from.
        version: Of the manifest.
        fingerprint: Of the dataset.
        splits: That are read.
        label: What is predicted.
        features: Those that are read.
        model: A built-in one, a name from `keras.applications` or `FILE.py:function`.
        image_size: Height and width of images in pixels.
        num_epochs: Passes over the train split.
        global_batch_size: Examples a step.
        num_replicas: Devices of all workers.
        num_lanes: Blocks that a global batch is mixed from.
        reader: What read the shards.
        optimizer: All that decides what gradients do to the weights.
        seed: Of initial weights, order and augmentation.
        tool_versions: By package name.
        label_smoothing: Part of a class target that is spread evenly over all classes.
        class_weights: `balanced`, or `NAME=WEIGHT,...`.
        sync_every: Steps of each worker between two averages of their weights; None if they add up gradients.
        schedule: Of the learning rate, with its warm-up; None in records of an older shardkit.
        bucket_boundaries: Of the length buckets of the train split; None without.
        recipe: What the model was made from; None in records of an older shardkit, like `options`.
        options: All that was asked for, without passwords.
    """

    dataset: str
    version: _Count
    fingerprint: str
    splits: Splits
    label: LabelSpec
    features: tuple[str, ...]
    model: str
    image_size: _Count
    num_epochs: _Count
    global_batch_size: _Count
    num_replicas: _Count
    num_lanes: _Count
    reader: ReaderChoice
    optimizer: OptimizerOptions
    seed: int
    tool_versions: dict[str, str]
    label_smoothing: float = 0.0
    class_weights: str | None = None
    sync_every: int | None = None
    schedule: Schedule | None = None
    bucket_boundaries: tuple[int, ...] | None = None
    recipe: ModelRecipe | None = None
    options: TrainOptions | None = None

    @property
    def shared(self) -> Shared:
        """What the run keeps whatever the number of its workers is."""
        return Shared(self.global_batch_size, self.num_lanes)


class RunFolder:
    """The output folder of one run.

    Raises:
        UsageError: If it is not local.
    """

    def __init__(self, path: str) -> None:
        if not storage.is_local(path):
            raise UsageError(
                "the folder of a run must be a local folder",
                where=storage.redact(path),
                next_step="Name a local folder, and copy it from or to a store by other means",
            )
        self.path = storage.local_path(path)
        self.record_path = self.path / "train.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.tensorboard = self.path / "tensorboard"

    def open(self, *, resume: bool) -> None:
        """Makes the folder, or checks that going on with it is wanted.

        Raises:
            ConflictError: If it holds a run and `resume` is False.
            UsageError: If it cannot be written.
            UnsafeError: If checkpoints, of which old ones are removed, are behind a link.
        """
        for name in (self.checkpoints.name, self.best.name):
            refuse_link(str(self.path), name)
        if (self.record_path.exists() or list_checkpoints(self.checkpoints)) and not resume:
            raise ConflictError(
                "there is a run already",
                where=str(self.path),
                state="It is untouched",
                next_step="Add --resume to go on with it, or choose another --output",
            )
        for folder in (self.path, self.checkpoints, self.tensorboard):
            storage.make_folder(str(folder))

    def read_record(self) -> RunRecord | None:
        """Returns the record of the run that is there, None if there is none.

        Raises:
            DamageError: If it cannot be read.
        """
        try:
            return msgspec.json.decode(_content_of(self.record_path), type=RunRecord)
        except FileNotFoundError:
            return None
        except (NotRegularError, *DECODE_ERRORS) as error:
            raise DamageError(
                "the record of the run cannot be read",
                where=str(self.record_path),
                why=error.strerror if isinstance(error, NotRegularError) else str(error),
                next_step="Start again with another --output",
            ) from error

    def write_record(self, record: RunRecord) -> None:
        """Stores the record, whole or not at all."""
        self._replace(
            self.record_path, msgspec.json.format(msgspec.json.encode(record, order="deterministic"), indent=2) + b"\n"
        )

    def read_metrics(self) -> list[EpochMetrics]:
        """Returns the epochs that were measured.

        Raises:
            DamageError: If something else than a file is in the place of theirs.
        """
        with storage.translate_os_errors(self.metrics_path, "read"):
            try:
                return decode_lines(_content_of(self.metrics_path))
            except FileNotFoundError:
                return []
            except NotRegularError as error:
                raise DamageError(
                    "the metrics of the run cannot be read",
                    where=str(self.metrics_path),
                    why=error.strerror,
                    next_step="Remove it; the run goes on without them",
                ) from error

    def write_metrics(self, epochs: Sequence[EpochMetrics]) -> None:
        """Stores the epochs, whole or not at all."""
        self._replace(self.metrics_path, b"".join(map(encode_line, epochs)))

    def had_checkpoint(self) -> bool:
        """Returns whether a checkpoint was ever whole: TensorFlow lists it then, and the run copies the best one.

        A line of metrics comes before the checkpoint of its epoch, so that only a second one tells of a checkpoint.
        """
        if (self.checkpoints / "checkpoint").exists() or list_checkpoints(self.best):
            return True
        return self.metrics_path.is_file() and self.metrics_path.read_bytes().count(b"\n") > 1

    def has_checkpoint(self) -> bool:
        """Returns whether there is something to go on from."""
        return bool(list_checkpoints(self.checkpoints)) and self.had_checkpoint()

    def describe_stop(self) -> str:
        """Returns the sentence for a user who stopped the run: what is saved, and how to go on."""
        if self.has_checkpoint():
            step = list_checkpoints(self.checkpoints)[-1]
            return f"The last checkpoint is after step {step:,}; the same command with --resume goes on from there"
        if self.record_path.exists():
            return "There is no checkpoint yet; the same command with --resume starts from the beginning"
        return "Nothing was written yet"

    def _replace(self, path: Path, content: bytes) -> None:
        with storage.translate_os_errors(path):
            temporary = path.with_name(f".{path.name}.new")
            temporary.unlink(missing_ok=True)  # It may be a link.
            temporary.write_bytes(content)
            temporary.replace(path)


def read_trained(folder: RunFolder) -> tuple[RunRecord, ModelRecipe]:
    """Returns the record of a run, and the recipe of its model.

    Raises:
        UsageError: If there is no run, or its record says too little.
        DamageError: If the record cannot be read.
    """
    record = folder.read_record()
    if record is None:
        raise UsageError(
            "there is no run",
            where=str(folder.path),
            next_step="Name the folder that was the --output of shardkit train",
        )
    if record.recipe is None:
        raise UsageError(
            "the record of the run does not say what its model is made of",
            where=str(folder.record_path),
            why="an older shardkit wrote it",
            next_step="Run its shardkit train again with --resume, which renews the record",
        )
    return record, record.recipe


def check_target(target: Path) -> None:
    """Checks that there is nothing yet, and that something can be made there.

    Raises:
        ConflictError: If there is something.
        UsageError, OutOfSpaceError: If nothing can be written there.
    """
    if target.exists() or target.is_symlink():
        raise place_is_taken(str(target))
    storage.make_folder(str(target.parent))


def list_checkpoints(folder: Path) -> list[int]:
    """Returns the steps after which there is a checkpoint, ascending.

    The files decide, not the `checkpoint` file beside them: where that is damaged, TensorFlow finds no checkpoint.
    """
    if not folder.is_dir():
        return []
    matches = (_INDEX_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(m.group(1)) for m in matches if m)


def promised_checkpoints(folder: Path) -> list[int]:
    """Returns the steps of `list_checkpoints`, and newer ones of which TensorFlow says that they were whole once.

    What a kill leaves of a checkpoint that was being written is not among them.
    """
    steps = list_checkpoints(folder)
    try:
        text = _content_of(folder / "checkpoint").decode(errors="replace")
    except OSError:
        return steps
    named = {int(m.group(1)) for m in _STATE_LINE.finditer(text)}
    return [*steps, *sorted(step for step in named if step > max(steps, default=-1))]


def _content_of(path: Path) -> bytes:
    # A pipe in the place of a file would be waited for.
    with open_regular(path) as file:
        return file.read()


def note_on_model_file(before: RunRecord, now: RunRecord) -> str | None:
    """Returns a note where the file of the model has changed, None otherwise."""
    then = None if before.recipe is None else before.recipe.model_sha256
    if then is None or now.recipe is None or then == now.recipe.model_sha256:
        return None
    return f"{now.recipe.model_file} has changed since the run began; the run goes on with the file as it is now"


def notes_on_changes(before: RunRecord, now: RunRecord) -> list[str]:
    """Returns notes on the options that differ from those that a run began with."""
    notes = []
    if before.num_epochs != now.num_epochs:
        notes.append(
            f"the run began with {format_number(before.num_epochs, 'epoch')}; the learning rate now follows its "
            f"schedule over {now.num_epochs}"
        )
    old_rate, rate = before.optimizer.learning_rate, now.optimizer.learning_rate
    if old_rate != rate:
        notes.append(f"the run began with the learning rate {old_rate:g}; it goes on with {rate:g}")
    for name in _ROUNDING if before.options is not None and now.options is not None else ():
        old, new = getattr(before.options, name), getattr(now.options, name)
        if old != new:
            notes.append(
                f"the run began {'with' if old else 'without'} --{name}; its weights will differ in their last digits "
                "from what they would be"
            )
    return notes


def check_same_run(before: RunRecord, now: RunRecord, folder: Path) -> None:
    """Checks that a run that goes on is the run that began.

    Raises:
        UsageError: If what it trains differs; names the first difference.
    """
    # Smaller steps mend a run that failed, and nothing that is saved depends on them.
    rate = now.optimizer.learning_rate
    before = msgspec.structs.replace(before, optimizer=msgspec.structs.replace(before.optimizer, learning_rate=rate))
    for name in _IDENTITY:
        old, new = getattr(before, name), getattr(now, name)
        if name == "fingerprint" and old != new:
            raise UsageError(
                "the run that is there was trained on another dataset",
                where=str(folder),
                why=f"{before.dataset} in version {before.version} then, {now.dataset} in version {now.version} now",
                next_step="Name the dataset and the --version that the run began with, or choose another --output",
            )
        if old != new:
            if isinstance(old, OptimizerOptions | LabelSpec | Splits):
                part = next(n for n in old.__struct_fields__ if getattr(old, n) != getattr(new, n))
                old, new = getattr(old, part), getattr(new, part)
                name = _PART_NAMES.get((name, part), part)
            what = _PART_NAMES.get(("", name), name.replace("_", " "))
            raise UsageError(
                f"the run that is there has {'other' if what.endswith('s') else 'another'} {what}",
                where=str(folder),
                why=f"{_shown(old)} then, {_shown(new)} now",
                next_step="Give the options that the run began with, or choose another --output",
            )


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else text[:200] + "..."
