#include "rows.h"

#include <algorithm>

namespace shardkit {
namespace {

constexpr size_t kLookAhead = 8;

class RecordParser {
 public:
  RecordParser(const Names& names, const ParseOptions& options, Arena* arena, size_t record, CellTable* cells)
      : names_(names), options_(options), arena_(arena), record_(record), cells_(*cells) {}

  bool parse(Span record) {
    Reader reader(record);
    while (!reader.at_end()) {
      uint32_t tag;
      Span features;
      if (!reader.tag(&tag)) return false;
      if (tag == (8 | kDelimited)) {
        if (!reader.delimited(&features) || !parse_features(features)) return false;
      } else if (!reader.skip(tag, 0)) {
        return false;
      }
    }
    clear_up_to(names_.size());
    return true;
  }

 private:
  bool parse_features(Span bytes) {
    Reader reader(bytes);
    while (!reader.at_end()) {
      uint32_t tag;
      Span entry;
      if (!reader.tag(&tag)) return false;
      if (tag == (8 | kDelimited)) {
        if (!reader.delimited(&entry)) return false;
        if (!take_expected(entry) && !take_any(entry)) return false;
      } else if (!reader.skip(tag, 1)) {
        return false;
      }
    }
    return true;
  }

  // An entry as the encoder writes it, of the next name or, where some are absent, of one soon after it.
  bool take_expected(Span entry) {
    const size_t stop = next_ + kLookAhead < names_.size() ? next_ + kLookAhead : names_.size();
    size_t slot = next_;
    while (slot < stop && !names_.matches(slot, entry.begin, options_.safe_end)) ++slot;
    if (slot == stop) return false;
    const size_t prefix = names_.prefix_size(slot);
    Cell cell;
    if (entry.size() <= prefix || !read_value({entry.begin + prefix, entry.end}, &cell)) return false;
    return replace(slot, cell);
  }

  bool take_any(Span bytes) {
    Entry entry;
    if (!read_plain(bytes, &entry)) {
      if (!parse_entry(bytes, arena_, &entry)) return false;
    } else if (!is_well_formed(entry.cell)) {
      return false;
    }
    const int slot = names_.find(entry.key);
    if (slot < 0) return !options_.refuses_others;
    return replace(static_cast<size_t>(slot), entry.cell);
  }

  bool replace(size_t slot, const Cell& cell) {
    Cell& found = cells_.column(slot)[record_];
    if (slot < num_set_) {
      // What is replaced is never looked at again, so it is checked here.
      if (!is_well_formed(found)) return false;
    } else {
      clear_up_to(slot);
      num_set_ = slot + 1;
    }
    found = cell;
    next_ = slot + 1;
    return true;
  }

  void clear_up_to(size_t slot) {
    for (; num_set_ < slot; ++num_set_) cells_.column(num_set_)[record_] = kEmptyCell;
  }

  // One feature with one list and nothing else, from its length on.
  static bool read_value(Span bytes, Cell* cell) {
    Reader outer(bytes);
    Span feature, list;
    if (!outer.delimited(&feature) || !outer.at_end() || feature.is_empty()) return false;
    const uint8_t tag = *feature.begin;
    if (tag != 0x0A && tag != 0x12 && tag != 0x1A) return false;
    Reader inner({feature.begin + 1, feature.end});
    if (!inner.delimited(&list) || !inner.at_end()) return false;
    *cell = {list.begin, static_cast<uint32_t>(list.size()), static_cast<ListKind>(tag >> 3)};
    return true;
  }

  // A key, then one such feature; the list is not checked.
  static bool read_plain(Span bytes, Entry* entry) {
    if (bytes.is_empty() || *bytes.begin != 0x0A) return false;
    Reader reader({bytes.begin + 1, bytes.end});
    if (!reader.delimited(&entry->key) || reader.at_end() || *reader.p != 0x12) return false;
    return read_value({reader.p + 1, reader.end}, &entry->cell);
  }

  const Names& names_;
  const ParseOptions& options_;
  Arena* arena_;
  size_t record_;
  CellTable& cells_;
  size_t next_ = 0;     // The name that is expected.
  size_t num_set_ = 0;  // The cells before this one have been set.
};

}  // namespace

Names::Names(std::vector<std::string> names) {
  for (size_t i = 0; i < names.size(); ++i) {
    uint8_t head[12];
    head[0] = 0x0A;
    const uint8_t* const end = put_varint(head + 1, names[i].size());
    Key key;
    key.prefix.assign(reinterpret_cast<char*>(head), static_cast<size_t>(end - head));
    key.prefix += names[i];
    key.prefix += '\x12';
    uint8_t start[16] = {}, mask[16] = {};
    const size_t shown = std::min<size_t>(key.prefix.size(), 16);
    std::memcpy(start, key.prefix.data(), shown);
    std::memset(mask, 0xFF, shown);
    std::memcpy(key.words, start, 16);
    std::memcpy(key.masks, mask, 16);
    keys_.push_back(std::move(key));
  }
  names_ = std::move(names);
  for (size_t i = 0; i < names_.size(); ++i) slots_.emplace(names_[i], static_cast<int>(i));
}

int Names::find(Span name) const {
  const auto found = slots_.find(std::string_view(reinterpret_cast<const char*>(name.begin), name.size()));
  return found == slots_.end() ? -1 : found->second;
}

bool parse_record(const Names& names, const ParseOptions& options, Span bytes, Arena* arena, size_t record,
                  CellTable* cells) {
  return RecordParser(names, options, arena, record, cells).parse(bytes);
}

}  // namespace shardkit
