// Pass two of decoding: the cells of one column become its buffers.

#pragma once

#include <vector>

#include "../buffer.h"
#include "numbers.h"
#include "rows.h"

namespace shardkit {

struct ColumnSpec {
  size_t slot;
  SpecKind kind;
  int64_t num_values;  // -1 for any number.
  bool is_required;

  ListKind stored() const { return is_raw(kind) ? kBytesList : static_cast<ListKind>(kind); }
  bool is_single_number() const { return num_values == 1 && (kind == kFloat || kind == kInt64); }
  bool is_scalar_bytes() const { return kind == kBytes && num_values == 1; }
  size_t value_size() const { return width_of(kind); }
};

// Thrown where a column does not fit 32-bit offsets.
struct TooLarge {};

// Which rows have a value, as an Arrow bitmap; nothing is kept while all have one.
class Validity {
 public:
  explicit Validity(size_t num_rows = 0) : num_rows_(num_rows) {}

  bool has_nulls() const { return has_nulls_; }
  void set_null(size_t row);
  Block& bits() { return bits_; }
  // A byte of 0 or 1 a row; only where there are nulls. Throws std::bad_alloc.
  Block bytes() const;

 private:
  size_t num_rows_;
  bool has_nulls_ = false;
  Block bits_;
};

struct Filled {
  Validity validity;
  std::vector<Block> buffers;
  // Instead of buffers, where the values lie, one a record.
  bool has_spans = false;
  std::vector<Span> spans;
};

// Decodes the cells of one column, one a record. Records that do not fit are marked in `is_bad`; those marked before
// are treated as absent. Single bytes values may be left where they lie if they are large.
Filled fill_column(const ColumnSpec& spec, size_t num_records, const Cell* cells, std::vector<uint8_t>* is_bad,
                   bool may_leave = false);

}  // namespace shardkit
