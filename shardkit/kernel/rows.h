// Pass one of decoding: where the list of every wanted feature lies in every record.

#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "buffer.h"
#include "feature.h"

namespace shardkit {

// The names that are wanted, in the byte order of their UTF-8, which is the order in which the encoder stores them.
class Names {
 public:
  explicit Names(std::vector<std::string> names);
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;

  size_t size() const { return keys_.size(); }
  // Position of a name, -1 if it is not wanted.
  int find(Span name) const;

  // Whether the bytes of an entry start with the key field of this name and the tag of a value.
  bool matches(size_t slot, const uint8_t* p, const uint8_t* safe_end) const {
    const Key& key = keys_[slot];
    if (safe_end - p < 16) return false;
    if (((load<uint64_t>(p) ^ key.words[0]) & key.masks[0]) != 0) return false;
    if (((load<uint64_t>(p + 8) ^ key.words[1]) & key.masks[1]) != 0) return false;
    return key.prefix.size() <= 16 || (static_cast<size_t>(safe_end - p) >= key.prefix.size() &&
                                       std::memcmp(p + 16, key.prefix.data() + 16, key.prefix.size() - 16) == 0);
  }
  size_t prefix_size(size_t slot) const { return keys_[slot].prefix.size(); }

 private:
  struct Key {
    std::string prefix;
    uint64_t words[2], masks[2];
  };
  std::vector<Key> keys_;
  std::vector<std::string> names_;
  std::unordered_map<std::string_view, int> slots_;
};

// One cell a name and record, unset at first. The cells of a name lie together, which is how pass two reads them.
class CellTable {
 public:
  CellTable(size_t num_names, size_t num_records)
      : num_records_(num_records), block_(num_names * num_records * sizeof(Cell)), cells_(block_.as<Cell>()) {}

  Cell* column(size_t slot) { return cells_ + slot * num_records_; }
  const Cell* column(size_t slot) const { return cells_ + slot * num_records_; }

 private:
  size_t num_records_;
  Block block_;
  Cell* cells_;
};

struct ParseOptions {
  const uint8_t* safe_end;  // The end of what may be read.
  bool refuses_others;      // Whether a feature that is not wanted is a problem.
};

// Fills all cells of a record; false, with cells that mean nothing, if it is no tf.train.Example or refused.
bool parse_record(const Names& names, const ParseOptions& options, Span bytes, Arena* arena, size_t record,
                  CellTable* cells);

}  // namespace shardkit
