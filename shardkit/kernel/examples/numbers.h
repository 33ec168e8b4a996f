// Lists of numbers in any form that protobuf allows.

#pragma once

#include "feature.h"
#include "varints.h"

namespace shardkit {

// Numbers of ListKind, and numbers that are the bytes of one bytes value: of 8 bytes, or of one.
enum SpecKind : int { kBytes = 1, kFloat = 2, kInt64 = 3, kFloat64 = 4, kUint8 = 5 };

inline bool is_raw(SpecKind kind) { return kind >= kFloat64; }
inline size_t width_of(SpecKind kind) { return kind == kFloat ? 4 : kind == kUint8 ? 1 : 8; }

// The only value of a list of bytes values; false if there is another number of them or the list is malformed.
inline bool one_value(const Cell& cell, Span* value) {
  if (as_packed(cell, value)) return true;
  int64_t count = 0;
  const bool is_whole = walk_bytes(cell.span(), [&](Span found) {
    ++count;
    *value = found;
  });
  return is_whole && count == 1;
}

class NumberReader {
 public:
  explicit NumberReader(SpecKind kind) : kind_(kind) {}

  // How many values a list has, -1 if it is malformed (over-long varints are found later).
  int64_t count(const Cell& cell) const;
  // Writes the values of a list that has `count` of them; false if it does not, or is malformed.
  bool put(const Cell& cell, int64_t count, uint8_t* out) const;

 private:
  bool put_irregular(const Cell& cell, uint8_t* out) const;

  SpecKind kind_;
};

}  // namespace shardkit
