"""The step that decodes every image, sound and video once, and rejects the rows of those that do not decode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardkit.errors import UsageError
from shardkit.features import Features
from shardkit.media.decoding import DecodingError, check_decodes, load_decoders, media_kind
from shardkit.sources.base import SourceOptions
from shardkit.transforms.steps import RowError, RowFailure, StepResult, Taken


def media_check(features: Features, source: SourceOptions) -> MediaCheck | None:
    """Returns the step, None where the source decodes everything.

    Raises:
        UsageError: If there is nothing to decode, or an optional package is not installed.
    """
    columns = tuple(
        i for i, f in enumerate(features) if f.is_scalar and f.dtype == "bytes" and media_kind(f.media_type)
    )
    if not columns:
        if source.audio == "samples" or source.video != "bytes":
            return None
        raise UsageError(
            "--check-media is for images, audio files and videos",
            why="no column has the media type of one",
            next_step="Leave it out",
        )
    load_decoders([media_kind(features[i].media_type) for i in columns])
    return MediaCheck(features, columns, source.max_pixels)


@dataclass(frozen=True)
class MediaCheck:
    """Decodes images, sounds and videos, and keeps their bytes.

    Attributes:
        columns: Positions of those that are decoded.
        max_pixels: An image or a frame may have so many.
    """

    features: Features
    columns: tuple[int, ...]
    max_pixels: int
    option = "--check-media"
    sources = None

    def run(self, batch: pa.RecordBatch, *, is_tolerant: bool) -> StepResult:
        """Returns the rows that decode."""
        kept: list[int] = []
        failures: list[RowFailure] = []
        for row in range(batch.num_rows):
            error = self._fault(batch, row)
            if error is None:
                kept.append(row)
                continue
            failures.append(RowFailure(row, error))
            if not is_tolerant:
                break
        if not failures:
            return StepResult(Taken(batch))
        positions = np.array(kept, np.int64)
        return StepResult(Taken(batch.take(pa.array(positions)), positions), tuple(failures))

    def _fault(self, batch: pa.RecordBatch, row: int) -> RowError | None:
        for position in self.columns:
            data = batch.column(position)[row].as_py()
            media_type = self.features[position].media_type or ""
            try:
                if data is not None:
                    check_decodes(data, media_type, self.max_pixels)
            except DecodingError as error:
                return RowError(f"the {media_kind(media_type)} does not decode", str(error), data)
        return None
