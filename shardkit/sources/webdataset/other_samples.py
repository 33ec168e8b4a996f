"""The samples of an archive that the features of its first ones do not hold, and wider features do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.sources.base import SourceOptions
from shardkit.sources.columns.casting import BadValueError
from shardkit.sources.webdataset.columns import build_batch, extension_of, infer_columns
from shardkit.sources.webdataset.samples import Sample
from shardkit.units import MiB

_PIECE_SAMPLES, _PIECE_BYTES = 1_000, 32 * MiB
# Each sample that no features hold costs an inference over the first ones.
_MAX_BAD_SAMPLES = 64


def find_others(first: Sequence[Sample], rest: Iterator[Sample], options: SourceOptions) -> list[Sample]:
    """Returns the samples that have other extensions than those before them, or values of other types.

    Where bad rows are tolerated, values of another kind are bad rows, and only numbers of other types count.

    Args:
        first: The first samples of an archive.
        options: What a value may be.
    """
    known = [sample for sample in first if sample.problem is None]
    features = infer_columns([known], options.max_record_bytes)
    others: list[Sample] = []
    num_bad = 0
    for piece in _pieces(rest):
        if _holds(features, piece, options):
            continue
        for sample in piece:
            is_new = not _extensions(features) >= sample.data.keys()
            if (num_bad == _MAX_BAD_SAMPLES and not is_new) or _holds(features, [sample], options):
                continue
            try:
                wider = infer_columns([[*known, sample]], options.max_record_bytes)
            except UsageError:
                wider = features
            is_kind = not options.tolerates_bad_rows or _are_numbers_wider(features, wider)
            if is_new or (is_kind and _holds(wider, [sample], options)):
                known.append(sample)
                others.append(sample)
                features = wider
            else:
                num_bad += 1
    return others


def _pieces(samples: Iterator[Sample]) -> Iterator[list[Sample]]:
    piece: list[Sample] = []
    num_bytes = 0
    for sample in samples:
        sample.raw.clear()
        if sample.problem is None:
            piece.append(sample)
            num_bytes += sample.num_bytes
        if len(piece) == _PIECE_SAMPLES or num_bytes > _PIECE_BYTES:
            yield piece
            piece, num_bytes = [], 0
    if piece:
        yield piece


def _extensions(features: Features) -> set[str]:
    return {extension_of(f) for f in features}


def _holds(features: Features, samples: Sequence[Sample], options: SourceOptions) -> bool:
    extensions = _extensions(features)
    if not all(extensions >= sample.data.keys() for sample in samples):
        return False
    try:
        _, rounded = build_batch(samples, features, options.max_pixels, options.max_record_bytes)
    except BadValueError:
        return False
    return not any(rounded.values())


def _are_numbers_wider(features: Features, wider: Features) -> bool:
    after = {f.name: f.dtype for f in wider}
    return all(f.dtype == after.get(f.name) or _are_numbers(f.dtype, after.get(f.name, "")) for f in features)


def _are_numbers(*dtypes: str) -> bool:
    return all(dtype.startswith(("int", "float")) for dtype in dtypes)
