// Columns of an Arrow record batch as the encoder reads them.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../arrow.h"

namespace shardkit {

enum class Kind : uint8_t { kInt64, kFloat, kBytes, kFixedBytes };

struct Column {
  std::string key;  // The entry's key field, tag and length included.
  Kind kind;
  bool is_list;
  int64_t width;  // Of fixed-size binary.
  const uint8_t* validity;
  int64_t offset;
  const int32_t* list_offsets;
  // Values: of the column itself, or of the child of a list.
  int64_t value_offset;
  const void* values;
  const int32_t* byte_offsets;

  bool is_valid(int64_t row) const {
    if (validity == nullptr) return true;
    const int64_t i = row + offset;
    return validity[i >> 3] >> (i & 7) & 1;
  }

  void span(int64_t row, int64_t* first, int64_t* stop) const {
    *first = row + value_offset;
    *stop = *first + 1;
    if (is_list) {
      *first = list_offsets[row + offset] + value_offset;
      *stop = list_offsets[row + offset + 1] + value_offset;
    }
  }

  const uint8_t* bytes_at(int64_t i, uint64_t* size) const {
    const uint8_t* base = static_cast<const uint8_t*>(values);
    if (kind == Kind::kFixedBytes) {
      *size = static_cast<uint64_t>(width);
      return base + i * width;
    }
    *size = static_cast<uint64_t>(byte_offsets[i + 1] - byte_offsets[i]);
    return *size == 0 ? base : base + byte_offsets[i];
  }
};

// Reads the children of a struct array; false with a Python error set if one has a type that is not encoded.
bool read_columns(const ArrowSchema* schema, const ArrowArray* array, std::vector<Column>* columns);

}  // namespace shardkit
