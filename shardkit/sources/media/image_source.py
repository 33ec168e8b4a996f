"""Images: their bytes as they are, and their size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardkit.file_types import image_type_of
from shardkit.media.image_headers import ImageHeaderError, read_header
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.media.box_tables import turned_note
from shardkit.sources.media.file_source import Found, MediaSource, Words


@dataclass(frozen=True)
class ImageSource(MediaSource):
    """Images: JPEG, PNG, WebP, GIF, BMP, TIFF and PNM.

    Those that declare too many pixels are refused before they are decoded.
    """

    format: str = "images"
    words: ClassVar[Words] = Words("an image", "images", "the image", "an image", "no file holds one")
    content: ClassVar[str] = "image"
    numbers: ClassVar[tuple[str, ...]] = ("height", "width", "channels")
    unusable: ClassVar[type[Exception]] = ImageHeaderError

    def media_type(self, head: bytes, name: str) -> str | None:
        """Returns the media type by the first bytes, and by the name where those leave it open."""
        return image_type_of(head, name)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on classes and labels, and on images that are not stored upright beside boxes."""
        notes = super().notes(files, options)
        return notes if options.labels is None else (*notes, *turned_note(files, self.infer(files, options)))

    def examine(self, content: memoryview, name: str, options: SourceOptions) -> Found:
        """Returns the size of an image. Raises ImageHeaderError if it is none, or has too many pixels."""
        header = read_header(content, options.max_pixels)
        return Found((header.height, header.width, header.channels))
