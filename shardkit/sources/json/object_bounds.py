"""The objects of JSON texts that are not one a line: elements of arrays, or one behind the other.

Brackets and quotes of a whole block are searched at once. Between two elements only white space and one comma may
stand. Where other bytes stand there, elements cannot be separated any more, and the file counts as damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shardkit.encoding.byte_stream import ByteStream
from shardkit.messages import shown
from shardkit.sources.json.keys import Flags, inside_strings
from shardkit.sources.text.blocks import NEWLINE, RETURN, Positions, RecordTooLongError, as_array

_SPACES = b" \t\r\n"
_OPENS, _IS_BRACKET, _IS_SPACE = (np.isin(np.arange(256), list(some)) for some in (b"[{", b"[]{}", _SPACES))
# Replaces a line end in a string: it ends no line, and no valid JSON has it there either.
_BROKEN = 0x01
_SHOWN_BYTES = 1024

_ELEMENT, _OPENING, _CLOSING = 0, 1, -1
_VALUE = rb'(?:"(?:[^"\\]|\\.)*"|[^\s,\[\]{}"]+)'
_SCALAR = re.compile(_VALUE, re.DOTALL)
# Text that may be in an array between two tokens, other than the usual.
_GAPS = {
    (_ELEMENT, _ELEMENT): re.compile(rb"\s*(?:,\s*%b\s*)*,\s*" % _VALUE, re.DOTALL),
    (_ELEMENT, _CLOSING): re.compile(rb"\s*(?:,\s*%b\s*)*" % _VALUE, re.DOTALL),
    (_OPENING, _ELEMENT): re.compile(rb"\s*(?:%b\s*,\s*)*" % _VALUE, re.DOTALL),
    (_OPENING, _CLOSING): re.compile(rb"\s*(?:%b\s*(?:,\s*%b\s*)*)?" % (_VALUE, _VALUE), re.DOTALL),
}


class FrameError(Exception):
    """The bytes between elements are not those that must be there.

    Args:
        offset: Byte of the place.
    """

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(offset, why)
        self.offset = offset
        self.why = why


class State(NamedTuple):
    """Where a place is.

    Attributes:
        level: How many arrays are open, 0 or 1.
        kind: What is last before it: an element, or the opening or closing of an array.
    """

    level: int = 0
    kind: int = _CLOSING


def state_behind_element(head: bytes) -> State:
    """Returns the state behind an element at which a file with this head may be cut: within an array if it has one."""
    return State(level=int(head.lstrip(_SPACES).startswith(b"[")), kind=_ELEMENT)


_OUTSIDE = State()


class Elements(NamedTuple):
    """Some whole elements.

    Attributes:
        data: The bytes up to the end of the last one, and those between them.
        offset: Of the first byte, in the decompressed file.
        starts, stops: Where the elements are in the data, half-open.
        is_last: Whether nothing follows.
        state: Behind the last one.
    """

    data: bytes
    offset: int
    starts: Positions
    stops: Positions
    is_last: bool
    state: State

    def as_lines(self) -> bytes:
        """Returns one element a line, each as long as it is in the data."""
        if not len(self.starts):
            return b""
        values = as_array(self.data)
        values = values[_covered(len(values), self.starts, self.stops)]
        breaks = np.flatnonzero((values == NEWLINE) | (values == RETURN))
        if len(breaks):
            values[breaks] = np.where(inside_strings(values, breaks), _BROKEN, ord(" "))
        lines: bytes = np.insert(values, np.cumsum(self.stops - self.starts)[:-1], NEWLINE).tobytes()
        return lines


class _Tokens(NamedTuple):
    # The tokens of the outermost levels, by start and stop.
    starts: Positions
    stops: Positions
    kinds: Positions


def iter_elements(
    stream: ByteStream,
    *,
    offset: int,
    max_record_bytes: int,
    block_bytes: int,
    state: State = _OUTSIDE,
    stop: int | None = None,
) -> Iterator[Elements]:
    """Yields the elements of a stream of arrays and objects, some at a time.

    Args:
        offset: Byte at which it is.
        state: Of the place at which it is.
        stop: Byte right behind an element, to stop at; None for the end of the stream.

    Raises:
        FrameError: If elements cannot be separated any more, or the last array is not closed.
        RecordTooLongError: If an element is longer than it may be.
    """
    held, is_over = b"", False
    wanted = block_bytes
    while not is_over:
        most = wanted if stop is None else min(wanted, stop - offset)
        held = _filled(stream, held, most)
        is_over = len(held) < wanted
        tokens = _find_tokens(held, offset, state.level)
        used = int(tokens.stops[-1]) if len(tokens.stops) else 0
        scalars, after = _check_gaps(held, offset, tokens, state)
        if is_over and (stop is None or used < len(held)):
            _check_end(held[used:], offset + used, after)
        elements = _elements(held[:used], offset, tokens, scalars, is_over, after)
        if (start := _first_longer(elements, max_record_bytes)) is not None:
            raise RecordTooLongError(offset + start, held[start : start + _SHOWN_BYTES])
        if len(elements.starts):
            yield elements
        held, offset, state = held[used:], offset + used, after
        if len(held) > max_record_bytes and len(begun := held.lstrip(_SPACES + b",")) > max_record_bytes:
            raise RecordTooLongError(offset + len(held) - len(begun), begun[:_SHOWN_BYTES])
        most = max(max_record_bytes, len(held)) + block_bytes
        wanted = block_bytes if len(held) < block_bytes else min(2 * len(held), most)


def _check_end(rest: bytes, offset: int, state: State) -> None:
    text = rest.strip(_SPACES)
    if state.level or text.startswith((b"{", b"[")):
        raise FrameError(offset + len(rest.rstrip(_SPACES)), "the text ends within an array or object")
    if text:
        raise FrameError(offset + len(rest) - len(rest.lstrip(_SPACES)), f"{_shown(text)} stands outside of any object")


def _covered(num_bytes: int, starts: Positions, stops: Positions) -> Flags:
    # True for bytes between a start and its stop.
    bounds = np.empty(2 * len(starts) + 2, dtype=np.int64)
    bounds[0], bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = 0, starts, stops, num_bytes
    return np.repeat(np.arange(len(bounds) - 1) % 2 == 1, np.diff(bounds))


def _filled(stream: ByteStream, held: bytes, wanted: int) -> bytes:
    parts, num_held = [held], len(held)
    while num_held < wanted and (part := stream.read(wanted - num_held)):
        parts.append(part)
        num_held += len(part)
    return b"".join(parts)


def _elements(
    data: bytes, offset: int, tokens: _Tokens, scalars: list[tuple[int, int]], is_last: bool, after: State
) -> Elements:
    is_element = tokens.kinds == _ELEMENT
    starts, stops = tokens.starts[is_element], tokens.stops[is_element]
    if scalars:
        starts = np.sort(np.concatenate([starts, [start for start, _ in scalars]]))
        stops = np.sort(np.concatenate([stops, [stop for _, stop in scalars]]))
    return Elements(data, offset, starts, stops, is_last, after)


def _first_longer(elements: Elements, max_record_bytes: int) -> int | None:
    longer = np.flatnonzero(elements.stops - elements.starts > max_record_bytes)
    return int(elements.starts[longer[0]]) if len(longer) else None


def _find_tokens(data: bytes, offset: int, level: int) -> _Tokens:
    values = as_array(data)
    brackets = np.flatnonzero(_IS_BRACKET[values])
    brackets = brackets[~inside_strings(values, brackets)]
    opens, is_array = _OPENS[values[brackets]], values[brackets] == ord("[")
    after = level + np.cumsum(np.where(opens, 1, -1))
    before = np.where(opens, after - 1, after + 1)
    if (after < 0).any():
        place = int(brackets[np.argmax(after < 0)])
        raise FrameError(offset + place, f"{chr(data[place])!r} closes nothing")
    outer_opens, outer_closes = opens & (before == 0), ~opens & (after == 0)
    # Whether the outermost bracket that each one is in is that of an array; the first may have been opened before.
    in_array = np.concatenate([[level == 1], is_array[outer_opens]])[np.cumsum(outer_opens)]
    starts = brackets[(opens & in_array & (before == 1)) | (outer_opens & ~is_array)]
    stops = brackets[(~opens & in_array & (after == 1)) | (outer_closes & ~in_array)] + 1
    begins, ends = brackets[outer_opens & is_array], brackets[outer_closes & in_array]
    wrong = ends[values[ends] != ord("]")]
    if len(wrong):
        raise FrameError(offset + int(wrong[0]), "'}' stands where ']' must close an array")
    # The last element may not be whole.
    starts = starts[: len(stops)]
    kinds = np.repeat([_ELEMENT, _OPENING, _CLOSING], [len(starts), len(begins), len(ends)])
    all_starts = np.concatenate([starts, begins, ends])
    order = np.argsort(all_starts, kind="stable")
    return _Tokens(all_starts[order], np.concatenate([stops, begins + 1, ends + 1])[order], kinds[order])


def _check_gaps(data: bytes, offset: int, tokens: _Tokens, state: State) -> tuple[list[tuple[int, int]], State]:
    # Elements that are no arrays or objects are in the gaps; there is one gap before each token.
    kinds = tokens.kinds
    if not len(kinds):
        return [], state
    levels = state.level + np.cumsum(kinds) - kinds
    previous = np.concatenate([[state.kind], kinds[:-1]])
    wants_comma = (levels == 1) & (kinds == _ELEMENT) & (previous == _ELEMENT)
    values = as_array(data)
    is_between = ~_covered(int(tokens.stops[-1]), tokens.starts, tokens.stops)
    places = np.flatnonzero(is_between)
    places = places[~_IS_SPACE[values[places]]]
    gaps = np.searchsorted(tokens.starts, places)
    num_commas = np.bincount(gaps[values[places] == ord(",")], minlength=len(kinds))
    num_others = np.bincount(gaps[values[places] != ord(",")], minlength=len(kinds))
    scalars: list[tuple[int, int]] = []
    for gap in np.flatnonzero((num_others > 0) | (num_commas != wants_comma)).tolist():
        start = int(tokens.stops[gap - 1]) if gap else 0
        text = data[start : int(tokens.starts[gap])]
        pattern = _GAPS.get((int(previous[gap]), int(kinds[gap]))) if levels[gap] else None
        if pattern is None or not pattern.fullmatch(text):
            raise FrameError(offset + start, f"{_shown(text)} stands between elements")
        scalars += ((start + m.start(), start + m.end()) for m in _SCALAR.finditer(text))
    return scalars, State(int(levels[-1] + kinds[-1]), int(kinds[-1]))


def _shown(text: bytes) -> str:
    return shown(text.strip(_SPACES).decode("utf-8", "replace"))
