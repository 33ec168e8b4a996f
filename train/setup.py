"""The parts of a run, made from a request: plan, label, optimizer, record."""

from __future__ import annotations

from importlib.metadata import version

import keras
import msgspec

from shardkit import storage
from train.config import ClassValue, LabelSpec, TrainOptions
from train.devices import Devices
from train.labels import classification_label, listed_values, regression_label
from train.learner import Learner
from train.plan import TrainPlan, plan_training
from train.recipe import make_recipe
from train.request import Request
from train.run_folder import RunRecord
from train.user_model import model_path
from train.vocabulary import scan_values

WARM_UP_SHARE = 0.05
FINAL_SHARE = 0.01
_NOT_DECAYED = ["bias", "gamma", "beta", "embeddings"]
_TOOLS = ("shardkit", "tensorflow", "keras", "numpy")


def make_plan(request: Request, devices: Devices) -> TrainPlan:
    """Returns the steps of the run.

    Raises:
        UsageError: If the batch does not fit the replicas or the split.
    """
    manifest, splits = request.dataset.manifest, request.splits
    return plan_training(
        num_train_examples=manifest.split(splits.train).num_examples,
        num_validation_examples=manifest.split(splits.validation).num_examples if splits.validation else 0,
        num_replicas=devices.num_replicas,
        num_epochs=request.options.epochs or request.defaults.epochs,
        global_batch_size=request.options.global_batch_size,
        default_batch_size=request.defaults.global_batch_size,
    )


def make_label(request: Request) -> LabelSpec:
    """Returns the label; reads the splits once where their statistics do not list all classes."""
    feature, statistics = request.label_feature, request.label_statistics
    if request.task == "regression":
        return regression_label(feature, request.splits.train, statistics)
    values: set[ClassValue] = set()
    if feature.vocabulary is None:
        for split in request.split_names:
            listed = listed_values(statistics.get(split))
            values.update(
                scan_values(request.dataset, split, (feature,), None)[feature.name] if listed is None else listed
            )
    return classification_label(feature, tuple(values), statistics)


def learning_rate_of(request: Request) -> float:
    """Returns the peak learning rate."""
    return request.options.learning_rate or request.defaults.learning_rate


def make_optimizer(plan: TrainPlan, learning_rate: float, weight_decay: float) -> keras.optimizers.Optimizer:
    """Returns AdamW with a linear warm-up and a cosine decay over all steps of the plan."""
    num_warm_up_steps = round(WARM_UP_SHARE * plan.num_steps)
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=learning_rate * (FINAL_SHARE if num_warm_up_steps else 1.0),
        decay_steps=max(1, plan.num_steps - num_warm_up_steps),
        alpha=FINAL_SHARE,
        warmup_target=learning_rate if num_warm_up_steps else None,
        warmup_steps=num_warm_up_steps,
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=weight_decay)
    optimizer.exclude_from_weight_decay(var_names=_NOT_DECAYED)
    return optimizer


def make_record(request: Request, label: LabelSpec, learner: Learner, plan: TrainPlan) -> RunRecord:
    """Returns what the run trains, for its folder."""
    dataset = request.dataset
    return RunRecord(
        dataset=storage.redact(dataset.url),
        version=dataset.version,
        fingerprint=dataset.manifest.fingerprint,
        splits=request.splits,
        label=label,
        features=tuple(f.name for f in learner.features),
        model=request.model,
        image_size=request.image_size,
        num_epochs=plan.num_epochs,
        global_batch_size=plan.global_batch_size,
        num_replicas=plan.num_replicas,
        learning_rate=learning_rate_of(request),
        seed=request.options.seed,
        tool_versions={name: version(name) for name in _TOOLS},
        recipe=make_recipe(
            request.features if ":" in request.model else learner.features,
            request.label_feature,
            learner.columns,
            dataset.manifest.split(request.splits.train).statistics,
            model_path(request.model) if ":" in request.model else None,
        ),
        options=without_passwords(request.options),
    )


def without_passwords(options: TrainOptions) -> TrainOptions:
    """Returns options that can be kept in a file."""
    return msgspec.structs.replace(
        options,
        dataset=storage.redact(options.dataset),
        output=storage.redact(options.output),
        command=tuple(map(storage.redact, options.command)),
    )
