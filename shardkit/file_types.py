"""What a file is, by its first bytes; names only settle what the bytes leave open."""

from __future__ import annotations

import codecs
import itertools
import re
from pathlib import PurePosixPath
from typing import Any

import msgspec

HEAD_BYTES = 4096
UNKNOWN = "a binary file of a kind that shardkit does not know"

# The third byte of gzip is its only method: a TFRecord may begin with the first two.
_COMPRESSIONS = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\0", "xz"),
)
COMPRESSED_PATTERN = r"\.(gz|zst|zstd|bz2|xz)"
COMPRESSED_SUFFIXES = frozenset({".gz", ".zst", ".zstd", ".bz2", ".xz"})
_JPEG_START = b"\xff\xd8\xff"
_IMAGES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"BM.{4}\0\0\0\0", re.DOTALL), "image/bmp"),
    (re.compile(rb"II\*\0|MM\0\*"), "image/tiff"),
)
_PNM, _PNM_SUFFIXES = re.compile(rb"P[1-6][ \t\r\n#]"), frozenset({".pbm", ".pgm", ".ppm", ".pnm"})
_FOREIGN = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"%PDF", "a PDF"),
    (b"Obj\x01", "an Avro file"),
    (b"Obj\0", "an Avro file of a version before 1.3"),
    (b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f", "a Riegeli file (such as ArrayRecord)"),
    (b"ARROW1", "an Arrow file"),
    (b"FEA1", "a Feather file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"MATLAB 7.3 MAT-file", "an HDF5 file of MATLAB"),
    (b"MATLAB 5.0 MAT-file", "a MATLAB file"),
    (b"X\n\0\0\0", "an object of R"),
    (b"RDX2\n", "a workspace of R"),
    (b"RDX3\n", "a workspace of R"),
    (b"<stata_dta>", "a Stata file"),
    (b"$FL2", "an SPSS file"),
    (bytes(12) + b"\xc2\xea\x81\x60", "a SAS file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\xd0\xcf\x11\xe0", "an old Office document"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"8BPS", "a Photoshop image"),
    (b"%!PS", "a PostScript file"),
    (b"II+\0", "a BigTIFF image"),
    (b"MM\0+", "a BigTIFF image"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 image"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL image"),
    (b"\0\0\1\0", "an icon"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "a Windows Media file"),
    (b"\x1a\x45\xdf\xa3", "a Matroska or WebM file"),
    (b"#!AMR", "an AMR audio file"),
    (b"Creative Voice File", "a Creative Voice audio file"),
    (b"2BIT", "an AVR audio file"),
    (b"ALawSoundFile**", "a Psion audio file"),
    (b"PVF1\n", "a PVF audio file"),
    (b" paf", "an Ensoniq PARIS audio file"),
    (b"fap ", "an Ensoniq PARIS audio file"),
    (b"\xf0\x7e\x00\x01", "a MIDI Sample Dump audio file"),
    (b"\x64\xa3", "an IRCAM audio file"),
    (b"Extended Instrument: ", "a FastTracker audio file"),
)
_FOREIGN_TEXTS = {
    ".arff": "ARFF text",
    **dict.fromkeys((".xml", ".xsd"), "XML text"),
    **dict.fromkeys((".sgm", ".sgml"), "SGML text"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "HTML text"),
    **dict.fromkeys((".yaml", ".yml"), "YAML text"),
    ".sql": "SQL text",
}
# Letters of proteins in capitals, or of nucleotides.
_FASTA_NAME, _LETTERS = re.compile(rb">[^\s>]"), re.compile(rb"[A-Z*.-]+|[ACGTUNacgtun.-]+")
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_SVG = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*(?:<!DOCTYPE svg|<svg[\s>])", re.DOTALL
)
_BOXES = {
    b"avif": "an AVIF image",
    b"heic": "a HEIC image",
    b"heix": "a HEIC image",
    b"mif1": "a HEIF image",
    b"M4A ": "an M4A audio file",
}
# No digit can be matched in two ways, else a long row of numbers would take forever.
_NUMBER = rb"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_LIBSVM = re.compile(_NUMBER + rb"(?:," + _NUMBER + rb")*(?:\s+qid:\d+)?(?:\s+\d+:" + _NUMBER + rb")+\s*(?:#.*)?")
_LIBSVM_INDEX = re.compile(rb"\s(\d+):")
_STATA = re.compile(rb"[\x69-\x73][\x01\x02]\x01\x00(?!\x00\x00)")
_ZIPS = (
    (re.compile(rb"PK\x03\x04.{26}mimetypeapplication/vnd\.oasis\.opendocument", re.DOTALL), "an OpenDocument file"),
    (re.compile(rb"PK\x03\x04.{4}\x00\x00.{20}[^/\0]*/?data\.pkl", re.DOTALL), "a file of PyTorch"),
)
# The version of the protocol, and an operation that begins a common object.
_PICKLE = re.compile(rb"\x80[\x02\x03][\]})(cX.K]|\x80[\x04\x05][\x95]")
_IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}) | _PNM_SUFFIXES
_JSON_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson"})
_MANIFEST_NAME = re.compile(r"(?:^|/)manifests/\d{8}(?:\.json|(?:-[0-9a-f]{16})?\.shards\.parquet)$|\.tfrecord\.idx$")
_DOCUMENT_SUFFIXES = frozenset({"", ".md", ".txt", ".rst"})
_DOCUMENT_STEMS = frozenset({"README", "LICENSE", "LICENCE", "CHANGELOG"})
# A table may be called so as well.
_TEXT_STEMS = frozenset({"NOTICE", "COPYING", "COPYRIGHT"})
_NOTICE_ENDINGS = ("_LICENSE", "_LICENCE", "-LICENSE", "-LICENCE")
_FEW_CONTROLS = 16
_TEXT_SUFFIXES = frozenset({".txt", ".text", ".log"})
_BOM = b"\xef\xbb\xbf"


