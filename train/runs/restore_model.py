"""Restores a trained model from the folder of its run: the record describes it, and a checkpoint has its weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from shardkit.adapters.tfdata import ParsedBatch
from shardkit.errors import DamageError, UsageError
from shardkit.features import Feature
from train.input.preparation import absent_examples
from train.models.factory import load_builder
from train.models.images import NUM_CHANNELS, center_image
from train.models.model_inputs import ModelBundle, ModelSettings
from train.models.model_recipe import ModelRecipe, hash_model_file
from train.models.user_model import call_user_code, model_path
from train.optimization.precision import find_not_finite, set_precision
from train.options.config import LabelSpec, Precision
from train.reporting.early_stopping import best_first, choose_monitor
from train.reporting.metric_sums import layout_for
from train.runs.best_checkpoint import kept_checkpoints
from train.runs.checkpoints import find_damage
from train.runs.run_folder import RunFolder, RunRecord, list_checkpoints, read_trained

NEWEST = "newest"
BEST = "best"

# Where an optimizer's state holds the moving average of the i-th trainable variable.
_AVERAGE = "optimizer/averages/values/{}/.ATTRIBUTES/VARIABLE_VALUE"

# A run that is under way removes old checkpoints, also those that were just chosen.
_MAX_CHOICES = 10


class Chosen(NamedTuple):
    """A checkpoint that is whole.

    Attributes:
        step: Updates completed when it was written.
        path: Without a suffix.
        notes: Why it is this one, where the user may not expect it.
    """

    step: int
    path: str
    notes: tuple[str, ...]


class RestoredModel(NamedTuple):
    """A trained model and the meaning of its outputs.

    Attributes:
        record: Of its run.
        bundle: With the weights of the checkpoint.
        label: What is predicted.
        label_feature: Its feature, as the train dataset declares it.
        step: Updates completed when the checkpoint was written.
        checkpoint: Its path without a suffix.
        notes: What the user should know.
    """

    record: RunRecord
    bundle: ModelBundle
    label: LabelSpec
    label_feature: Feature
    step: int
    checkpoint: str
    notes: tuple[str, ...]


def restore_model(
    folder: RunFolder, which: str = NEWEST, model: str | None = None, precision: Precision | None = None
) -> RestoredModel:
    """Returns the trained model of a run.

    Args:
        folder: Of the run.
        which: `newest`, `best` by what the run monitored, or the number of a step.
        model: Where the user's file is now, `FILE.py:function`; None if it is where it was.
        precision: That layers compute in; None means that of the run, which gives its metrics.

    Raises:
        UsageError: If there is no run, no such checkpoint, the user's file is not there, or the weights are no numbers.
        DamageError: If the record or every checkpoint is damaged.
    """
    record, recipe = read_trained(folder)
    monitor = choose_monitor(
        None if record.options is None else record.options.monitor,
        layout_for(record.label),
        has_validation=record.splits.validation is not None,
    )
    chosen = choose_checkpoint(folder, which, monitor)
    name, changed = _model_now(record, recipe, model)
    set_precision(precision or record.optimizer.precision)
    settings = ModelSettings(name, record.label, record.image_size, tf.distribute.get_strategy())
    bundle = load_builder(name).restore_bundle(settings, recipe)
    sample = absent_examples(bundle.features, 2)
    outputs = call_user_code(
        model_path(name) if ":" in name else Path(), lambda: model_outputs(bundle, record.image_size, sample)
    )
    if tuple(outputs.shape[1:]) not in [(record.label.num_outputs,), ()]:
        raise _another_model(chosen.path, f"its output has the shape {list(outputs.shape)}")
    chosen = _restore_chosen(bundle, chosen, lambda: choose_checkpoint(folder, which, monitor))
    check_finite(bundle, chosen.path)
    return RestoredModel(
        record,
        bundle,
        record.label,
        recipe.label_feature,
        chosen.step,
        chosen.path,
        (*chosen.notes, *changed, *_other_tools(record)),
    )


def _restore_chosen(
    bundle: ModelBundle, chosen: Chosen, choose_again: Callable[[], Chosen], choices_left: int = _MAX_CHOICES - 1
) -> Chosen:
    """Gives a model the weights of a checkpoint, or of another one if it is gone; returns which."""
    try:
        restore_weights(bundle, chosen.path)
    except tf.errors.OpError as error:
        if choices_left:
            return _restore_chosen(bundle, choose_again(), choose_again, choices_left - 1)
        raise DamageError(
            "the checkpoint cannot be read",
            where=chosen.path,
            why=error.message,
            next_step="If the run is under way, run the same again when it has ended",
        ) from error
    return chosen


def choose_checkpoint(folder: RunFolder, which: str, monitor: str, choices_left: int = _MAX_CHOICES) -> Chosen:
    """Returns a checkpoint that is whole.

    Args:
        folder: Of the run.
        which: `newest` or `best`, where damaged ones are passed over, or the number of a step.
        monitor: The metric that decides which epoch is the best.
        choices_left: How often to choose again where a run changes its checkpoints meanwhile.

    Raises:
        UsageError: If there is no such checkpoint.
        DamageError: If it cannot be read.
    """
    kept = kept_checkpoints(folder.checkpoints, folder.best)
    wanted, notes = _wanted_steps(folder, list(kept), which, monitor)
    for step in wanted:
        for path in kept[step]:
            if (damage := find_damage(path)) is None:
                return Chosen(step, path, tuple(notes))
            if choices_left and kept_checkpoints(folder.checkpoints, folder.best) != kept:
                return choose_checkpoint(folder, which, monitor, choices_left - 1)
            notes.append(f"the checkpoint {path} is damaged and is passed over: {damage}")
    raise DamageError(
        "the checkpoint cannot be read",
        where=str(folder.checkpoints),
        why=notes[-1],
        next_step="Use --at with another step",
    )


def _wanted_steps(folder: RunFolder, kept: list[int], which: str, monitor: str) -> tuple[list[int], list[str]]:
    """Returns the steps of the checkpoints to try, in this order, and notes for the user."""
    if not kept:
        raise UsageError(
            "the run has no checkpoint",
            where=str(folder.checkpoints),
            next_step="Train at least until the end of the first epoch, or use --checkpoint-every",
        )
    if which == BEST:
        ranked = [line.step for line in best_first(folder.read_metrics(), monitor)]
        wanted = [step for step in ranked if step in kept]
        if not wanted:
            raise UsageError(f"no checkpoint is from the end of an epoch with a {monitor}", next_step="Use --at newest")
        if wanted[0] == ranked[0]:
            return wanted, []
        return wanted, [
            f"the best epoch by {monitor} ended after step {ranked[0]:,}, but its checkpoint is not kept; "
            f"{wanted[0]:,} is next"
        ]
    if which == NEWEST:
        if list_checkpoints(folder.checkpoints):
            return kept[::-1], []
        return kept[::-1], [
            f"{folder.checkpoints} holds no checkpoint; this is the one of the best epoch, from {folder.best}"
        ]
    wanted = [step for step in kept if str(step) == which]
    if not wanted:
        raise UsageError(
            f"there is no checkpoint {which!r}",
            where=str(folder.checkpoints),
            next_step=f"Use newest, best or one of {', '.join(map(str, kept))}",
        )
    return wanted, []


def restore_weights(bundle: ModelBundle, path: str) -> None:
    """Gives a model the weights of a checkpoint: the averaged ones where the run averages them.

    Raises:
        UsageError: If the checkpoint is of another model.
    """
    try:
        status = tf.train.Checkpoint(model=bundle.model).read(path)
        status.assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError, TypeError) as error:
        raise _another_model(path, str(error).strip().splitlines()[0]) from error
    reader = tf.train.load_checkpoint(path)
    for i, variable in enumerate(bundle.model.trainable_variables):
        if reader.has_tensor(key := _AVERAGE.format(i)):
            variable.assign(reader.get_tensor(key))


def check_finite(bundle: ModelBundle, path: str) -> None:
    """Checks that a model learned numbers.

    Raises:
        UsageError: If its weights are none, so that it would answer nothing.
    """
    name = find_not_finite(bundle.model.trainable_variables)
    if name is not None:
        raise UsageError(
            "the weights in the checkpoint are not numbers",
            where=path,
            why=f"{name!r} holds NaN or infinity",
            next_step="Use --at with another step, or go on with the training: shardkit train with --resume passes "
            "this checkpoint over; give it a smaller --learning-rate",
        )


def _another_model(path: str, why: str) -> UsageError:
    return UsageError(
        "the checkpoint is of another model",
        where=path,
        why=why,
        next_step="Use the file of the model as it was when the run was made",
    )


def _model_now(record: RunRecord, recipe: ModelRecipe, model: str | None) -> tuple[str, tuple[str, ...]]:
    """Returns the model's name as `load_builder` takes it, and a note if the user's file changed."""
    if recipe.model_file is None:
        if model is not None:
            raise UsageError(
                f"the run has the model {record.model!r}, which is in no file", next_step="Leave --model out"
            )
        return record.model, ()
    name = model or f"{recipe.model_file}:{record.model.rpartition(':')[2]}"
    if ":" not in name:
        raise UsageError(f"{name!r} names no function", next_step="Write it like --model my_model.py:build")
    path = model_path(name)
    if hash_model_file(path) == recipe.model_sha256:
        return name, ()
    return name, (f"{path} is not the file that the run began with; its weights are put into what it makes now",)


def _other_tools(record: RunRecord) -> tuple[str, ...]:
    notes = []
    for name, then in record.tool_versions.items():
        with suppress(PackageNotFoundError):  # Builds of TensorFlow go by several names.
            if (now := version(name)).split(".")[:2] != then.split(".")[:2]:
                notes.append(f"the run was made with {name} {then}, this is {now}")
    return tuple(notes)


def model_inputs(bundle: ModelBundle, image_size: int, batch: ParsedBatch) -> Any:
    """Returns the inputs of a model for parsed columns, images decoded, in eager code and in graphs."""
    inputs: dict[str, tf.Tensor] = dict(bundle.prepare(batch))
    for name in bundle.images:
        inputs[name] = tf.map_fn(
            lambda encoded: center_image(encoded, image_size),
            inputs[name],
            fn_output_signature=tf.TensorSpec([image_size, image_size, NUM_CHANNELS], tf.float32),
        )
    return bundle.arrange(inputs)


def model_outputs(bundle: ModelBundle, image_size: int, batch: ParsedBatch) -> tf.Tensor:
    """Returns the model's outputs for parsed columns, float32: logits `[n, classes]`, or numbers `[n]`."""
    return tf.cast(bundle.model(model_inputs(bundle, image_size, batch), training=False), tf.float32)


def readable_outputs(label: LabelSpec, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns outputs of a model as a user reads them.

    They are `prediction` `[n]`, the name of a class or a number; and for classes `probability` `[n]`, that of the
    prediction, and `probabilities` `[n, classes]`.
    """
    if label.task == "regression":
        return {"prediction": tf.reshape(outputs, [-1])}
    probabilities = tf.nn.softmax(outputs)
    best = tf.argmax(probabilities, axis=1)
    return {
        "prediction": tf.gather(tf.constant(label.class_names, tf.string), best),
        "probability": tf.reduce_max(probabilities, axis=1),
        "probabilities": probabilities,
    }
