// Bytes: CRC32C as TFRecord masks it, varints, copies of small pieces.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#include <nmmintrin.h>
#include <wmmintrin.h>
#define SHARDKIT_X86 1
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace shardkit {

constexpr int64_t kHeaderBytes = 12;    // Length and its CRC.
constexpr int64_t kOverheadBytes = 16;  // And the CRC of the record.

// CRC32C of bytes that follow others with the CRC32C `start`, or 0.
using Crc32c = uint32_t (*)(const uint8_t*, size_t, uint32_t start);

// The fastest that this processor runs (RFC 3720; not masked).
Crc32c choose_crc32c();

inline uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; }

template <typename T>
inline T load(const void* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <typename T>
inline void store(void* p, T v) {
  std::memcpy(p, &v, sizeof v);
}

inline int varint_size(uint64_t v) {
  // 64 - clz bits, seven a byte; (bits * 9 + 64) / 64 is ceil(bits / 7) for 1 to 64 bits.
  return ((64 - __builtin_clzll(v | 1)) * 9 + 64) >> 6;
}

inline uint8_t* put_varint(uint8_t* p, uint64_t v) {
  while (v > 0x7F) {
    *p++ = static_cast<uint8_t>(v) | 0x80;
    v >>= 7;
  }
  *p++ = static_cast<uint8_t>(v);
  return p;
}

// Writes 8 bytes, of which the varint is the first `size`; only for sizes up to 8.
inline void put_short_varint(uint8_t* p, uint64_t v, int size) {
  v = (v & 0x000000000FFFFFFF) | ((v & 0x00FFFFFFF0000000) << 4);
  v = (v & 0x00003FFF00003FFF) | ((v & 0x0FFFC0000FFFC000) << 2);
  v = (v & 0x007F007F007F007F) | ((v & 0x3F803F803F803F80) << 1);
  const uint64_t continued = 0x8080808080808080 & ((uint64_t{1} << (8 * size - 8)) - 1);
  store<uint64_t>(p, v | continued);
}

// The number in the first `size` bytes (1 to 8) of a word that starts with a varint.
inline uint64_t short_varint(uint64_t v, int size) {
  v &= 0x7F7F7F7F7F7F7F7F & (~uint64_t{0} >> (64 - 8 * size));
  v = (v & 0x007F007F007F007F) | ((v & 0x7F007F007F007F00) >> 1);
  v = (v & 0x00003FFF00003FFF) | ((v & 0x3FFF00003FFF0000) >> 2);
  return (v & 0x000000000FFFFFFF) | ((v & 0x0FFFFFFF00000000) >> 4);
}

// memcpy that is inlined for short pieces; reads and writes nothing else.
inline void copy_bytes(uint8_t* to, const uint8_t* from, size_t n) {
  if (n > 32) {
    std::memcpy(to, from, n);
  } else if (n >= 16) {
    std::memcpy(to, from, 16);
    std::memcpy(to + n - 16, from + n - 16, 16);
  } else if (n >= 8) {
    std::memcpy(to, from, 8);
    std::memcpy(to + n - 8, from + n - 8, 8);
  } else if (n >= 4) {
    std::memcpy(to, from, 4);
    std::memcpy(to + n - 4, from + n - 4, 4);
  } else if (n > 0) {
    to[0] = from[0];
    to[n / 2] = from[n / 2];
    to[n - 1] = from[n - 1];
  }
}

}  // namespace shardkit
