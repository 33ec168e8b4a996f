"""From the options to the request of a run, as far as that needs neither TensorFlow nor the shards."""

from __future__ import annotations

from typing import NamedTuple

from shardkit.dataset.manifest import FeatureStatistics
from shardkit.dataset.open import Dataset, list_versions, open_dataset
from shardkit.errors import UsageError
from shardkit.features import Feature, Features
from shardkit.storage import files as storage
from train.options.choices import Splits, choose_features, choose_splits
from train.options.config import Task, TrainOptions
from train.options.labels import choose_task
from train.options.length_buckets import check_length_buckets
from train.options.model_defaults import choose_defaults, choose_image_size, choose_model
from train.options.model_table import Defaults
from train.options.step_plan import Shared, TrainPlan, choose_batch_size, choose_lanes
from train.runs.run_folder import RunRecord


class Request(NamedTuple):
    """A request that fits its dataset.

    Attributes:
        options: As typed.
        dataset: Open.
        splits: That are read.
        features: Candidates to learn from.
        label_feature: The label.
        label_statistics: Of the label, by the name of each split that is read.
        task: What the label asks for.
        model: A built-in one, a name from `keras.applications` or `FILE.py:function`.
        defaults: What suits the model where the options do not say.
        image_size: Height and width of images in pixels.
    """

    options: TrainOptions
    dataset: Dataset
    splits: Splits
    features: Features
    label_feature: Feature
    label_statistics: dict[str, FeatureStatistics]
    task: Task
    model: str
    defaults: Defaults
    image_size: int

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that are read."""
        return (self.splits.train,) if self.splits.validation is None else (self.splits.train, self.splits.validation)


def chosen_version(options: TrainOptions, before: RunRecord | None) -> int | None:
    """Returns the version of the dataset that a run reads, None for the newest.

    A resumed run reads the version that it began with, without examples that were appended later.

    Args:
        options: As typed.
        before: Of the run that goes on; None for a new one.
    """
    if options.version is not None or before is None:
        return options.version
    is_same = before.dataset == storage.redact(storage.normalize(options.dataset))
    return before.version if is_same else None


def newer_note(dataset: Dataset) -> str | None:
    """Returns a note on a version that was made since, None if there is none."""
    newest = list_versions(dataset.url)[-1]
    if newest <= dataset.version:
        return None
    return f"the run goes on with version {dataset.version} of the dataset, as it began; there is version {newest}"


def resolve(options: TrainOptions, before: RunRecord | None = None) -> Request:
    """Returns the request with everything filled in that the manifest decides.

    Raises:
        UsageError: If an option does not fit the dataset.
        DamageError: If the manifest is damaged.
    """
    dataset = open_dataset(options.dataset, chosen_version(options, before))
    manifest = dataset.manifest
    splits = choose_splits(manifest, options.train_split, options.validation_split)
    label_feature = manifest.feature(options.label)
    features = choose_features(manifest, options.label, options.features, options.ignore)
    names = [s for s in (splits.train, splits.validation) if s is not None]
    label_statistics = {
        name: own for name in names if (own := manifest.split(name).statistics.get(options.label)) is not None
    }
    own = label_statistics.get(splits.train)
    if own is not None and not own.count:
        raise UsageError(
            f"no example of split {splits.train!r} has a value for the label {options.label!r}",
            next_step="Choose another --label or --train-split; shardkit inspect DATASET shows the nulls",
        )
    model = choose_model(options.model, features, manifest.split(splits.train).statistics)
    if options.length_buckets is not None:
        check_length_buckets(model, options.reader)
    if options.cache != "none" and options.reader == "tfdata":
        raise UsageError(
            f"--cache {options.cache} is for shardkit's own reader",
            why="--reader tfdata was given",
            next_step="Leave one of them out",
        )
    return Request(
        options=options,
        dataset=dataset,
        splits=splits,
        features=features,
        label_feature=label_feature,
        label_statistics=label_statistics,
        task=choose_task(label_feature, own, options.task),
        model=model,
        defaults=choose_defaults(model, features),
        image_size=choose_image_size(options.image_size, model, features),
    )


def make_plan(request: Request, num_replicas: int, num_workers: int, before: Shared | None = None) -> TrainPlan:
    """Returns the steps of the run.

    Args:
        request: What is wanted.
        num_replicas: Devices of all workers, that share a batch.
        num_workers: Processes that share the replicas.
        before: Of the run that goes on; None for a new one.

    Raises:
        UsageError: If the batch does not fit the replicas or the split.
    """
    manifest, splits, options = request.dataset.manifest, request.splits, request.options
    num_lanes = choose_lanes(None if before is None else before.num_lanes, num_workers)
    num_train_examples = manifest.split(splits.train).num_examples
    wanted = options.global_batch_size or (None if before is None else before.global_batch_size)
    default = request.defaults.global_batch_size
    return TrainPlan(
        num_train_examples=num_train_examples,
        num_validation_examples=manifest.split(splits.validation).num_examples if splits.validation else 0,
        global_batch_size=choose_batch_size(wanted, default, num_train_examples, num_replicas),
        num_replicas=num_replicas,
        num_epochs=options.epochs or request.defaults.epochs,
        num_workers=num_workers,
        num_lanes=num_lanes,
        sync_every=options.sync_every,
    )