def compression_of(head: bytes) -> str | None:
    """Returns `gzip`, `zstd`, `bz2`, `xz`, or None if the first bytes are of none of them."""
    found = next((name for magic, name in _COMPRESSIONS if head.startswith(magic)), None)
    # "BZh" may begin a text; a bz2 stream goes on with its block size and the digits of pi.
    if found == "bz2" and head[4:10] not in (b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90"):
        return None
    return found


def image_type_of(head: bytes, name: str | None = "") -> str | None:
    """Returns the media type of the allowed image formats, None for anything else.

    Args:
        head: The first bytes, 16 or more.
        name: Of the file; settles whether `P5 12` begins a PNM or a text. None for what is known to be an image.
    """
    if head.startswith(_JPEG_START):
        return "image/jpeg"
    if _PNM.match(head) and (name is None or suffix_of(name) in _PNM_SUFFIXES):
        return "image/x-portable-anymap"
    return next((media_type for magic, media_type in _IMAGES if magic.match(head)), None)


def has_image_suffix(name: str) -> bool:
    """Whether a file is called like an image."""
    return suffix_of(name) in _IMAGE_SUFFIXES


def is_manifest_name(name: str) -> bool:
    """Whether a file is called like a manifest of a dataset, its shard table, or an index of records."""
    return _MANIFEST_NAME.search(name) is not None


def is_document_name(name: str) -> bool:
    """Whether a file is called like something that accompanies data, such as `README.md` or `LICENSE`."""
    suffix = suffix_of(name)
    if suffix == "" and name.upper().endswith(_NOTICE_ENDINGS):
        return True
    if suffix in (".md", ".rst", ".names"):
        return True
    stem = PurePosixPath(name).name.partition(".")[0].upper()
    is_text_stem = stem in _TEXT_STEMS or stem.endswith(("_README", "_DESCRIPTION"))
    return stem in _DOCUMENT_STEMS or (suffix in _DOCUMENT_SUFFIXES and is_text_stem)


def foreign_format(head: bytes, name: str = "") -> str | None:
    """Returns the format of a file, in words, if shardkit does not read it; None otherwise.

    Args:
        name: Of the file; what is called `.bin` and is no UTF-8 is no text of another encoding.
    """
    if head.startswith(b"PK\x03\x04") and any(name in head for name in (b"[Content_Types].xml", b"xl/", b"docProps/")):
        return "an Excel or Office document"
    if (packed := next((words for start, words in _ZIPS if start.match(head)), None)) is not None:
        return packed
    if _PICKLE.match(head):
        return "a pickle of Python"
    if _STATA.match(head):
        return "a Stata file"
    if _SVG.match(head):
        return "an SVG image"
    known = next((words for magic, words in _FOREIGN if head.startswith(magic)), None)
    if known is not None:
        return known
    if head[257:262] == b"ustar":
        return "a tar archive"
    if head[4:8] == b"ftyp" and head[:3] == bytes(3):
        return _BOXES.get(head[8:12], "an MP4 file")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or _is_utf16(head):
        return None
    return (
        UNKNOWN
        if _looks_binary(head, name) or (suffix_of(name) == ".bin" and not is_utf8(head, is_whole=False))
        else None
    )


def foreign_text(head: bytes, name: str) -> str | None:
    """Returns the format of a text, in words, of which lines are hardly the rows; None for others."""
    if head.startswith(_LFS_POINTER):
        return "a pointer of Git LFS"
    sequences = _sequences_in(head)
    if sequences is not None:
        return sequences
    suffix = suffix_of(name)
    return _FOREIGN_TEXTS.get(suffix_of(name.removesuffix(suffix)) if suffix in COMPRESSED_SUFFIXES else suffix)


def _sequences_in(head: bytes) -> str | None:
    """Returns FASTA or FASTQ in words where a text is one by its first lines, None for others."""
    lines = [line.rstrip() for line in head.split(b"\n")]
    # The last line of a head may be cut off.
    whole = lines[:-1] if len(head) >= HEAD_BYTES and len(lines) > 2 else lines
    if _FASTA_NAME.match(head):
        letters = [line for line in whole if line and not line.startswith(b">")]
        return "FASTA text" if letters and all(map(_LETTERS.fullmatch, letters)) else None
    is_fastq = head.startswith(b"@") and len(lines) > 3 and lines[2].startswith(b"+") and _LETTERS.fullmatch(lines[1])
    return "FASTQ text" if is_fastq and (len(lines[1]) == len(lines[3]) or len(lines) == 4) else None


def is_libsvm(head: bytes) -> bool:
    """Whether nearly all lines are a label and pairs of an index and a value, with ascending indices."""
    # The last line of a head may be cut off.
    lines = head.splitlines()[: -1 if len(head) >= HEAD_BYTES else None]
    rows = [line.strip() for line in lines if line.strip() and not line.startswith(b"#")]
    num_libsvm = sum(map(_is_libsvm_line, rows))
    return num_libsvm > 1 and len(rows) - num_libsvm <= max(len(rows) // 10, num_libsvm > 2)


def _is_libsvm_line(line: bytes) -> bool:
    indices = [int(index) for index in _LIBSVM_INDEX.findall(line.partition(b"#")[0])]
    return _LIBSVM.fullmatch(line) is not None and all(a < b for a, b in itertools.pairwise(indices))


def format_of(head: bytes, name: str) -> str | None:
    """Returns `parquet`, `images`, `jsonl` or `csv` by the decompressed first bytes; None if it is none of them.

    Args:
        head: The first bytes, up to HEAD_BYTES.
        name: Settles which kind of text a damaged or undecided head is.
    """
    if _is_parquet(head, name):
        return "parquet"
    if image_type_of(head) or has_image_suffix(name):
        return "images"
    if foreign_format(head, name):
        return None
    return "jsonl" if _is_json(head, name) else "csv"


def text_kind(head: bytes) -> str:
    """Returns the kind of a head, in words, for a file that should have been an image."""
    if image_type_of(head) is not None:
        return "an image"
    start = head.removeprefix(_BOM).lstrip()[:100].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "HTML text"
    return foreign_format(head) or ("empty" if not head else "text")


def suffix_of(name: str) -> str:
    """Returns the extension of a file with its dot, in lower case, empty if it has none."""
    # PurePosixPath gives the same, but takes ten times as long; there may be a million names.
    stem, dot, suffix = name.rpartition(".")
    is_suffix = suffix and stem and stem[-1] != "/" and "/" not in suffix
    return f"{dot}{suffix}".lower() if is_suffix else ""


def _is_parquet(head: bytes, name: str) -> bool:
    # A text may begin with the word; after the magic bytes Parquet goes on with a Thrift struct or the length of one.
    if not head.startswith((b"PAR1", b"PARE")):
        return False
    return not head[4:8].isascii() or not head[4:8].decode().isprintable() or name.lower().endswith(".parquet")


def _is_json(head: bytes, name: str) -> bool:
    text = head.removeprefix(_BOM).lstrip()
    line = text.split(b"\n", 1)[0]
    suffixes = [s.lower() for s in PurePosixPath(name).suffixes]
    while suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        suffixes.pop()
    if suffixes and suffixes[-1] in _JSON_SUFFIXES:
        return True
    if re.match(rb'\{\s*("|\}|$)|\[\s*(\{|$)', text):
        return True
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False


def _looks_binary(head: bytes, name: str) -> bool:
    # A NUL or two is a damaged text, which deserves to have its line named; a tenth of control bytes is no text, unless
    # they are a few in what is called a text. An escape is none of them, as logs for terminals are full of colours, nor
    # are backspaces alone (underlines).
    num_control = sum(head.count(bytes([c])) for c in (*range(8), *range(14, 27), *range(28, 32)))
    if num_control > 0 and (num_control + head.count(b"\b")) * 10 > len(head):
        is_short_text = suffix_of(name) in _TEXT_SUFFIXES and b"\0" not in head and is_utf8(head, is_whole=False)
        return not is_short_text or num_control > min(_FEW_CONTROLS, len(head) // 4)
    # Texts of other encodings have hardly any, and pixels may have few.
    return num_control > _FEW_CONTROLS and num_control * 50 > len(head) and not is_utf8(head, is_whole=False)


def is_utf8(data: Any, *, is_whole: bool = True) -> bool:
    """Returns whether a text is UTF-8; one that is not whole may end within a character."""
    try:
        codecs.utf_8_decode(data, "strict", is_whole)
    except UnicodeDecodeError:
        return False
    return True


def _is_utf16(head: bytes) -> bool:
    # Every other byte of Latin text in UTF-16 is zero.
    num_pairs = len(head) // 2
    return num_pairs > 0 and any(head[side : 2 * num_pairs : 2].count(0) * 10 > num_pairs * 8 for side in (0, 1))
