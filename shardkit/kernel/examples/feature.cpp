#include "feature.h"

#include <cstring>

namespace shardkit {
namespace {

bool is_varints(Span run) {
  int size = 0;
  for (const uint8_t* p = run.begin; p != run.end; ++p) {
    if (++size > kMaxVarintBytes) return false;
    if (*p < 0x80) size = 0;
  }
  return size == 0;
}

// Lists of the same kind are joined, which is how protobuf merges them; another kind replaces the list.
class FeatureMerge {
 public:
  bool add(ListKind kind, Span list) {
    if (kind != kind_) lists_.clear();
    kind_ = kind;
    lists_.push_back(list);
    return is_well_formed({list.begin, static_cast<uint32_t>(list.size()), kind});
  }

  Cell finish(Arena* arena) const {
    if (kind_ == kNone) return kEmptyCell;
    if (lists_.size() == 1) return {lists_[0].begin, static_cast<uint32_t>(lists_[0].size()), kind_};
    size_t total = 0;
    for (const Span& list : lists_) total += list.size();
    uint8_t* const joined = arena->take(total);
    uint8_t* p = joined;
    for (const Span& list : lists_) {
      if (!list.is_empty()) std::memcpy(p, list.begin, list.size());
      p += list.size();
    }
    return {joined, static_cast<uint32_t>(total), kind_};
  }

 private:
  ListKind kind_ = kNone;
  std::vector<Span> lists_;
};

bool parse_feature(Span bytes, FeatureMerge* merge) {
  Reader reader(bytes);
  while (!reader.at_end()) {
    uint32_t tag;
    Span list;
    if (!reader.tag(&tag)) return false;
    const uint32_t number = tag >> 3;
    if ((tag & 7) == kDelimited && number >= kBytesList && number <= kInt64List) {
      if (!reader.delimited(&list) || !merge->add(static_cast<ListKind>(number), list)) return false;
    } else if (!reader.skip(tag, kListDepth - 1)) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool is_well_formed(const Cell& cell) {
  switch (cell.kind) {
    case kNone: return true;
    case kBytesList: return walk_bytes(cell.span(), [](Span) {});
    case kFloatList:
      return walk_numbers(
          cell.span(), kFixed32, [](Span run) { return run.size() % 4 == 0; }, [](Reader& r) { return r.advance(4); });
    case kInt64List:
      return walk_numbers(cell.span(), kVarint, is_varints, [](Reader& r) {
        uint64_t unused;
        return r.varint(&unused);
      });
  }
  return false;
}

bool parse_entry(Span bytes, Arena* arena, Entry* entry) {
  Reader reader(bytes);
  FeatureMerge merge;
  entry->key = {bytes.begin, bytes.begin};
  while (!reader.at_end()) {
    uint32_t tag;
    Span span;
    if (!reader.tag(&tag)) return false;
    if (tag == (8 | kDelimited)) {
      if (!reader.delimited(&entry->key)) return false;
    } else if (tag == (16 | kDelimited)) {
      if (!reader.delimited(&span) || !parse_feature(span, &merge)) return false;
    } else if (!reader.skip(tag, kListDepth - 2)) {
      return false;
    }
  }
  entry->cell = merge.finish(arena);
  return true;
}

}  // namespace shardkit
