// Pass two of decoding: the cells of one column become its buffers.

#pragma once

#include <vector>

#include "buffer.h"
#include "rows.h"

namespace shardkit {

// Numbers of ListKind, and float64 values as the bytes of one bytes value.
enum SpecKind : int { kBytes = 1, kFloat = 2, kInt64 = 3, kFloat64 = 4 };

struct ColumnSpec {
  size_t slot;
  SpecKind kind;
  int64_t num_values;  // -1 for any number.
  bool is_required;

  ListKind stored() const { return kind == kFloat64 ? kBytesList : static_cast<ListKind>(kind); }
  bool is_scalar_bytes() const { return kind == kBytes && num_values == 1; }
  size_t value_size() const { return kind == kFloat ? 4 : 8; }
};

struct Records {
  const CellTable& cells;
  size_t count;
  Span safe;  // The buffer in which most lists lie: what may be read beyond their end.
};

// Thrown where a column does not fit 32-bit offsets.
struct TooLarge {};

struct Filled {
  bool has_nulls = false;
  Block validity;
  std::vector<Block> buffers;
};

// Decodes one column. Records that do not fit are marked in `is_bad`; those marked before are treated as absent.
Filled fill_column(const ColumnSpec& spec, const Records& records, std::vector<uint8_t>* is_bad);

}  // namespace shardkit
