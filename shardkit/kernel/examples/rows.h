// Pass one of decoding: the entry of every record for every wanted feature. Single numbers are read at once; for all
// other features the place of their list is noted.

#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../buffer.h"
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

  // Whether an entry at `p`, of which `kShown` bytes may be read, has this name and goes on with a value. The size of
  // the entry is not looked at.
  bool matches(size_t slot, const uint8_t* p, const uint8_t* safe_end) const {
    const Key& key = keys_[slot];
    const uint64_t others = ((load<uint64_t>(p) ^ key.words[0]) & key.masks[0]) |
                            ((load<uint64_t>(p + 8) ^ key.words[1]) & key.masks[1]) |
                            ((load<uint64_t>(p + 16) ^ key.words[2]) & key.masks[2]);
    return others == 0 && (key.size <= kShown || (static_cast<size_t>(safe_end - p) >= key.size &&
                                                  std::memcmp(p + kShown, key.prefix.data() + kShown,
                                                              key.size - kShown) == 0));
  }
  // Bytes before the value in an entry of at most 127 bytes: its tag and size, the key, the tag of the value.
  size_t prefix_size(size_t slot) const { return keys_[slot].size; }

  static constexpr size_t kShown = 24;

 private:
  struct Key {
    uint64_t words[3], masks[3];
    size_t size;
    std::string prefix;
  };
  std::vector<Key> keys_;
  std::vector<std::string> names_;
  std::unordered_map<std::string_view, int> slots_;
};

// Where the entries of a name go.
struct Slot {
  enum Mode : uint8_t { kCells, kFloat, kInt64 } mode = kCells;
  // One a record: cells, or numbers. Those of records without the feature are zero.
  Cell* cells = nullptr;
  uint8_t* numbers = nullptr;
};

// The entry of one record for one name. A later entry replaces an earlier one.
enum State : uint8_t { kUnset = 0, kFound = 1, kAbsent = 2, kUnfit = 3 };

// kDamaged is no tf.train.Example, or refused; kComplete has every name; of kMixed, the states tell.
enum class Parsed { kDamaged, kComplete, kMixed };

class RecordParser {
 public:
  // `refuses_others` says whether a feature that is not wanted is a problem.
  RecordParser(const Names& names, bool refuses_others, std::vector<Slot> slots, Arena* arena)
      : names_(names),
        refuses_others_(refuses_others),
        slots_(std::move(slots)),
        arena_(arena),
        states_(names.size()) {}

  // Reads a record, up to `safe_end` also behind it. Of a damaged one, the slots hold nothing that counts.
  Parsed parse(Span bytes, const uint8_t* safe_end, size_t record);

  // Of the last record if it is mixed, by slot; kFound of cells says nothing of their contents.
  const std::vector<uint8_t>& states() const { return states_; }

 private:
  const uint8_t* take_regular(Span entries);
  static bool take_short(const Slot& slot, Span value, const uint8_t* safe_end, size_t record);
  bool parse_features(Span bytes);
  bool take_any(Span entry);
  bool set_cell(size_t slot, const Cell& cell);

  const Names& names_;
  const bool refuses_others_;
  const std::vector<Slot> slots_;
  Arena* arena_;
  std::vector<uint8_t> states_;
  const uint8_t* safe_end_ = nullptr;
  size_t record_ = 0;
  size_t next_ = 0;       // The name that is expected.
  size_t num_found_ = 0;  // Names found by take_regular and not replaced since.
};

}  // namespace shardkit
