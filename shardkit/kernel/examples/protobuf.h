// Reading protobuf as its own parsers do (https://protobuf.dev/programming-guides/encoding); never past `end`.

#pragma once

#include <cstdint>

#include "../wire.h"

namespace shardkit {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kDelimited = 2, kStartGroup = 3, kEndGroup = 4, kFixed32 = 5 };

constexpr int kMaxVarintBytes = 10;
constexpr int kMaxTagBytes = 5;
constexpr uint64_t kMaxSize = 0x7FFFFFFE;
constexpr int kMaxDepth = 100;

struct Span {
  const uint8_t* begin;
  const uint8_t* end;

  bool is_empty() const { return begin == end; }
  size_t size() const { return static_cast<size_t>(end - begin); }
};

struct Reader {
  const uint8_t* p;
  const uint8_t* end;

  explicit Reader(Span span) : p(span.begin), end(span.end) {}

  bool at_end() const { return p == end; }

  bool varint(uint64_t* value, int max_bytes = kMaxVarintBytes) {
    uint64_t v = 0;
    for (int i = 0; i < max_bytes && p < end; ++i) {
      const uint8_t byte = *p++;
      v |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);  // Of the tenth byte one bit counts; the rest is dropped.
      if (byte < 0x80) {
        *value = v;
        return true;
      }
    }
    return false;
  }

  // Field number and wire type.
  bool tag(uint32_t* value) {
    uint64_t v;
    if (!varint(&v, kMaxTagBytes) || v > UINT32_MAX || (v >> 3) == 0) return false;
    *value = static_cast<uint32_t>(v);
    return true;
  }

  bool delimited(Span* span) {
    uint64_t n;
    if (p < end && *p < 0x80) {
      n = *p++;
    } else if (!varint(&n)) {
      return false;
    }
    if (n > kMaxSize || n > static_cast<uint64_t>(end - p)) return false;
    *span = {p, p + n};
    p += n;
    return true;
  }

  bool advance(size_t n) {
    if (n > static_cast<size_t>(end - p)) return false;
    p += n;
    return true;
  }

  // Steps over an unknown field, after its tag; `depth` is that of the message it stands in.
  bool skip(uint32_t tag_value, int depth) {
    uint64_t unused;
    Span span;
    switch (tag_value & 7) {
      case kVarint: return varint(&unused);
      case kFixed64: return advance(8);
      case kDelimited: return delimited(&span);
      case kFixed32: return advance(4);
      case kStartGroup: return skip_group(tag_value >> 3, depth + 1);
      default: return false;
    }
  }

  bool skip_group(uint32_t number, int depth) {
    if (depth > kMaxDepth) return false;
    while (!at_end()) {
      uint32_t inner;
      if (!tag(&inner)) return false;
      if ((inner & 7) == kEndGroup) return inner >> 3 == number;
      if (!skip(inner, depth)) return false;
    }
    return false;
  }
};

}  // namespace shardkit
