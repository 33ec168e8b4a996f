// Arrow record batches to framed tf.train.Example records: sizes column by column, then bytes row by row.

#include <memory>
#include <new>
#include <vector>

#include "../buffer.h"
#include "columns.h"
#include "../python.h"
#include "varints.h"

namespace shardkit {
namespace {

constexpr uint32_t kNumHeads = 128;
constexpr size_t kMaxHeadKeyBytes = 256;

// Field numbers of tensorflow.Feature: bytes_list 1, float_list 2, int64_list 3.
uint8_t feature_tag(Kind kind) {
  if (kind == Kind::kInt64) return 0x1A;
  return kind == Kind::kFloat ? 0x12 : 0x0A;
}

uint64_t sized(uint64_t n) { return 1 + static_cast<uint64_t>(varint_size(n)) + n; }

// What a list message takes: numbers are packed in one field, bytes values are a field each.
struct EntrySizes {
  uint64_t list, feature, entry;
  EntrySizes(const Column& c, uint64_t list_) : list(list_), feature(sized(list)), entry(c.key.size() + sized(feature)) {}
};

uint8_t* put_entry(const Column& c, const EntrySizes& s, uint8_t* p) {
  *p++ = 0x0A;
  p = put_varint(p, s.entry);
  std::memcpy(p, c.key.data(), c.key.size());
  p += c.key.size();
  *p++ = 0x12;
  p = put_varint(p, s.feature);
  *p++ = feature_tag(c.kind);
  return put_varint(p, s.list);
}

// The heads of a column of scalars by the size of the value: everything of the entry that stands before the value.
class Heads {
 public:
  static bool serves(const Column& c) { return !c.is_list && c.key.size() <= kMaxHeadKeyBytes; }

  explicit Heads(const Column& column)
      : column_(&column),
        stride_((column.key.size() + 16 + 15) / 16 * 16),
        bytes_(new uint8_t[stride_ * kNumHeads]),
        sizes_(),
        entries_() {}

  // Bytes of the whole entry, with its own tag and length, for a value of `size` bytes.
  uint32_t entry_bytes(uint64_t size) {
    if (entries_[size] == 0) make(size);
    return entries_[size];
  }

  // Writes up to 15 bytes more than the head has.
  uint8_t* put(uint64_t size, uint8_t* p) const {
    const uint8_t* from = bytes_.get() + size * stride_;
    const uint32_t n = sizes_[size];
    std::memcpy(p, from, 16);
    for (uint32_t k = 16; k < n; k += 16) std::memcpy(p + k, from + k, 16);
    return p + n;
  }

 private:
  void make(uint64_t size) {
    const EntrySizes s(*column_, sized(size));
    uint8_t* const start = bytes_.get() + size * stride_;
    std::memset(start, 0, stride_);
    uint8_t* p = put_entry(*column_, s, start);
    *p++ = 0x0A;
    p = put_varint(p, size);
    sizes_[size] = static_cast<uint32_t>(p - start);
    entries_[size] = static_cast<uint32_t>(sized(s.entry));
  }

