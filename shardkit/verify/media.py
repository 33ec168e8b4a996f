"""Images, sounds and videos of records, decoded to see whether they are whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from shardkit.dataset.manifest import Manifest
from shardkit.encoding.decoder import RecordDecoder
from shardkit.errors import UsageError
from shardkit.media.decoding import DecodingError, check_decodes, load_decoders, media_kind

_MAX_PIXELS = 64_000_000


class MediaReader:
    """Decodes the images, sounds and videos of records; for any number of threads.

    Raises:
        UsageError: If no feature holds images, sound or video, or an optional package is not installed.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._features = tuple(
            f for f in manifest.features if len(f.shape) < 2 and f.dtype == "bytes" and media_kind(f.media_type)
        )
        if not self._features:
            raise UsageError(
                "--decode is for images, audio files and videos",
                why="no feature of the dataset has the media type of one",
                next_step="Leave it out",
            )
        load_decoders([media_kind(f.media_type) for f in self._features])
        source: Any = manifest.recipe.get("source")
        self._max_pixels = int(source.get("max_pixels", _MAX_PIXELS)) if isinstance(source, dict) else _MAX_PIXELS
        self._decoder = RecordDecoder(self._features)

    def find_problems(
        self, frames: bytes | bytearray, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> Iterator[tuple[int, str]]:
        """Yields position and problem of every record that does not decode.

        Args:
            frames: Holds the records, which have the features of the manifest.
        """
        batch = self._decoder.decode_at(frames, starts, lengths, str)
        for row in range(batch.num_rows):
            for feature, column in zip(self._features, batch.columns, strict=True):
                data = column[row].as_py()
                try:
                    for one in data if isinstance(data, list) else [data]:
                        if one is not None:
                            check_decodes(one, feature.media_type or "", self._max_pixels)
                except DecodingError as error:
                    yield row, f"{feature.name} does not decode: {error}"
                    break
