#include <cstddef>

#include "wire.h"

namespace shardkit {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // Castagnoli, bits reversed.

struct Tables {
  uint32_t t[8][256];
  Tables() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? (c >> 1) ^ kPolynomial : c >> 1;
      t[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; ++i)
      for (int k = 1; k < 8; ++k) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xFF];
  }
};

[[maybe_unused]] uint32_t crc32c_portable(const uint8_t* p, size_t n, uint32_t start) {
  static const Tables tables;
  const auto& t = tables.t;
  uint32_t c = ~start;
  for (; n >= 8; p += 8, n -= 8) {
    uint32_t low = 0, high = 0;
    for (int i = 0; i < 4; ++i) {
      low |= static_cast<uint32_t>(p[i]) << (8 * i);
      high |= static_cast<uint32_t>(p[4 + i]) << (8 * i);
    }
    low ^= c;
    c = t[7][low & 0xFF] ^ t[6][(low >> 8) & 0xFF] ^ t[5][(low >> 16) & 0xFF] ^ t[4][low >> 24] ^ t[3][high & 0xFF] ^
        t[2][(high >> 8) & 0xFF] ^ t[1][(high >> 16) & 0xFF] ^ t[0][high >> 24];
  }
  for (; n; --n) c = (c >> 8) ^ t[0][(c ^ *p++) & 0xFF];
  return ~c;
}

#ifdef SHARDKIT_X86

// The instruction takes three cycles and can start every cycle: three lanes run at once, then carry-less products
// bring them together (V. Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", 2011).
constexpr size_t kMaxLaneWords = 128;

struct Shifts {
  uint32_t by_words[2 * kMaxLaneWords + 1];  // x**(64 * words - 33) modulo the polynomial.
  Shifts() {
    uint32_t power = 0x80000000u;
    size_t exponent = 0;
    by_words[0] = 0;
    for (size_t words = 1; words <= 2 * kMaxLaneWords; ++words) {
      for (; exponent < 64 * words - 33; ++exponent) power = power & 1 ? (power >> 1) ^ kPolynomial : power >> 1;
      by_words[words] = power;
    }
  }
};

__attribute__((target("sse4.2,pclmul"))) inline uint64_t shifted(uint64_t crc, uint32_t power) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(crc)),
                                               _mm_cvtsi64_si128(static_cast<int64_t>(power)), 0);
  return _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product)));
}

__attribute__((target("sse4.2,pclmul"))) uint32_t crc32c_sse42(const uint8_t* p, size_t n, uint32_t start) {
  static const Shifts shifts;
  uint64_t a = ~start;
  while (n >= 96) {
    const size_t words = n / 24 < kMaxLaneWords ? n / 24 : kMaxLaneWords;
    const size_t lane = 8 * words;
    uint64_t b = 0, c = 0;
    for (const uint8_t* end = p + lane; p != end; p += 8) {
      a = _mm_crc32_u64(a, load<uint64_t>(p));
      b = _mm_crc32_u64(b, load<uint64_t>(p + lane));
      c = _mm_crc32_u64(c, load<uint64_t>(p + 2 * lane));
    }
    a = shifted(a, shifts.by_words[2 * words]) ^ shifted(b, shifts.by_words[words]) ^ c;
    p += 2 * lane;
    n -= 3 * lane;
  }
  for (; n >= 8; p += 8, n -= 8) a = _mm_crc32_u64(a, load<uint64_t>(p));
  auto d = static_cast<uint32_t>(a);
  if (n >= 4) {
    d = _mm_crc32_u32(d, load<uint32_t>(p));
    p += 4;
    n -= 4;
  }
  for (; n; --n) d = _mm_crc32_u8(d, *p++);
  return ~d;
}

#elif defined(__ARM_FEATURE_CRC32)

uint32_t crc32c_arm(const uint8_t* p, size_t n, uint32_t start) {
  uint32_t c = ~start;
  for (; n >= 8; p += 8, n -= 8) c = __crc32cd(c, load<uint64_t>(p));
  for (; n; --n) c = __crc32cb(c, *p++);
  return ~c;
}

#endif

}  // namespace

Crc32c choose_crc32c() {
#ifdef SHARDKIT_X86
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) return crc32c_sse42;
  return crc32c_portable;
#elif defined(__ARM_FEATURE_CRC32)
  return crc32c_arm;
#else
  return crc32c_portable;
#endif
}

}  // namespace shardkit
