// Runs of packed varints, the inner loops of writing and reading lists of integers.

#pragma once

#include "protobuf.h"

namespace shardkit {

// Eight values at a time are looked at together: where all are small, as token ids are, neither size nor bytes need a
// branch or a count of leading zeros.
constexpr uint64_t kSmallVarint = uint64_t{1} << 21;

inline uint64_t any_of_eight(const uint64_t* v) { return v[0] | v[1] | v[2] | v[3] | v[4] | v[5] | v[6] | v[7]; }

inline uint64_t varints_size(const uint64_t* v, int64_t count) {
  uint64_t total = 0;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    if (any_of_eight(v + i) < kSmallVarint) {
      total += 8;
      for (int k = 0; k < 8; ++k) total += (v[i + k] > 0x7F) + (v[i + k] > 0x3FFF);
    } else {
      for (int k = 0; k < 8; ++k) total += static_cast<uint64_t>(varint_size(v[i + k]));
    }
  }
  for (; i < count; ++i) total += static_cast<uint64_t>(varint_size(v[i]));
  return total;
}

// Writes up to 7 bytes more than the varint has, and returns its end.
inline uint8_t* put_any_varint(uint8_t* p, uint64_t v) {
  const int size = varint_size(v);
  if (size > 8) return put_varint(p, v);
  put_short_varint(p, v, size);
  return p + size;
}

inline uint8_t* put_varints(const uint64_t* v, int64_t count, uint8_t* p) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const uint64_t any = any_of_eight(v + i);
    if (any < 0x80) {
      for (int k = 0; k < 8; ++k) p[k] = static_cast<uint8_t>(v[i + k]);
      p += 8;
    } else if (any < kSmallVarint) {
      for (int k = 0; k < 8; ++k) {
        const auto value = static_cast<uint32_t>(v[i + k]);
        const uint32_t two = value > 0x7F, three = value > 0x3FFF;
        store<uint32_t>(p, (value & 0x7F) | ((value & 0x3F80) << 1) | ((value & 0x1FC000) << 2) | two << 7 | three << 15);
        p += 1 + two + three;
      }
    } else {
      for (int k = 0; k < 8; ++k) p = put_any_varint(p, v[i + k]);
    }
  }
  for (; i < count; ++i) p = put_any_varint(p, v[i]);
  return p;
}

// How many varints end in a run.
inline int64_t count_varints(Span run) {
  int64_t count = 0;
  for (const uint8_t* p = run.begin; p != run.end; ++p) count += *p < 0x80;
  return count;
}

// One bit for each of eight bytes: whether a varint ends there.
inline uint64_t stop_bits(uint64_t word) {
  return (((~word & 0x8080808080808080) >> 7) * 0x0102040810204080) >> 56;
}

// Reads the varints that end in the 64 bytes at p, at the set bits of `stops`; nullptr if one is too long. Knowing where
// each ends, no varint waits for the one before it. Up to 72 bytes may be read.
inline int64_t* read_window(const uint8_t* p, uint64_t stops, int64_t* out) {
  const uint64_t inner = ~stops;
  const bool are_short = (inner & inner << 1 & inner << 2) == 0;
  const int count = __builtin_popcountll(stops);
  int start = 0;
  if (inner == 0) {
    for (int i = 0; i < 64; ++i) out[i] = p[i];
    return out + 64;
  }
  if (are_short) {
    // At most three bytes each, as token ids are.
    for (int i = 0; i < count; ++i) {
      const int stop = __builtin_ctzll(stops) + 1;
      stops &= stops - 1;
      const uint32_t word = load<uint32_t>(p + start) & (0xFFFFFFFFu >> (32 - 8 * (stop - start)));
      out[i] = (word & 0x7F) | (word >> 1 & 0x3F80) | (word >> 2 & 0x1FC000);
      start = stop;
    }
    return out + count;
  }
  for (int i = 0; i < count; ++i) {
    const int stop = __builtin_ctzll(stops) + 1;
    stops &= stops - 1;
    if (stop - start <= 8) {
      out[i] = static_cast<int64_t>(short_varint(load<uint64_t>(p + start), stop - start));
    } else {
      Reader reader({p + start, p + stop});
      uint64_t value;
      if (!reader.varint(&value)) return nullptr;
      out[i] = static_cast<int64_t>(value);
    }
    start = stop;
  }
  return out + count;
}

// Reads a run that holds exactly `count` varints; false if it does not or one is too long. Up to `safe_end` may be
// read.
inline bool read_varints(Span run, const uint8_t* safe_end, int64_t count, int64_t* out) {
  constexpr int kWindow = 64;
  const uint8_t* p = run.begin;
  int64_t* const out_end = out + count;
  while (run.end - p >= kWindow && safe_end - p >= kWindow + 8 && out_end - out >= kWindow) {
    uint64_t stops = 0;
    for (int i = 0; i < kWindow; i += 8) stops |= stop_bits(load<uint64_t>(p + i)) << i;
    if (stops == 0) return false;
    out = read_window(p, stops, out);
    if (out == nullptr) return false;
    p += 64 - __builtin_clzll(stops);
  }
  Reader reader({p, run.end});
  while (out < out_end) {
    if (safe_end - reader.p >= 8) {
      const auto word = load<uint64_t>(reader.p);
      const uint64_t stops = ~word & 0x8080808080808080;
      const int size = stops == 0 ? 9 : (__builtin_ctzll(stops) >> 3) + 1;
      if (size <= 8 && run.end - reader.p >= size) {
        *out++ = static_cast<int64_t>(short_varint(word, size));
        reader.p += size;
        continue;
      }
    }
    uint64_t value;
    if (!reader.varint(&value)) return false;
    *out++ = static_cast<int64_t>(value);
  }
  return reader.at_end();
}

}  // namespace shardkit