  const Column* column_;
  size_t stride_;
  std::unique_ptr<uint8_t[]> bytes_;
  uint32_t sizes_[kNumHeads];
  uint32_t entries_[kNumHeads];
};

// Bytes of the values of a row: packed numbers, or bytes values with their tags and lengths.
uint64_t values_bytes(const Column& c, int64_t row) {
  int64_t first, stop;
  c.span(row, &first, &stop);
  uint64_t total = 0;
  if (c.kind == Kind::kInt64) {
    total = varints_size(static_cast<const uint64_t*>(c.values) + first, stop - first);
  } else if (c.kind == Kind::kFloat) {
    total = 4 * static_cast<uint64_t>(stop - first);
  } else {
    for (int64_t i = first; i < stop; ++i) {
      uint64_t size;
      c.bytes_at(i, &size);
      total += sized(size);
    }
  }
  return total;
}

bool is_number(const Column& c) { return c.kind == Kind::kInt64 || c.kind == Kind::kFloat; }

uint64_t list_bytes(const Column& c, uint64_t values) {
  return values == 0 || !is_number(c) ? values : sized(values);
}

// Any entry, without a table.
uint8_t* put_any(const Column& c, int64_t row, uint64_t values, uint8_t* p) {
  p = put_entry(c, EntrySizes(c, list_bytes(c, values)), p);
  int64_t first, stop;
  c.span(row, &first, &stop);
  if (is_number(c)) {
    if (values == 0) return p;
    *p++ = 0x0A;
    p = put_varint(p, values);
    if (c.kind == Kind::kInt64) return put_varints(static_cast<const uint64_t*>(c.values) + first, stop - first, p);
    std::memcpy(p, static_cast<const float*>(c.values) + first, values);
    return p + values;
  }
  for (int64_t i = first; i < stop; ++i) {
    uint64_t size;
    const uint8_t* data = c.bytes_at(i, &size);
    *p++ = 0x0A;
    p = put_varint(p, size);
    copy_bytes(p, data, size);
    p += size;
  }
  return p;
}

// How a column is written. Scalars have heads; everything else, and long bytes, goes the general way.
enum class Way : uint8_t { kFloat, kInt64, kBytes, kGeneral };

struct Step {
  Way way;
  bool has_nulls;
  const void* values;  // From the first row on.
  const int32_t* byte_offsets;
  int64_t width;  // Of fixed-size binary, 0 where the offsets tell.
  std::unique_ptr<Heads> heads;
  std::vector<uint64_t> sizes;  // The general way: bytes of the values of each row.
};

Step plan_step(const Column& c) {
  Step step = {Way::kGeneral, c.validity != nullptr, c.values, nullptr, c.width, nullptr, {}};
  if (!Heads::serves(c)) return step;
  step.heads.reset(new Heads(c));
  if (c.kind == Kind::kFloat || c.kind == Kind::kInt64) {
    step.way = c.kind == Kind::kFloat ? Way::kFloat : Way::kInt64;
    const size_t width = c.kind == Kind::kFloat ? 4 : 8;
    if (c.values != nullptr)
      step.values = static_cast<const uint8_t*>(c.values) + width * static_cast<size_t>(c.value_offset);
    return step;
  }
  step.way = Way::kBytes;
  if (c.kind == Kind::kBytes)
    step.byte_offsets = c.byte_offsets + c.value_offset;
  else if (c.values != nullptr)
    step.values = static_cast<const uint8_t*>(c.values) + c.width * c.value_offset;
  return step;
}

class Encoder {
 public:
  Encoder(std::vector<Column> columns, size_t num_rows) : columns_(std::move(columns)), num_rows_(num_rows) {}

  // Fills the framed size of each row and returns their total.
  uint64_t measure(int64_t* sizes) {
    std::memset(sizes, 0, 8 * num_rows_);
    steps_.reserve(columns_.size());
    for (const Column& c : columns_) {
      steps_.push_back(plan_step(c));
      measure_column(c, &steps_.back(), sizes);
    }
    uint64_t total = 0;
    for (size_t i = 0; i < num_rows_; ++i) {
      sizes[i] = static_cast<int64_t>(kOverheadBytes + sized(static_cast<uint64_t>(sizes[i])));
      total += static_cast<uint64_t>(sizes[i]);
    }
    return total;
  }

  void write(const int64_t* sizes, uint8_t* out, Crc32c crc) const {
    const Step* const first = steps_.data();
    const size_t num_steps = steps_.size();
    for (size_t i = 0; i < num_rows_; ++i) {
      const auto length = static_cast<uint64_t>(sizes[i] - kOverheadBytes);
      store<uint64_t>(out, length);
      store<uint32_t>(out + 8, masked(crc(out, 8, 0)));
      uint8_t* const record = out + kHeaderBytes;
      *record = 0x0A;
      // The length of the features is that of the record without the tag and the length itself.
      uint64_t features = length - 2;
      while (sized(features) != length) --features;
      uint8_t* p = put_varint(record + 1, features);
      const auto row = static_cast<int64_t>(i);
      for (size_t k = 0; k < num_steps; ++k) {
        const Step& step = first[k];
        if (step.has_nulls && !columns_[k].is_valid(row)) continue;
        p = put_column(step, columns_[k], row, p);
      }
      store<uint32_t>(p, masked(crc(record, length, 0)));
      out = p + 4;
    }
  }

 private:
  // Adds the bytes of a column's entries to the rows: bytes_of(row) where the row has a value.
  template <typename BytesOf>
  void add_sizes(const Column& c, int64_t* sizes, BytesOf bytes_of) {
    const auto count = static_cast<int64_t>(num_rows_);
    for (int64_t row = 0; row < count; ++row)
      if (c.is_valid(row)) sizes[row] += static_cast<int64_t>(bytes_of(row));
  }

