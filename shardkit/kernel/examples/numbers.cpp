#include "numbers.h"

namespace shardkit {

int64_t NumberReader::count(const Cell& cell) const {
  const size_t width = width_of(kind_);
  if (is_raw(kind_)) {
    Span value;
    return one_value(cell, &value) && value.size() % width == 0 ? static_cast<int64_t>(value.size() / width) : -1;
  }
  Span run;
  if (as_packed(cell, &run)) {
    if (kind_ == kFloat) return run.size() % 4 == 0 ? static_cast<int64_t>(run.size() / 4) : -1;
    return run.is_empty() || run.end[-1] < 0x80 ? count_varints(run) : -1;
  }
  if (!is_well_formed(cell)) return -1;
  int64_t count = 0;
  walk_numbers(
      cell.span(), kind_ == kFloat ? kFixed32 : kVarint,
      [&](Span piece) {
        count += kind_ == kFloat ? static_cast<int64_t>(piece.size() / 4) : count_varints(piece);
        return true;
      },
      [&](Reader& reader) {
        ++count;
        uint64_t unused;
        return kind_ == kFloat ? reader.advance(4) : reader.varint(&unused);
      });
  return count;
}

bool NumberReader::put(const Cell& cell, int64_t count, uint8_t* out) const {
  if (is_raw(kind_)) {
    Span value;
    if (!one_value(cell, &value) || value.size() != width_of(kind_) * static_cast<size_t>(count)) return false;
    copy_bytes(out, value.begin, value.size());
    return true;
  }
  Span run;
  if (as_packed(cell, &run)) {
    if (kind_ == kInt64) return read_varints(run, cell.safe_end(), count, reinterpret_cast<int64_t*>(out));
    if (run.size() != 4 * static_cast<size_t>(count)) return false;
    copy_bytes(out, run.begin, run.size());
    return true;
  }
  return this->count(cell) == count && put_irregular(cell, out);
}

// A well-formed list in any mixture of runs and single values.
bool NumberReader::put_irregular(const Cell& cell, uint8_t* out) const {
  const bool is_float = kind_ == kFloat;
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
          if (reader.end - reader.p < 4) return false;
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

}  // namespace shardkit
