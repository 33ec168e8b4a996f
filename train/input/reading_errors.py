"""What TensorFlow raises while it reads and computes, as errors that a user understands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from shardkit.adapters.tfdata import find_damage, first_line, parse_examples, shard_files, unreachable
from shardkit.dataset.open import Dataset
from shardkit.errors import BadInputError, DamageError, OutOfSpaceError, ShardkitError, UsageError
from shardkit.features import Features
from shardkit.storage import files as storage
from train.models.images import decode
from train.models.series import decode_audio
from train.options.model_defaults import is_audio

_IMAGE = re.compile(r"decode_?image|DecodeImage|image|jpeg|png|gif|bmp|webp", re.IGNORECASE)
_AUDIO = re.compile(r"wav|RIFF|header|audio|fmt|chunk", re.IGNORECASE)
_DAMAGE = re.compile(r"shardkit-count|pars|DecodeRaw|decode_raw|Feature:|record", re.IGNORECASE)
# XLA and some libraries of GPUs say it in errors of another kind.
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|OOM when allocating|out of memory|OUT_OF_MEMORY", re.IGNORECASE)
# A file of the run, not of the dataset.
_UNKNOWN_LABEL = re.compile(r"\[unknown label\] \[([^\]]*)\]")
_CHECKPOINT = re.compile(r"[^\s;'\"]*checkpoints/step-\d+[\w.-]*")
_NAMES = ("filename", "path", "name", "id")


@contextmanager
def explained(
    dataset: Dataset, split: str, features: Features, more_memory: Callable[[], str] | None = None
) -> Iterator[None]:
    """Turns errors of TensorFlow in the block into errors of shardkit, where the user can do something about them."""
    try:
        yield
    except tf.errors.OpError as error:
        known = _explain(error, dataset, split, features, more_memory)
        if known is None:
            raise
        raise known from error


def _explain(
    error: tf.errors.OpError,
    dataset: Dataset,
    split: str,
    features: Features,
    more_memory: Callable[[], str] | None,
) -> ShardkitError | None:
    message = str(error.message)
    if "No space left" in message:
        return OutOfSpaceError("no space left", why=first_line(message), next_step="Free some space, then use --resume")
    if (lost := unreachable(error, dataset)) is not None:
        return lost
    if isinstance(error, tf.errors.ResourceExhaustedError) or _OUT_OF_MEMORY.search(message):
        return UsageError(
            "the device has not enough memory",
            why=first_line(message),
            next_step="Use a smaller --global-batch-size" if more_memory is None else more_memory(),
        )
    if "XLA" in message and ("unsupported operation" in message or "jit_compile" in message or "tf2xla" in message):
        return UsageError("the model cannot be compiled with XLA", why=first_line(message), next_step="Leave out --xla")
    if isinstance(error, tf.errors.PermissionDeniedError):
        return UsageError(
            "permission denied", why=first_line(message), next_step="Choose a folder with --output that may be written"
        )
    if (checkpoint := _CHECKPOINT.search(message)) is not None:
        return DamageError(
            "a file of a checkpoint is missing or damaged",
            where=checkpoint[0],
            why=first_line(message),
            state="The dataset was not looked at",
            next_step="Run the same command with --resume: it goes on from the newest checkpoint that is whole",
        )
    if isinstance(error, tf.errors.DataLossError | tf.errors.NotFoundError):
        return find_damage(error, dataset, split)
    if isinstance(error, tf.errors.InvalidArgumentError):
        if (unknown := _UNKNOWN_LABEL.search(message)) is not None:
            return _unknown_label(dataset, split, unknown[1])
        return _explain_invalid(error, dataset, split, features)
    return None


def _unknown_label(dataset: Dataset, split: str, values: str) -> DamageError:
    return DamageError(
        f"a label of split {split!r} is none of the classes that the manifest names",
        where=storage.redact(dataset.url),
        why=f"one of {' '.join(values.split())}",
        next_step="Convert again, or choose another --label",
    )


def _explain_invalid(
    error: tf.errors.InvalidArgumentError, dataset: Dataset, split: str, features: Features
) -> ShardkitError | None:
    message = str(error.message)
    images = tuple(f for f in features if f.is_image)
    if images and "shardkit-count" not in message and _IMAGE.search(message):
        return find_bad_media(dataset, split, images) or find_damage(error, dataset, split)
    sounds = tuple(f for f in features if is_audio(f))
    if sounds and "shardkit-count" not in message and _AUDIO.search(message):
        return find_bad_media(dataset, split, sounds) or find_damage(error, dataset, split)
    if _DAMAGE.search(message):
        return find_damage(error, dataset, split)
    return None


def find_bad_media(dataset: Dataset, split: str, media: Features) -> BadInputError | None:
    """Returns the error for the first image or audio file of a split that cannot be decoded, None if all can be."""
    named = tuple(f for f in dataset.manifest.features if f.name in _NAMES and f.dtype == "string" and f.is_scalar)
    files = shard_files(dataset, split)
    for url in files.urls:
        for i, record in enumerate(tf.data.TFRecordDataset(url, files.compression)):
            batch = parse_examples(record[tf.newaxis], (*media, *named[:1]))
            for feature in media:
                try:
                    (decode_audio if is_audio(feature) else decode)(batch.values[feature.name][0])
                except tf.errors.OpError as error:
                    name = "".join(f", {f.name} {_text(batch.values[f.name])}" for f in named[:1])
                    return BadInputError(
                        f"{'audio' if is_audio(feature) else 'an image'} in {feature.name!r} cannot be decoded",
                        where=f"{storage.redact(url)}, record {i + 1}{name}",
                        why=first_line(str(error.message)),
                        next_step="Convert again with --audio samples, or without the file"
                        if is_audio(feature)
                        else "Take the file out of the inputs and convert again",
                    )
    return None


def _text(values: tf.Tensor) -> str:
    return repr(values.numpy()[0].decode(errors="replace"))
