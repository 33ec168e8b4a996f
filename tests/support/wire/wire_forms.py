"""Writes `tf.train.Example` records by hand, in all forms that protobuf allows and, if asked, in some that it does not.

A `Writer` takes its choices from a `random.Random`, so that a seed or Hypothesis can steer it. It shares no code with
shardkit. Wire format: https://protobuf.dev/programming-guides/encoding.
"""

import struct

NAMES = [b"a", b"b", b"ids", b"x1", b"x10", b"label", b"a name of sixteen", b"n" * 130, b"\xff\xfe", b""]
VARINT, FIXED64, DELIMITED, START_GROUP, END_GROUP, FIXED32 = range(6)
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3

_INT64S = [0, 1, -1, 127, 128, 2**14, 2**21 - 1, 2**28, 2**35, 2**56 - 1, 2**63 - 1, -(2**63)]
_FLOATS = [b"\0\0\0\0", b"\0\0\0\x80", b"\x01\0\xa0\x7f", b"\xff\xff\xff\xff", b"\0\0\x80\x7f", struct.pack("<f", 1.5)]


def varint(value, num_padding=0):
    out = bytearray()
    value &= 2**64 - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(num_padding):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def tag(number, wire_type, num_padding=0):
    return varint(number << 3 | wire_type, num_padding)


def field(number, payload):
    return tag(number, DELIMITED) + varint(len(payload)) + payload


