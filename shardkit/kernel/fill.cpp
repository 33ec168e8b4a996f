#include "fill.h"

#include <cstring>

#include "varints.h"

namespace shardkit {
namespace {

enum class State { kAbsent, kPresent, kBad };

class Filler {
 public:
  Filler(const ColumnSpec& spec, const Records& records, std::vector<uint8_t>* is_bad)
      : spec_(spec), records_(records), cells_(records.cells.column(spec.slot)), is_bad_(*is_bad) {}

  Filled fill() {
    if (spec_.kind == kBytes) {
      if (spec_.is_scalar_bytes())
        fill_strings();
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
    for (size_t record = 0; record < records_.count; ++record) {
      const State state = state_of(record);
      if (state == State::kPresent && take(record, cells_[record])) continue;
      if (state != State::kAbsent) is_bad_[record] = 1;
      set_null(record);
      skip(record);
    }
  }

  void set_null(size_t record) {
    if (!filled_.has_nulls) {
      const size_t size = (records_.count + 7) / 8;
      filled_.validity = Block(size);
      std::memset(filled_.validity.data(), 0xFF, size);
      if (records_.count % 8 != 0) filled_.validity.data()[size - 1] = static_cast<uint8_t>((1 << records_.count % 8) - 1);
      filled_.has_nulls = true;
    }
    filled_.validity.data()[record / 8] &= static_cast<uint8_t>(~(1 << record % 8));
  }

  const uint8_t* safe_end(const Cell& cell) const {
    const bool is_inside = cell.begin >= records_.safe.begin && cell.begin < records_.safe.end;
    return is_inside ? records_.safe.end : cell.begin + cell.size;
  }

  // ---- Numbers ----

  // How many values a cell has, -1 if it is malformed (over-long varints are found later).
  int64_t count_numbers(const Cell& cell) const {
    if (spec_.kind == kFloat64) {
      Span value;
      return one_value(cell, &value) && value.size() % 8 == 0 ? static_cast<int64_t>(value.size() / 8) : -1;
    }
    Span run;
    if (as_packed(cell, &run)) {
      if (spec_.kind == kFloat) return run.size() % 4 == 0 ? static_cast<int64_t>(run.size() / 4) : -1;
      return run.is_empty() || run.end[-1] < 0x80 ? count_varints(run) : -1;
    }
    int64_t count = 0;
    if (!is_well_formed(cell)) return -1;
    walk_numbers(
        cell.span(), spec_.kind == kFloat ? kFixed32 : kVarint,
        [&](Span piece) {
          count += spec_.kind == kFloat ? static_cast<int64_t>(piece.size() / 4) : count_varints(piece);
          return true;
        },
        [&](Reader& reader) {
          ++count;
          uint64_t unused;
          return spec_.kind == kFloat ? reader.advance(4) : reader.varint(&unused);
        });
    return count;
  }

  // Writes the values of a cell that has `count` of them.
  bool put_numbers(const Cell& cell, int64_t count, uint8_t* out) const {
    Span run;
    if (spec_.kind == kFloat64) {
      Span value;
      if (!one_value(cell, &value) || value.size() != 8 * static_cast<size_t>(count)) return false;
      copy_bytes(out, value.begin, value.size());
      return true;
    }
    if (as_packed(cell, &run)) {
      if (spec_.kind == kInt64) return read_varints(run, safe_end(cell), count, reinterpret_cast<int64_t*>(out));
      if (run.size() != 4 * static_cast<size_t>(count)) return false;
      copy_bytes(out, run.begin, run.size());
      return true;
    }
    return count_numbers(cell) == count && put_irregular(cell, out);
  }

  // A scalar as every writer stores it: one packed varint of up to eight bytes.
  bool put_one_int64(const Cell& cell, uint8_t* out) const {
    const size_t size = cell.size - 2;
    if (cell.size < 3 || size > 8 || cell.begin[0] != 0x0A || cell.begin[1] != size) return false;
    if (cell.begin < records_.safe.begin || cell.begin + 10 > records_.safe.end) return false;
    const auto word = load<uint64_t>(cell.begin + 2);
    const uint64_t stops = ~word & 0x8080808080808080;
    if (stops == 0 || static_cast<size_t>(__builtin_ctzll(stops) >> 3) + 1 != size) return false;
    store<uint64_t>(out, short_varint(word, static_cast<int>(size)));
    return true;
  }

  static bool put_one_float(const Cell& cell, uint8_t* out) {
    if (cell.size != 6 || cell.begin[0] != 0x0A || cell.begin[1] != 4) return false;
    std::memcpy(out, cell.begin + 2, 4);
    return true;
  }

  // A well-formed list in any mixture of runs and single values.
  bool put_irregular(const Cell& cell, uint8_t* out) const {
    const bool is_float = spec_.kind == kFloat;
    return walk_numbers(
        cell.span(), is_float ? kFixed32 : kVarint,
        [&](Span piece) {
          if (is_float) {
            copy_bytes(out, piece.begin, piece.size());
            out += piece.size();
            return true;
          }
          const int64_t count = count_varints(piece);
          if (!read_varints(piece, piece.end, count, reinterpret_cast<int64_t*>(out))) return false;
          out += 8 * count;
          return true;
        },
        [&](Reader& reader) {
          if (is_float) {
            std::memcpy(out, reader.p, 4);
            out += 4;
            return reader.advance(4);
          }
          uint64_t value;
          if (!reader.varint(&value)) return false;
          store<uint64_t>(out, value);
          out += 8;
          return true;
        });
  }

  template <typename PutUsual>
  void fill_scalars(PutUsual put_usual) {
    Block values(spec_.value_size() * records_.count);
    uint8_t* const out = values.data();
    const size_t width = spec_.value_size();
    each([&](size_t record, const Cell& cell) {
           return put_usual(cell, out + record * width) || put_numbers(cell, 1, out + record * width);
         },
         [&](size_t record) { std::memset(out + record * width, 0, width); });
    filled_.buffers.push_back(std::move(values));
  }

  void fill_dense() {
    if (spec_.num_values == 1 && spec_.kind == kInt64)
      return fill_scalars([this](const Cell& cell, uint8_t* out) { return put_one_int64(cell, out); });
    if (spec_.num_values == 1 && spec_.kind == kFloat)
      return fill_scalars([](const Cell& cell, uint8_t* out) { return put_one_float(cell, out); });
    const size_t row = static_cast<size_t>(spec_.num_values) * spec_.value_size();
    Block values(row * records_.count);
    uint8_t* const out = values.data();
    each([&](size_t record, const Cell& cell) { return put_numbers(cell, spec_.num_values, out + record * row); },
         [&](size_t record) { std::memset(out + record * row, 0, row); });
    filled_.buffers.push_back(std::move(values));
  }

  // Offsets of the rows, from the count of values that `count_of(cell)` gives, or -1 for a problem.
  template <typename CountOf>
  Block count_rows(CountOf count_of) {
    Block offsets(4 * (records_.count + 1));
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
    Block offsets = count_rows([this](const Cell& cell) { return count_numbers(cell); });
    const int32_t* const starts = offsets.as<int32_t>();
    Block values(static_cast<size_t>(starts[records_.count]) * spec_.value_size());
    for (size_t record = 0; record < records_.count; ++record) {
      const int32_t count = starts[record + 1] - starts[record];
      if (count == 0) continue;
      uint8_t* const out = values.data() + static_cast<size_t>(starts[record]) * spec_.value_size();
      if (!put_numbers(cells_[record], count, out)) is_bad_[record] = 1;
    }
    filled_.buffers.push_back(std::move(offsets));
    filled_.buffers.push_back(std::move(values));
  }

  // ---- Bytes ----

  bool one_value(const Cell& cell, Span* value) const {
    if (as_packed(cell, value)) return true;
    int64_t count = 0;
    const bool is_well_formed = walk_bytes(cell.span(), [&](Span found) {
      ++count;
      *value = found;
    });
    return is_well_formed && count == 1;
  }

  void fill_strings() {
    Block offsets = count_rows([this](const Cell& cell) {
      Span value;
      return one_value(cell, &value) ? static_cast<int64_t>(value.size()) : -1;
    });
    const int32_t* const starts = offsets.as<int32_t>();
    Block data(static_cast<size_t>(starts[records_.count]));
    for (size_t record = 0; record < records_.count; ++record) {
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
  const Records& records_;
  const Cell* cells_;
  std::vector<uint8_t>& is_bad_;
  Filled filled_;
};

}  // namespace

Filled fill_column(const ColumnSpec& spec, const Records& records, std::vector<uint8_t>* is_bad) {
  return Filler(spec, records, is_bad).fill();
}

}  // namespace shardkit
