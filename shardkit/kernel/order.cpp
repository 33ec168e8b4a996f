// The pseudo-random order of the rows of a block.

#include <algorithm>
#include <new>

#include "buffer.h"

namespace shardkit {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that avalanches.
inline uint64_t mix64(uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
  value = (value ^ value >> 27) * 0x94D049BB133111EB;
  return value ^ value >> 31;
}

constexpr Py_ssize_t kQuickCount = 8192;

struct Keyed {
  uint64_t key;
  int64_t position;
};

// The keys are distinct, since mix64 is a bijection, and spread evenly: one pass over buckets of one key on average,
// then a sort of a few neighbours. A third of the time of a sort of all.
void permute(size_t count, uint64_t key, int64_t* out) {
  int num_bits = 1;
  while (num_bits < 32 && size_t{1} << num_bits < count) ++num_bits;
  const int shift = 64 - num_bits;
  const size_t num_buckets = size_t{1} << num_bits;
  Block keys_block(8 * count), ends_block(4 * (num_buckets + 1)), keyed_block(sizeof(Keyed) * count);
  auto* const keys = keys_block.as<uint64_t>();
  auto* const ends = ends_block.as<uint32_t>();
  auto* const keyed = keyed_block.as<Keyed>();
  std::fill(ends, ends + num_buckets + 1, 0);
  for (size_t i = 0; i < count; ++i) {
    keys[i] = mix64(mix64(i) ^ key);
    ++ends[(keys[i] >> shift) + 1];
  }
  for (size_t bucket = 0; bucket < num_buckets; ++bucket) ends[bucket + 1] += ends[bucket];
  for (size_t i = 0; i < count; ++i) keyed[ends[keys[i] >> shift]++] = {keys[i], static_cast<int64_t>(i)};
  for (size_t i = 1; i < count; ++i) {
    const Keyed own = keyed[i];
    size_t at = i;
    for (; at > 0 && keyed[at - 1].key > own.key; --at) keyed[at] = keyed[at - 1];
    keyed[at] = own;
  }
  for (size_t i = 0; i < count; ++i) out[i] = keyed[i].position;
}

}  // namespace

PyObject* permutation(PyObject*, PyObject* args) {
  Py_ssize_t count;
  unsigned long long key;
  if (!PyArg_ParseTuple(args, "nK:permutation", &count, &key)) return nullptr;
  if (count < 0 || count > UINT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "a permutation is of 0 to 2**32 - 1 rows");
    return nullptr;
  }
  try {
    Block order(8 * static_cast<size_t>(count));
    {
      const Unlocked unlocked(count > kQuickCount);
      permute(static_cast<size_t>(count), key, order.as<int64_t>());
    }
    return order.release();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace shardkit
