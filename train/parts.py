"""The parts of a run, made from a request: plan, label, optimizer, record."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.metadata import version

import msgspec

from shardkit.errors import UsageError
from shardkit.storage import files as storage
from shardkit.storage.options import without_values
from train.models.model_inputs import ModelBundle
from train.models.model_recipe import ModelRecipe, hash_model_file
from train.models.tabular_inputs import count_values
from train.models.user_model import model_path
from train.optimization.objectives import Objective, objective_for
from train.options.config import ClassValue, LabelSpec, TrainOptions
from train.options.labels import (
    BALANCED,
    choose_class_weights,
    classification_label,
    complete_counts,
    listed_values,
    regression_label,
)
from train.options.optimizer_options import Schedule, choose_optimizer
from train.options.step_plan import TrainPlan
from train.runs.request import Request
from train.runs.run_folder import RunRecord

_TOOLS = ("shardkit", "tensorflow", "keras", "numpy")


def make_label(request: Request) -> LabelSpec:
    """Returns the label; reads the splits once where their statistics do not list all classes."""
    feature, statistics = request.label_feature, request.label_statistics
    if request.task == "regression":
        return regression_label(feature, request.splits.train, statistics)
    values: dict[str, Collection[ClassValue]] = {}
    for split in request.split_names if feature.vocabulary is None else (request.splits.train,):
        listed = listed_values(statistics.get(split))
        values[split] = count_values(request.dataset, split, (feature,))[feature.name] if listed is None else listed
    return classification_label(feature, set().union(*values.values()), statistics, values[request.splits.train])


def make_objective(request: Request, label: LabelSpec) -> Objective:
    """Returns the objective; reads the train split once where classes are balanced and its statistics do not count.

    Raises:
        UsageError: If the options do not suit the label.
    """
    options, split = request.options, request.splits.train
    if options.label_smoothing and label.task != "classification":
        raise UsageError(
            "--label-smoothing is for classes",
            why=f"{label.name!r} is predicted as a number",
            next_step="Leave it out, or use --task classification",
        )
    if options.class_weights is None:
        return objective_for(label, options.label_smoothing)
    counts: Mapping[ClassValue, int] | None = None
    if options.class_weights == BALANCED and label.task == "classification":
        counts = complete_counts(request.label_statistics.get(split))
        if counts is None:
            counts = count_values(request.dataset, split, (request.label_feature,))[label.name]
    weights = choose_class_weights(options.class_weights, label, counts)
    return objective_for(label, options.label_smoothing, weights)


def make_record(
    request: Request,
    label: LabelSpec,
    bundle: ModelBundle,
    plan: TrainPlan,
    schedule: Schedule,
    bucket_boundaries: tuple[int, ...] | None = None,
) -> RunRecord:
    """Returns the record of a run for its folder."""
    dataset = request.dataset
    model_file = model_path(request.model) if ":" in request.model else None
    recipe = ModelRecipe(
        features=bundle.features if model_file is None else request.features,
        label_feature=request.label_feature,
        columns=bundle.columns,
        vocabulary=bundle.vocabulary,
        statistics=(
            {}
            if bundle.columns or bundle.vocabulary is not None
            else dict(dataset.manifest.split(request.splits.train).statistics)
        ),
        model_file=None if model_file is None else str(model_file),
        model_sha256=None if model_file is None else hash_model_file(model_file),
    )
    return RunRecord(
        dataset=storage.redact(dataset.url),
        version=dataset.version,
        fingerprint=dataset.manifest.fingerprint,
        splits=request.splits,
        label=label,
        features=tuple(f.name for f in bundle.features),
        model=request.model,
        image_size=request.image_size,
        num_epochs=plan.num_epochs,
        global_batch_size=plan.global_batch_size,
        num_replicas=plan.num_replicas,
        num_lanes=plan.num_lanes,
        reader=request.options.reader,
        optimizer=choose_optimizer(request.options, request.defaults, plan.global_batch_size),
        schedule=schedule,
        seed=request.options.seed,
        label_smoothing=request.options.label_smoothing,
        class_weights=request.options.class_weights,
        sync_every=plan.sync_every,
        bucket_boundaries=bucket_boundaries,
        tool_versions={name: version(name) for name in _TOOLS},
        recipe=recipe,
        options=without_passwords(request.options),
    )


def without_passwords(options: TrainOptions) -> TrainOptions:
    """Returns options that can be kept in a file."""
    return msgspec.structs.replace(
        options,
        dataset=storage.redact(options.dataset),
        output=storage.redact(options.output),
        command=tuple(map(storage.redact, without_values(options.command))),
    )
