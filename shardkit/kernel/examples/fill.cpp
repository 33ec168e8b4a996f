#include "fill.h"

#include <cstring>

namespace shardkit {
namespace {

enum class State { kAbsent, kPresent, kBad };

class Filler {
 public:
  Filler(const ColumnSpec& spec, size_t num_records, const Cell* cells, std::vector<uint8_t>* is_bad, bool may_leave)
      : spec_(spec),
        num_records_(num_records),
        cells_(cells),
        is_bad_(*is_bad),
        may_leave_(may_leave),
        numbers_(spec.kind) {
    filled_.validity = Validity(num_records);
  }

  Filled fill() {
    if (spec_.kind == kBytes) {
      if (spec_.is_scalar_bytes())
        may_leave_ && are_large() ? find_strings() : fill_strings();
      else
        fill_string_lists();
    } else if (spec_.num_values >= 0) {
      fill_dense();
    } else {
      fill_ragged();
    }
    return std::move(filled_);
  }

 private:
  State state_of(size_t record) const {
    if (is_bad_[record]) return State::kAbsent;
    const Cell& cell = cells_[record];
    if (cell.kind == kNone) return spec_.is_required ? State::kBad : State::kAbsent;
    return cell.kind == spec_.stored() ? State::kPresent : State::kBad;
  }

  // Calls `take(record, cell)` for each record that has the feature and `skip(record)` for all others.
  template <typename Take, typename Skip>
  void each(Take take, Skip skip) {
    for (size_t record = 0; record < num_records_; ++record) {
      const State state = state_of(record);
      if (state == State::kPresent && take(record, cells_[record])) continue;
      if (state != State::kAbsent) is_bad_[record] = 1;
      filled_.validity.set_null(record);
      skip(record);
    }
  }

  // ---- Numbers ----

  void fill_dense() {
    const size_t row = static_cast<size_t>(spec_.num_values) * spec_.value_size();
    Block values(row * num_records_);
    uint8_t* const out = values.data();
    each([&](size_t record, const Cell& cell) { return numbers_.put(cell, spec_.num_values, out + record * row); },
         [&](size_t record) { std::memset(out + record * row, 0, row); });
    filled_.buffers.push_back(std::move(values));
  }

  // Offsets of the rows, from the count of values that `count_of(cell)` gives, or -1 for a problem.
  template <typename CountOf>
  Block count_rows(CountOf count_of) {
    Block offsets(4 * (num_records_ + 1));
    auto* const out = offsets.as<int32_t>();
    int64_t total = 0;
    out[0] = 0;
    each(
        [&](size_t record, const Cell& cell) {
          const int64_t count = count_of(cell);
          if (count < 0) return false;
          out[record + 1] = checked(total += count);
          return true;
        },
        [&](size_t record) { out[record + 1] = static_cast<int32_t>(total); });
    return offsets;
  }

  static int32_t checked(int64_t total) {
    if (total > INT32_MAX) throw TooLarge();
    return static_cast<int32_t>(total);
  }

  void fill_ragged() {
    Block offsets = count_rows([this](const Cell& cell) { return numbers_.count(cell); });
    const int32_t* const starts = offsets.as<int32_t>();
    Block values(static_cast<size_t>(starts[num_records_]) * spec_.value_size());
    for (size_t record = 0; record < num_records_; ++record) {
      const int32_t count = starts[record + 1] - starts[record];
      if (count == 0) continue;
      uint8_t* const out = values.data() + static_cast<size_t>(starts[record]) * spec_.value_size();
      if (!numbers_.put(cells_[record], count, out)) is_bad_[record] = 1;
    }
    filled_.buffers.push_back(std::move(offsets));
    filled_.buffers.push_back(std::move(values));
  }

  // ---- Bytes ----

  bool are_large() const {
    size_t total = 0;
    for (size_t record = 0; record < num_records_; ++record) total += cells_[record].size;
    return num_records_ > 0 && total / num_records_ >= kLargeBytes;
  }

  void find_strings() {
    filled_.has_spans = true;
    filled_.spans.resize(num_records_);
    each([&](size_t record, const Cell& cell) { return one_value(cell, &filled_.spans[record]); },
         [&](size_t record) { filled_.spans[record] = {nullptr, nullptr}; });
  }

  void fill_strings() {
    Block offsets = count_rows([](const Cell& cell) {
      Span value;
      return one_value(cell, &value) ? static_cast<int64_t>(value.size()) : -1;
    });
    const int32_t* const starts = offsets.as<int32_t>();
    Block data(static_cast<size_t>(starts[num_records_]));
    for (size_t record = 0; record < num_records_; ++record) {
      Span value;
      if (starts[record + 1] == starts[record] || !one_value(cells_[record], &value)) continue;
      copy_bytes(data.data() + starts[record], value.begin, value.size());
    }
    filled_.buffers.push_back(std::move(offsets));
    filled_.buffers.push_back(std::move(data));
  }

  void fill_string_lists() {
    std::vector<Span> values;
    Block list_offsets = count_rows([&](const Cell& cell) -> int64_t {
      const size_t before = values.size();
      const bool is_well_formed = walk_bytes(cell.span(), [&](Span value) { values.push_back(value); });
      const auto count = static_cast<int64_t>(values.size() - before);
      if (is_well_formed && (spec_.num_values < 0 || count == spec_.num_values)) return count;
      values.resize(before);
      return -1;
    });
    Block offsets(4 * (values.size() + 1));
    int64_t total = 0;
    offsets.as<int32_t>()[0] = 0;
    for (size_t i = 0; i < values.size(); ++i)
      offsets.as<int32_t>()[i + 1] = checked(total += static_cast<int64_t>(values[i].size()));
    Block data(static_cast<size_t>(total));
    uint8_t* out = data.data();
    for (const Span& value : values) {
      copy_bytes(out, value.begin, value.size());
      out += value.size();
    }
    filled_.buffers.push_back(std::move(list_offsets));
    filled_.buffers.push_back(std::move(offsets));
    filled_.buffers.push_back(std::move(data));
  }

  const ColumnSpec& spec_;
  const size_t num_records_;
  const Cell* cells_;
  std::vector<uint8_t>& is_bad_;
  const bool may_leave_;
  const NumberReader numbers_;
  Filled filled_;

  // On average. Smaller values are copied sooner than they are looked at one by one.
  static constexpr size_t kLargeBytes = 1024;
};

}  // namespace

void Validity::set_null(size_t row) {
  if (!has_nulls_) {
    const size_t size = (num_rows_ + 7) / 8;
    bits_ = Block(size);
    std::memset(bits_.data(), 0xFF, size);
    if (num_rows_ % 8 != 0) bits_.data()[size - 1] = static_cast<uint8_t>((1 << num_rows_ % 8) - 1);
    has_nulls_ = true;
  }
  bits_.data()[row / 8] &= static_cast<uint8_t>(~(1 << row % 8));
}

Block Validity::bytes() const {
  Block bytes(num_rows_);
  for (size_t row = 0; row < num_rows_; ++row) bytes.data()[row] = bits_.data()[row / 8] >> row % 8 & 1;
  return bytes;
}

Filled fill_column(const ColumnSpec& spec, size_t num_records, const Cell* cells, std::vector<uint8_t>* is_bad,
                   bool may_leave) {
  return Filler(spec, num_records, cells, is_bad, may_leave).fill();
}

}  // namespace shardkit
