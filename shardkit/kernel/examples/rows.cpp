#include "rows.h"

#include <algorithm>

#include "numbers.h"

namespace shardkit {
namespace {

// A feature with one list of at most 125 bytes starts with its size, the tag of the list, and the size of the list,
// which is two less; a list with one packed run or bytes value goes on with a tag and a size that is two less again.
constexpr uint64_t kNested = 1 + (uint64_t{1} << 16) + (uint64_t{1} << 32);

constexpr uint64_t short_feature(uint64_t size, uint64_t kind_tag) {
  return size * kNested + (kind_tag << 8) + (uint64_t{0x0A} << 24) - (uint64_t{2} << 16) - (uint64_t{4} << 32);
}

constexpr size_t kLookAhead = 8;
constexpr std::ptrdiff_t kSafeBytes = Names::kShown;

constexpr uint64_t kFiveBytes = 0xFFFFFFFFFF;

// Reads 10 bytes, of which the first `size` (1 to 10) must be one varint.
inline bool read_varint(const uint8_t* p, int size, uint8_t* out) {
  const auto word = load<uint64_t>(p);
  const uint64_t stops = ~word & 0x8080808080808080;
  if (size <= 8) {
    const uint64_t last = uint64_t{1} << (8 * size - 1);
    if ((stops & (last | (last - 1))) != last) return false;
    store<uint64_t>(out, short_varint(word, size));
    return true;
  }
  const uint64_t ninth = p[8], tenth = size == 10 ? p[9] : 0;
  if (stops != 0 || (ninth > 0x7F) != (size == 10) || tenth > 0x7F) return false;
  // Of the tenth byte one bit counts; the rest is dropped.
  store<uint64_t>(out, short_varint(word, 8) | (ninth & 0x7F) << 56 | tenth << 63);
  return true;
}

// One feature with one list and nothing else, from its length on.
bool read_value(Span bytes, Cell* cell) {
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
bool read_plain(Span bytes, Entry* entry) {
  if (bytes.is_empty() || *bytes.begin != 0x0A) return false;
  Reader reader({bytes.begin + 1, bytes.end});
  if (!reader.delimited(&entry->key) || reader.at_end() || *reader.p != 0x12) return false;
  return read_value({reader.p + 1, reader.end}, &entry->cell);
}

}  // namespace

Parsed RecordParser::parse(Span bytes, const uint8_t* safe_end, size_t record) {
  safe_end_ = safe_end;
  record_ = record;
  next_ = num_found_ = 0;
  std::fill(states_.begin(), states_.end(), kUnset);
  Reader reader(bytes);
  while (!reader.at_end()) {
    uint32_t tag;
    Span features;
    if (!reader.tag(&tag)) return Parsed::kDamaged;
    if (tag == (8 | kDelimited)) {
      if (!reader.delimited(&features) || !parse_features(features)) return Parsed::kDamaged;
    } else if (!reader.skip(tag, 0)) {
      return Parsed::kDamaged;
    }
  }
  if (num_found_ == states_.size()) return Parsed::kComplete;
  for (size_t slot = 0; slot < states_.size(); ++slot)
    if (states_[slot] == kUnset && !set_cell(slot, kEmptyCell)) return Parsed::kDamaged;
  return Parsed::kMixed;
}

bool RecordParser::parse_features(Span bytes) {
  Reader reader(bytes);
  while ((reader.p = take_regular({reader.p, reader.end})) != reader.end) {
    uint32_t tag;
    Span entry;
    if (!reader.tag(&tag)) return false;
    if (tag == (8 | kDelimited)) {
      if (!reader.delimited(&entry) || !take_any(entry)) return false;
    } else if (!reader.skip(tag, 1)) {
      return false;
    }
  }
  return true;
}

// Takes entries as the encoder writes them: of the next name or, where some are absent, of one soon after it, with a
// short value. Returns the first other entry, or the end.
const uint8_t* RecordParser::take_regular(Span entries) {
  // Local copies: for the compiler the bytes that are stored below might alias the members.
  const uint8_t* const safe_end = safe_end_;
  const Slot* const slots = slots_.data();
  uint8_t* const states = states_.data();
  const size_t num_names = states_.size(), record = record_;
  const uint8_t* p = entries.begin;
  size_t next = next_, num_found = 0;
  while (safe_end - p >= kSafeBytes && p != entries.end) {
    size_t slot = next;
    if (slot == num_names || !names_.matches(slot, p, safe_end)) {
      const size_t stop = std::min(next + kLookAhead, num_names);
      while (slot < stop && !names_.matches(slot, p, safe_end)) ++slot;
      if (slot == stop) break;
    }
    if (p[1] > 0x7F || states[slot] != kUnset) break;
    const uint8_t* const value = p + names_.prefix_size(slot);
    const uint8_t* const end = p + 2 + p[1];
    if (value >= end || end > entries.end || !take_short(slots[slot], {value, end}, safe_end, record)) break;
    states[slot] = kFound;
    num_found += 1;
    next = slot + 1;
    p = end;
  }
  num_found_ += num_found;
  next_ = next;
  return p;
}

// A feature of one list; a number stands in one packed run. False if it has another form.
inline bool RecordParser::take_short(const Slot& slot, Span value, const uint8_t* safe_end, size_t record) {
  const size_t size = *value.begin;
  if (value.size() != size + 1 || safe_end - value.begin < kSafeBytes) return false;
  const auto head = load<uint64_t>(value.begin);
  if (slot.mode == Slot::kCells) {
    const auto tag = static_cast<uint8_t>(head >> 8);
    if ((tag != 0x0A && tag != 0x12 && tag != 0x1A) || size < 2 || value.begin[2] != size - 2) return false;
    const bool is_roomy = safe_end - value.end >= Cell::kRoom;
    slot.cells[record] = {value.begin + 3, static_cast<uint32_t>(size - 2), static_cast<ListKind>(tag >> 3), is_roomy};
    return true;
  }
  if (slot.mode == Slot::kFloat) {
    if ((head & kFiveBytes) != short_feature(8, 0x12)) return false;
    std::memcpy(slot.numbers + 4 * record, value.begin + 5, 4);
    return true;
  }
  if (size < 5 || size > 14 || (head & kFiveBytes) != short_feature(size, 0x1A)) return false;
  return read_varint(value.begin + 5, static_cast<int>(size - 4), slot.numbers + 8 * record);
}

bool RecordParser::take_any(Span bytes) {
  Entry entry;
  bool is_checked = false;
  if (read_plain(bytes, &entry)) {
    entry.cell.is_roomy = safe_end_ - bytes.end >= Cell::kRoom;
  } else {
    if (!parse_entry(bytes, arena_, &entry)) return false;
    is_checked = true;
  }
  const int found = names_.find(entry.key);
  const auto slot = static_cast<size_t>(found);
  // Cells are checked when they are decoded; but not those that are not wanted, or are replaced before.
  if (found < 0) return !refuses_others_ && (is_checked || is_well_formed(entry.cell));
  if (slots_[slot].mode == Slot::kCells && states_[slot] == kFound && !is_well_formed(slots_[slot].cells[record_]))
    return false;
  next_ = slot + 1;
  num_found_ = 0;
  return set_cell(slot, entry.cell);
}

// False if the list of a number is malformed.
bool RecordParser::set_cell(size_t slot, const Cell& cell) {
  const Slot& own = slots_[slot];
  if (own.mode == Slot::kCells) {
    own.cells[record_] = cell;
    states_[slot] = cell.kind == kNone ? kAbsent : kFound;
    return true;
  }
  const bool is_float = own.mode == Slot::kFloat;
  const size_t width = is_float ? 4 : 8;
  uint8_t* const out = own.numbers + width * record_;
  std::memset(out, 0, width);
  states_[slot] = kAbsent;
  if (cell.kind == kNone) return true;
  if (!is_well_formed(cell)) return false;
  const NumberReader reader(is_float ? kFloat : kInt64);
  const bool fits = cell.kind == (is_float ? kFloatList : kInt64List) && reader.count(cell) == 1;
  states_[slot] = fits && reader.put(cell, 1, out) ? kFound : kUnfit;
  return true;
}

Names::Names(std::vector<std::string> names) {
  for (const std::string& name : names) {
    uint8_t size[kMaxVarintBytes];
    uint8_t* const size_end = put_varint(size, name.size());
    Key key;
    key.prefix.assign({0x0A, 0, 0x0A});
    key.prefix.insert(key.prefix.end(), size, size_end);
    key.prefix += name;
    key.prefix += '\x12';
    key.size = key.prefix.size();
    char start[kShown] = {}, mask[kShown] = {};
    const size_t shown = std::min(key.size, kShown);
    std::memcpy(start, key.prefix.data(), shown);
    std::memset(mask, 0xFF, shown);
    mask[1] = 0;
    std::memcpy(key.words, start, kShown);
    std::memcpy(key.masks, mask, kShown);
    keys_.push_back(std::move(key));
  }
  names_ = std::move(names);
  for (size_t i = 0; i < names_.size(); ++i) slots_.emplace(names_[i], static_cast<int>(i));
}

int Names::find(Span name) const {
  const auto found = slots_.find(std::string_view(reinterpret_cast<const char*>(name.begin), name.size()));
  return found == slots_.end() ? -1 : found->second;
}

}  // namespace shardkit