  void measure_column(const Column& c, Step* step, int64_t* sizes) {
    Heads* const heads = step->heads.get();
    switch (step->way) {
      case Way::kFloat: {
        const uint32_t size = heads->entry_bytes(4);
        add_sizes(c, sizes, [=](int64_t) { return size; });
        return;
      }
      case Way::kInt64: {
        uint32_t entries[kMaxVarintBytes + 1];
        for (uint64_t n = 1; n <= kMaxVarintBytes; ++n) entries[n] = heads->entry_bytes(n);
        const auto* const v = static_cast<const uint64_t*>(step->values);
        add_sizes(c, sizes, [=](int64_t row) { return entries[varint_size(v[row])]; });
        return;
      }
      case Way::kBytes:
        add_sizes(c, sizes, [=, &c](int64_t row) {
          const uint64_t size = bytes_size(*step, row);
          return size < kNumHeads ? heads->entry_bytes(size) : sized(EntrySizes(c, sized(size)).entry);
        });
        return;
      case Way::kGeneral:
        step->sizes.resize(num_rows_);
        add_sizes(c, sizes, [=, &c](int64_t row) {
          const uint64_t values = values_bytes(c, row);
          step->sizes[static_cast<size_t>(row)] = values;
          return sized(EntrySizes(c, list_bytes(c, values)).entry);
        });
        return;
    }
  }

  static uint64_t bytes_size(const Step& step, int64_t row) {
    if (step.byte_offsets == nullptr) return static_cast<uint64_t>(step.width);
    return static_cast<uint64_t>(step.byte_offsets[row + 1] - step.byte_offsets[row]);
  }

  static uint8_t* put_column(const Step& step, const Column& c, int64_t row, uint8_t* p) {
    switch (step.way) {
      case Way::kFloat:
        p = step.heads->put(4, p);
        store<uint32_t>(p, static_cast<const uint32_t*>(step.values)[row]);
        return p + 4;
      case Way::kInt64: {
        const uint64_t v = static_cast<const uint64_t*>(step.values)[row];
        const int size = varint_size(v);
        p = step.heads->put(static_cast<uint64_t>(size), p);
        if (size > 8) return put_varint(p, v);
        put_short_varint(p, v, size);
        return p + size;
      }
      case Way::kBytes: {
        const uint64_t size = bytes_size(step, row);
        if (size >= kNumHeads) return put_any(c, row, sized(size), p);
        p = step.heads->put(size, p);
        const int64_t first = step.byte_offsets == nullptr ? row * step.width : step.byte_offsets[row];
        copy_bytes(p, static_cast<const uint8_t*>(step.values) + first, size);
        return p + size;
      }
      case Way::kGeneral: return put_any(c, row, step.sizes[static_cast<size_t>(row)], p);
    }
    return p;
  }

  std::vector<Column> columns_;
  size_t num_rows_;
  std::vector<Step> steps_;
};

PyObject* encode_columns(std::vector<Column> columns, size_t num_rows) {
  static const Crc32c crc = choose_crc32c();
  Encoder encoder(std::move(columns), num_rows);
  Block sizes(8 * num_rows), data;
  bool is_out_of_memory = false;
  Py_BEGIN_ALLOW_THREADS;
  try {
    data = Block(static_cast<size_t>(encoder.measure(sizes.as<int64_t>())));
    encoder.write(sizes.as<int64_t>(), data.data(), crc);
  } catch (const std::bad_alloc&) {
    is_out_of_memory = true;
  }
  Py_END_ALLOW_THREADS;
  if (is_out_of_memory) return PyErr_NoMemory();
  return Py_BuildValue("(NN)", data.release(), sizes.release());
}

}  // namespace

PyObject* encode(PyObject*, PyObject* args) {
  PyObject *schema_capsule, *array_capsule;
  if (!PyArg_ParseTuple(args, "OO:encode", &schema_capsule, &array_capsule)) return nullptr;
  auto* schema = static_cast<ArrowSchema*>(PyCapsule_GetPointer(schema_capsule, "arrow_schema"));
  if (schema == nullptr) return nullptr;
  auto* array = static_cast<ArrowArray*>(PyCapsule_GetPointer(array_capsule, "arrow_array"));
  if (array == nullptr) return nullptr;
  try {
    std::vector<Column> columns;
    if (!read_columns(schema, array, &columns)) return nullptr;
    return encode_columns(std::move(columns), static_cast<size_t>(array->length));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace shardkit
