"""Notes on what a training may not be able to decode, and on what is lost of images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardkit.features import Feature, Features
from shardkit.file_types import suffix_of
from shardkit.messages import shown

# What tf.io.decode_image and tf.audio.decode_wav of TensorFlow 2.21 do not decode, or decode wrong.
_TITLES = {
    "image/tiff": "TIFF",
    "image/x-portable-anymap": "PNM",
    "image/bmp": "BMP of fewer than 24 bits",
    "audio/flac": "FLAC",
    "audio/ogg": "Ogg",
    "audio/mpeg": "MP3",
    "audio/aiff": "AIFF",
    "audio/basic": "AU",
    "audio/x-caf": "CAF",
    "audio/x-rf64": "RF64",
    "audio/x-rifx": "RIFX",
    "audio/x-w64": "W64",
}
_OF_SEVERAL_FRAMES = ("image/gif", "image/webp", "image/tiff")
_SUFFIXES = {
    **dict.fromkeys((".tif", ".tiff"), "image/tiff"),
    **dict.fromkeys((".pbm", ".pgm", ".ppm", ".pnm"), "image/x-portable-anymap"),
    **dict.fromkeys((".aif", ".aiff", ".aifc"), "audio/aiff"),
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".mp3": "audio/mpeg",
    ".au": "audio/basic",
    ".caf": "audio/x-caf",
    ".w64": "audio/x-w64",
}


def media_notes(features: Features, before: Features, names: Iterable[str]) -> tuple[str, ...]:
    """Returns notes on what TensorFlow does not decode, and on images of which the first frame is stored."""
    kinds = {(f.media_type or "").partition("/")[0] for f in (*features, *before)}
    suffixes = {suffix_of(name) for name in names} if kinds & {"image", "audio"} else set()
    is_rewritten = [f for f in before if f.media_type not in (None, *(g.media_type for g in features))]
    return (*_undecodable(features, suffixes), *_frames(is_rewritten, suffixes))


def unsigned_notes(features: Features) -> tuple[str, ...]:
    """Returns a note on columns of uint64, whose largest values other readers take for negative ones."""
    names = [shown(f.name) for f in features if f.dtype == "uint64"]
    if not names:
        return ()
    return (
        f"uint64 in {', '.join(names)}: a tf.train.Example holds int64, so values from 2**63 on are stored as negative "
        "ones of the same 64 bits, as TFDS does; shardkit reads them back as they were, other readers do not",
    )


def _types_of(feature: Feature, suffixes: Iterable[str]) -> list[str]:
    kind, _, subtype = (feature.media_type or "").partition("/")
    if subtype != "*":
        return [feature.media_type or ""]
    return sorted({t for s, t in _SUFFIXES.items() if s in suffixes and t.startswith(kind)})


def _undecodable(features: Features, suffixes: Iterable[str]) -> Iterator[str]:
    for feature in features:
        found = [_TITLES[t] for t in _types_of(feature, suffixes) if t in _TITLES]
        if found and feature.dtype == "bytes":
            is_image = (feature.media_type or "").startswith("image/")
            advice = "--image-format png stores it as PNG" if is_image else "--audio samples stores the decoded samples"
            yield f"TensorFlow does not decode {', '.join(found)}: {advice}"


def _frames(images: Iterable[Feature], suffixes: Iterable[str]) -> Iterator[str]:
    if any(t in _OF_SEVERAL_FRAMES for f in images for t in _types_of(f, suffixes)):
        yield "of an image with several frames or pages, the first is stored"
