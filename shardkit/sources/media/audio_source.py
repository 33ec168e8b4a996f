"""Audio: the bytes of the files or their samples, and what their headers say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardkit.errors import UsageError
from shardkit.features import Feature, make_feature
from shardkit.file_types import HEAD_BYTES
from shardkit.media.audio_decoding import AudioError, decode_audio, load_soundfile, load_soxr, read_audio_header
from shardkit.media.audio_headers import AUDIO_NUMBERS, audio_type_of, is_wav_of_16_bits
from shardkit.messages import printable
from shardkit.sources.base import RawFile, SourceOptions
from shardkit.sources.columns.sampling import sample_files
from shardkit.sources.files.whole_files import read_heads
from shardkit.sources.media.file_source import Found, MediaSource, Words, not_expected

_TYPE_BYTES, _FORMAT_BYTES = 16, 36
_LOOKED_FILES = 64


@dataclass(frozen=True)
class AudioSource(MediaSource):
    """Audio files: WAV, FLAC, Ogg, MP3, AIFF, AU, CAF, RF64, RIFX, W64, NIST SPHERE and SVX, as libsndfile reads them.

    Samples are float32 from -1 to 1, of several channels frame by frame; float64 where a schema says so.
    """

    format: str = "audio"
    words: ClassVar[Words] = Words("an audio file", "audio files", "the audio", "audio", "no file holds audio")
    content: ClassVar[str] = "audio"
    numbers: ClassVar[tuple[str, ...]] = AUDIO_NUMBERS
    unusable: ClassVar[type[Exception]] = AudioError

    def recognizes(self, head: bytes, name: str) -> bool:
        """Returns whether a file is one of these."""
        return audio_type_of(head, name) is not None

    def media_type(self, head: bytes, name: str) -> str | None:
        """Returns the media type by the first bytes, and by the name where those leave it open."""
        return audio_type_of(head, name)

    def notes(self, files: tuple[RawFile, ...], options: SourceOptions) -> tuple[str, ...]:
        """Returns notes on labels, and on WAV files that TensorFlow does not decode, by a look at some files."""
        notes = super().notes(files, options)
        some = [f for f in sample_files(files, _LOOKED_FILES) if f.num_bytes]
        odd = [
            f
            for f, head in zip(some, read_heads(some, _FORMAT_BYTES), strict=True)
            if audio_type_of(head) == "audio/wav" and not is_wav_of_16_bits(head)
        ]
        if not odd or options.audio == "samples":
            return notes
        what = f"TensorFlow decodes WAV of plain samples of 16 bits, and {printable(odd[0].name)} has others"
        return (*notes, f"{what}: --audio samples stores the decoded samples")

    def check_options(self, options: SourceOptions) -> None:
        """Checks that the decoder is installed, and that a rate is asked for where it has a meaning.

        Raises:
            UsageError: If not.
        """
        load_soundfile()
        if options.audio_rate is None:
            return
        if options.audio != "samples":
            raise UsageError("--audio-rate is for decoded sound", next_step="Add --audio samples, or leave it out")
        if options.audio_rate < 1:
            raise UsageError(
                f"--audio-rate {options.audio_rate} is no rate",
                why="it must be at least 1",
                next_step="Give a number of samples a second, such as --audio-rate 16000",
            )
        load_soxr()

    def content_feature(self, media_type: str, options: SourceOptions) -> Feature:
        """Returns the feature that holds the bytes, or the samples."""
        if options.audio == "samples":
            return make_feature(self.content, "float32", (None,))
        return super().content_feature(media_type, options)

    def examine(self, content: memoryview, name: str, options: SourceOptions) -> Found:
        """Returns the header of a file, and its samples if they are asked for.

        Raises:
            AudioError: If it is no audio, damaged, or too long.
        """
        media_type = audio_type_of(bytes(content[:_TYPE_BYTES]), name)
        if media_type is None:
            raise AudioError(not_expected(bytes(content[:HEAD_BYTES]), self.words.expected))
        if options.audio == "bytes":
            header = read_audio_header(content, media_type)
            return Found((header.sample_rate, header.num_frames, header.num_channels))
        decoded = decode_audio(content, media_type, options.audio_rate, options.max_record_bytes)
        return Found((decoded.sample_rate, *decoded.samples.shape), decoded.samples)