class Writer:
    """Writes random records.

    Args:
        oddity: Probability of each choice of a form that the usual writers do not make but protobuf accepts.
        damage: Probability of each choice of a form that protobuf refuses.
    """

    def __init__(self, rng, oddity=0.0, damage=0.0):
        self.rng = rng
        self.oddity = oddity
        self.damage = damage

    def record(self):
        count = 1 if not self._odd() else self.rng.randrange(4)
        return self._message([self._delimited(1, self._features()) for _ in range(count)], 0)

    def value(self, kind):
        """Returns one value as it lies in a packed run; of a bytes value, its bytes."""
        if kind == INT64_LIST:
            if self._damaged():
                return self.rng.choice([b"\x80" * 10 + b"\0", b"\xff" * 10 + b"\x01", b"\x80"])
            if self._odd():
                return self.rng.choice([b"\xff" * 9 + b"\x7f", b"\x81" * 9 + b"\x02", varint(5, self.rng.randrange(9))])
            if self.rng.random() < 0.3:
                return varint(self.rng.choice(_INT64S))
            return varint(self.rng.getrandbits(self.rng.randrange(1, 64)))
        if kind == FLOAT_LIST:
            value = self.rng.choice(_FLOATS) if self.rng.random() < 0.3 else self.rng.randbytes(4)
            return value[:3] if self._damaged() else value
        return self.rng.randbytes(self.rng.choice([0, 1, 3, 8, 8, 16, 24, 40]))

    def _features(self):
        names = [name for name in NAMES if self.rng.random() < 0.5]
        if self._odd():
            names += self.rng.choices(NAMES, k=2)
            self.rng.shuffle(names)
        return self._message([self._delimited(1, self._entry(name)) for name in names], 1)

    def _entry(self, name):
        parts = [self._delimited(1, name), self._delimited(2, self._feature(name))]
        if self._odd():
            self.rng.shuffle(parts)
        if self._odd():
            parts.insert(self.rng.randrange(3), self._delimited(1, self.rng.choice(NAMES)))
        if self._odd():
            parts.insert(self.rng.randrange(3), self._delimited(2, self._feature(name)))
        if self._odd():
            parts.pop(self.rng.randrange(len(parts)))
        return self._message(parts, 2)

    def _feature(self, name):
        # The kind follows from the name, so that most records fit a spec.
        kind = 1 + NAMES.index(name) % 3
        kinds = [kind]
        if self._odd():
            kinds = [self.rng.choice([kind, kind, 1 + self.rng.randrange(3)]) for _ in range(self.rng.randrange(4))]
        return self._message([self._delimited(k, self._list(k)) for k in kinds], 3)

    def _list(self, kind):
        # Mostly one number of values for a name, so that most records fit a spec with a fixed one.
        count = self.rng.choice([1, 1, 1, 1, 0, 2, 3, 3, 9])
        values = [self.value(kind) for _ in range(count)]
        if kind == BYTES_LIST:
            return self._message([self._delimited(1, value) for value in values], 4)
        if not self._odd():
            return self._message([self._delimited(1, b"".join(values))] if values else [], 4)
        single = tag(1, VARINT if kind == INT64_LIST else FIXED32)
        parts = []
        while values:
            run, values = values[: self.rng.randrange(4)], values[self.rng.randrange(1, 4) :]
            if self.rng.random() < 0.5:
                parts += [single + value for value in run]
            else:
                parts.append(self._delimited(1, b"".join(run)))
        return self._message(parts, 4)

    def _message(self, parts, depth):
        parts = list(parts)
        while self._odd():
            parts.insert(self.rng.randint(0, len(parts)), self._unknown(depth))
        if self._damaged():
            parts.insert(self.rng.randint(0, len(parts)), self._broken(depth))
        return b"".join(parts)

    def _delimited(self, number, payload):
        length = len(payload)
        if self._damaged():
            length = max(0, length + self.rng.choice([-1, 1, 1, 2, 127, 2**31 - 1, 2**32, 2**63, 2**64 - 1 - length]))
        padding = self.rng.randrange(9) if self._odd() else 0
        size = varint(length, min(padding, 10 - len(varint(length))))
        if self._odd():
            size = size + b"" if len(size) < 10 else size[:9] + b"\x02"
        return self._tag(number, DELIMITED) + size + payload

    def _tag(self, number, wire_type):
        if self._damaged():
            return tag(number, wire_type, 5)
        plain = tag(number, wire_type)
        return tag(number, wire_type, self.rng.randrange(6 - len(plain))) if self._odd() else plain

    def _unknown(self, depth):
        """Returns a field that the message does not know: by its number, or by its wire type."""
        wire_type = self.rng.choice([VARINT, FIXED64, DELIMITED, START_GROUP, FIXED32])
        known = {DELIMITED} if depth < 4 else {VARINT, DELIMITED, FIXED32}
        numbers = [4, 15, 16, 2047, 2048, 2**29 - 1] + ([] if wire_type in known else [1, 2, 3])
        number = self.rng.choice(numbers)
        start = self._tag(number, wire_type)
        if wire_type == VARINT:
            return start + self.value(INT64_LIST)
        if wire_type == FIXED64:
            return start + self.rng.randbytes(8)
        if wire_type == FIXED32:
            return start + self.rng.randbytes(4)
        if wire_type == DELIMITED:
            return start + varint(4) + self.rng.randbytes(4)
        if self.rng.random() < 0.05:
            left = 99 - depth
            nested = left + 1 if self._damaged() else self.rng.choice([left, left - 1, left // 2])
            inner = tag(1, START_GROUP) * nested + tag(1, END_GROUP) * nested
        else:
            inner = self._message([], depth + 1) if depth < 6 else b""
        end = number + 1 if self._damaged() else number
        return start + inner + self._tag(end, END_GROUP)

    def _broken(self, depth):
        return self.rng.choice(
            [
                tag(0, VARINT) + b"\x01",
                tag(0, DELIMITED) + b"\0",
                tag(0, VARINT, 1) + b"\x01",
                tag(0, START_GROUP) + tag(0, END_GROUP),
                tag(0, END_GROUP),
                tag(9, 6) + b"\0",
                tag(9, 7) + b"\0",
                tag(9, END_GROUP),
                tag(1, END_GROUP),
                tag(9, START_GROUP),
                tag(9, START_GROUP) + tag(8, START_GROUP) + tag(9, END_GROUP) + tag(8, END_GROUP),
                tag(1, START_GROUP) * (101 - depth) + tag(1, END_GROUP) * (101 - depth),
                b"\xfa\xff\xff\xff\x1f\0",
                b"\x8a\x80\x80\x80\x10\0",
                b"\x80",
                b"\xff" * 12,
                tag(9, FIXED64) + b"1234567",
                tag(9, FIXED32) + b"123",
                tag(9, VARINT) + b"\x80" * 10 + b"\0",
                tag(9, DELIMITED) + varint(2**31 - 1),
                tag(9, DELIMITED) + varint(2**64 - 1),
            ]
        )

    def _odd(self):
        return self.oddity > 0 and self.rng.random() < self.oddity

    def _damaged(self):
        return self.damage > 0 and self.rng.random() < self.damage


def mutate(rng, record, other):
    """Returns a record with a few bytes changed; `other` is one to splice in."""
    data = bytearray(record)
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3])):
        at = rng.randint(0, len(data))
        kind = rng.choice([0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7])
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = rng.choice([0, 1, 0x0A, 0x12, 0x1A, 0x7F, 0x80, 0xFF, 3, 4, 8, 0x0D])
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 4))
        elif kind == 4:
            del data[at : at + rng.randint(1, 4)]
        elif kind == 5:
            first = rng.randint(0, len(other))
            data[at:] = other[first:]
        elif kind == 6:
            size = rng.randint(1, 12)
            data[at:at] = data[at : at + size]
        elif data:
            i = at % len(data)
            data[i] = (data[i] + rng.choice([-1, 1, 2, -2])) % 256
    return bytes(data)


def random_specs(rng):
    """Returns specs as the kernel takes them, most of them such that most records of a `Writer` fit."""
    specs = []
    for _ in range(rng.randint(0, 7)):
        index = rng.randrange(len(NAMES))
        kind = 1 + index % 3
        if kind == BYTES_LIST and rng.random() < 0.3:
            kind = rng.choice([4, 5])
        if rng.random() < 0.05:
            kind = rng.randint(1, 5)
        specs.append((NAMES[index], kind, rng.choice([-1, -1, -1, -1, 1, 1, 1, 3, 0]), rng.random() < 0.15))
    return specs
