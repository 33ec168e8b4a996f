// 64-bit hashes of byte strings, and counts: see statistics/frequencies.py.

#include "python.h"

#include <cstring>
#include <new>
#include <vector>

#include "buffer.h"
#include "wire.h"

namespace shardkit {
namespace {

constexpr uint64_t kMultiplier = 0xFF51AFD7ED558CCD;
constexpr size_t kMaxFew = 256;  // Bytes; at least 240.
constexpr uint64_t kPrime32 = 0x9E3779B1;
constexpr uint64_t kPrime64[] = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                                 0x27D4EB2F165667C5};
constexpr uint64_t kOtherPrimes32[] = {0x85EBCA77, 0xC2B2AE3D};

inline uint64_t mix64(uint64_t v) {
  v += 0x9E3779B97F4A7C15;
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EB;
  return v ^ (v >> 31);
}

// The default secret of XXH3 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md).
constexpr size_t kSecretBytes = 192;
const uint8_t kSecret[kSecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
constexpr size_t kStripeBytes = 64;
constexpr size_t kStripesABlock = (kSecretBytes - kStripeBytes) / 8;
constexpr size_t kLanes = 8;

inline void accumulate(uint64_t* lanes, const uint8_t* p, const uint8_t* secret) {
  for (size_t i = 0; i < kLanes; ++i) {
    const auto word = load<uint64_t>(p + 8 * i);
    const uint64_t keyed = word ^ load<uint64_t>(secret + 8 * i);
    lanes[i ^ 1] += word;
    lanes[i] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
  }
}

inline uint64_t folded_product(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// XXH3_64bits of more than 240 bytes: below, it is another function.
uint64_t xxh3_of_many(const uint8_t* p, size_t size) {
  uint64_t lanes[kLanes] = {kOtherPrimes32[1], kPrime64[0], kPrime64[1],       kPrime64[2],
                            kPrime64[3],       kOtherPrimes32[0], kPrime64[4], kPrime32};
  const size_t num_stripes = (size - 1) / kStripeBytes;
  for (size_t i = 0; i < num_stripes; ++i) {
    const size_t place = i % kStripesABlock;
    accumulate(lanes, p + kStripeBytes * i, kSecret + 8 * place);
    if (place != kStripesABlock - 1) continue;
    for (size_t k = 0; k < kLanes; ++k) {
      lanes[k] ^= (lanes[k] >> 47) ^ load<uint64_t>(kSecret + kSecretBytes - kStripeBytes + 8 * k);
      lanes[k] *= kPrime32;
    }
  }
  accumulate(lanes, p + size - kStripeBytes, kSecret + kSecretBytes - kStripeBytes - 7);
  uint64_t hash = size * kPrime64[0];
  for (size_t k = 0; k < kLanes; k += 2) {
    hash += folded_product(lanes[k] ^ load<uint64_t>(kSecret + 11 + 8 * k),
                           lanes[k + 1] ^ load<uint64_t>(kSecret + 19 + 8 * k));
  }
  hash = (hash ^ (hash >> 37)) * 0x165667919E3779F9;
  return hash ^ (hash >> 32);
}

// The last word is padded with zeros; `is_inside` where all of its bytes may be read.
inline uint64_t last_word(const uint8_t* p, size_t size, bool is_inside) {
  if (is_inside) return load<uint64_t>(p) & (~uint64_t{0} >> (64 - 8 * size));
  uint64_t word = 0;
  std::memcpy(&word, p, size);
  return word;
}

inline uint64_t hash_few(const uint8_t* p, size_t size, const uint8_t* safe_end) {
  uint64_t hash = size * kMultiplier;
  size_t i = 0;
  const auto add = [&hash](uint64_t word) {
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 32;
  };
  for (; i + 8 < size; i += 8) add(load<uint64_t>(p + i));
  if (size == 0) {
    add(0);
  } else {
    add(last_word(p + i, size - i, safe_end - (p + i) >= 8));
  }
  return hash;
}

// Values of a binary array.
class Slices {
 public:
  // Sets a Python error and returns false if these are no such offsets into the data.
  bool open(PyObject* offsets_object, PyObject* data_object) {
    if (!offsets_.open(offsets_object) || !data_.open(data_object)) return false;
    size_ = offsets_.size() / 4;
    bool is_valid = offsets_.size() % 4 == 0 && size_ > 0 && offset(0) >= 0;
    for (size_t i = 1; is_valid && i < size_; ++i) is_valid = offset(i - 1) <= offset(i);
    if (!is_valid || offset(size_ - 1) > static_cast<int64_t>(data_.size())) {
      PyErr_SetString(PyExc_ValueError, "expected ascending int32 offsets into the data, one more than values");
      return false;
    }
    --size_;
    return true;
  }

  size_t size() const { return size_; }
  size_t size_of(size_t i) const { return static_cast<size_t>(offset(i + 1) - offset(i)); }
  uint64_t hash(size_t i) const {
    const uint8_t* p = data_.data() + offset(i);
    const size_t size = size_of(i);
    return size <= kMaxFew ? hash_few(p, size, data_.data() + data_.size()) : xxh3_of_many(p, size);
  }
  bool are_equal(size_t i, size_t k) const {
    const size_t size = size_of(i);
    if (size != size_of(k)) return false;
    const uint8_t *p = data_.data() + offset(i), *q = data_.data() + offset(k);
    if (size > 32 || size == 0) return size == 0 || std::memcmp(p, q, size) == 0;
    const uint8_t* const safe_end = data_.data() + data_.size();
    uint64_t difference = 0;
    size_t done = 0;
    for (; done + 8 < size; done += 8) difference |= load<uint64_t>(p + done) ^ load<uint64_t>(q + done);
    const auto last = [=](const uint8_t* word) { return last_word(word, size - done, safe_end - word >= 8); };
    return (difference | (last(p + done) ^ last(q + done))) == 0;
  }

 private:
  int64_t offset(size_t i) const { return load<int32_t>(offsets_.data() + 4 * i); }

  View offsets_, data_;
  size_t size_ = 0;
};

struct Distinct {
  uint64_t hash;
  int64_t row;  // Where it comes first.
  int64_t count;
};

// Places of distinct values by their hashes, at most half full.
class Places {
 public:
  uint32_t& of(uint64_t hash) { return places_[at_ = hash * kMultiplier >> shift_]; }
  uint32_t& next() { return places_[at_ = (at_ + 1) & (places_.size() - 1)]; }
  bool is_full(size_t num_values) const { return num_values * 2 > places_.size(); }
  void grow(const std::vector<Distinct>& values) {
    shift_ -= 2;
    places_.assign(size_t{1} << (64 - shift_), kNone);
    for (size_t i = 0; i < values.size(); ++i) {
      uint32_t* place = &of(values[i].hash);
      while (*place != kNone) place = &next();
      *place = static_cast<uint32_t>(i);
    }
  }

  static constexpr uint32_t kNone = 0xFFFFFFFF;

 private:
  int shift_ = 56;
  std::vector<uint32_t> places_ = std::vector<uint32_t>(256, kNone);
  size_t at_ = 0;
};

std::vector<Distinct> count_distinct(const Slices& slices) {
  std::vector<Distinct> found;
  Places places;
  for (size_t row = 0; row < slices.size(); ++row) {
    const uint64_t hash = slices.hash(row);
    uint32_t* place = &places.of(hash);
    const auto is_other = [&](const Distinct& d) {
      return d.hash != hash || !slices.are_equal(static_cast<size_t>(d.row), row);
    };
    while (*place != Places::kNone && is_other(found[*place])) place = &places.next();
    if (*place != Places::kNone) {
      ++found[*place].count;
      continue;
    }
    *place = static_cast<uint32_t>(found.size());
    found.push_back({hash, static_cast<int64_t>(row), 1});
    if (places.is_full(found.size())) places.grow(found);
  }
  return found;
}

PyObject* hash_words(PyObject* object) {
  View data;
  if (!data.open(object)) return nullptr;
  const size_t size = data.size() / 8;
  Block hashes(8 * size);
  auto* out = hashes.as<uint64_t>();
  Py_BEGIN_ALLOW_THREADS;
  for (size_t i = 0; i < size; ++i) out[i] = mix64(load<uint64_t>(data.data() + 8 * i));
  Py_END_ALLOW_THREADS;
  return hashes.release();
}

}  // namespace

PyObject* hash_slices(PyObject*, PyObject* args) {
  PyObject *offsets, *data;
  if (!PyArg_ParseTuple(args, "OO:hash_slices", &offsets, &data)) return nullptr;
  try {
    if (offsets == Py_None) return hash_words(data);
    Slices slices;
    if (!slices.open(offsets, data)) return nullptr;
    Block hashes(8 * slices.size());
    auto* out = hashes.as<uint64_t>();
    Py_BEGIN_ALLOW_THREADS;
    for (size_t i = 0; i < slices.size(); ++i) out[i] = mix64(slices.hash(i));
    Py_END_ALLOW_THREADS;
    return hashes.release();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* count_slices(PyObject*, PyObject* args) {
  PyObject *offsets, *data;
  if (!PyArg_ParseTuple(args, "OO:count_slices", &offsets, &data)) return nullptr;
  Slices slices;
  if (!slices.open(offsets, data)) return nullptr;
  try {
    std::vector<Distinct> found;
    bool is_out_of_memory = false;
    Py_BEGIN_ALLOW_THREADS;
    try {
      found = count_distinct(slices);
    } catch (const std::bad_alloc&) {
      is_out_of_memory = true;
    }
    Py_END_ALLOW_THREADS;
    if (is_out_of_memory) return PyErr_NoMemory();
    Block rows(8 * found.size()), counts(8 * found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      rows.as<int64_t>()[i] = found[i].row;
      counts.as<int64_t>()[i] = found[i].count;
    }
    return Py_BuildValue("(NN)", rows.release(), counts.release());
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace shardkit
