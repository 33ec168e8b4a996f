// The messages below tf.train.Example: lists of values, features, map entries.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protobuf.h"

namespace shardkit {

// Numbers of the fields of tensorflow.Feature.
enum ListKind : uint8_t { kNone = 0, kBytesList = 1, kFloatList = 2, kInt64List = 3 };

// A serialised list message of one kind; kNone where the feature is absent or has no kind.
struct Cell {
  const uint8_t* begin;
  uint32_t size;
  ListKind kind;
  bool is_roomy = false;  // Whether at least `kRoom` bytes behind the list may be read.

  // The end of the bytes that may be read.
  const uint8_t* safe_end() const { return begin + size + (is_roomy ? kRoom : 0); }
  Span span() const { return {begin, begin + size}; }

  static constexpr int kRoom = 8;
};

constexpr Cell kEmptyCell = {nullptr, 0, kNone};

// Messages around a list: Example, Features, entry, Feature.
constexpr int kListDepth = 4;

// Calls `run(span)` for packed runs and `one(reader)` for single numbers of a list of numbers.
template <typename OnRun, typename OnOne>
bool walk_numbers(Span list, WireType single, OnRun run, OnOne one) {
  Reader reader(list);
  while (!reader.at_end()) {
    uint32_t tag;
    Span span;
    if (!reader.tag(&tag)) return false;
    if (tag == (8 | kDelimited)) {
      if (!reader.delimited(&span) || !run(span)) return false;
    } else if (tag == (8u | single)) {
      if (!one(reader)) return false;
    } else if (!reader.skip(tag, kListDepth)) {
      return false;
    }
  }
  return true;
}

template <typename OnValue>
bool walk_bytes(Span list, OnValue value) {
  Reader reader(list);
  while (!reader.at_end()) {
    uint32_t tag;
    Span span;
    if (!reader.tag(&tag)) return false;
    if (tag == (8 | kDelimited)) {
      if (!reader.delimited(&span)) return false;
      value(span);
    } else if (!reader.skip(tag, kListDepth)) {
      return false;
    }
  }
  return true;
}

// Whether protobuf accepts a list whose values are not used.
bool is_well_formed(const Cell& cell);

// The one packed run that is the whole list, as every writer makes it; false if the list has another form.
inline bool as_packed(const Cell& cell, Span* run) {
  if (cell.size < 2 || cell.begin[0] != (8 | kDelimited)) return false;
  Reader reader({cell.begin + 1, cell.begin + cell.size});
  return reader.delimited(run) && reader.at_end();
}

// Memory for list messages that had to be joined; grows, never moves.
class Arena {
 public:
  uint8_t* take(size_t size) {
    pieces_.emplace_back(new uint8_t[size + 16]());
    return pieces_.back().get();
  }

 private:
  std::vector<std::unique_ptr<uint8_t[]>> pieces_;
};

// One map entry: the key and the feature, merged as protobuf merges them.
struct Entry {
  Span key;
  Cell cell;
};

bool parse_entry(Span bytes, Arena* arena, Entry* entry);

}  // namespace shardkit
