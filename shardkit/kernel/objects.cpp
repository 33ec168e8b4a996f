// Slices of a buffer as Python objects.

#include <algorithm>
#include <new>
#include <vector>

#include "python.h"
#include "wire.h"

namespace shardkit {
namespace {

constexpr size_t kMaxKeptBytes = 32;
constexpr size_t kMaxKept = 1024;
constexpr size_t kNumTrials = 256;
constexpr size_t kMinHits = kNumTrials / 8;

uint64_t hash_of(const uint8_t* p, size_t size) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;
  uint64_t first = 0, last = 0;
  if (size >= 8) {
    first = load<uint64_t>(p);
    last = load<uint64_t>(p + size - 8);
  } else if (size >= 4) {
    first = load<uint32_t>(p);
    last = load<uint32_t>(p + size - 4);
  } else if (size > 0) {
    first = p[0] | static_cast<uint64_t>(p[size / 2]) << 8;
    last = p[size - 1];
  }
  uint64_t hash = (first ^ size << 56) * kMultiplier;
  hash = (hash ^ hash >> 32 ^ last) * kMultiplier;
  return hash >> 32;
}

// Makes objects. Categories repeat, so recent objects are given once more, in a quarter of the time.
class Maker {
 public:
  Maker(bool is_text, size_t num_values) : is_text_(is_text) {
    size_t size = 16;
    while (size < num_values && size < kMaxKept) size *= 2;
    kept_.resize(size);
  }

  // A new reference, nullptr with a Python error set.
  PyObject* make(const uint8_t* p, size_t size) {
    if (size > kMaxKeptBytes || !repeats_) return create(p, size);
    Kept& kept = kept_[hash_of(p, size) & (kept_.size() - 1)];
    if (++num_tries_ == kNumTrials) repeats_ = num_hits_ >= kMinHits;
    if (kept.object != nullptr && kept.size == size && std::memcmp(kept.begin, p, size) == 0) {
      ++num_hits_;
      return Py_NewRef(kept.object);
    }
    // The array has the object as long as this call lasts.
    return (kept = {p, size, create(p, size)}).object;
  }

 private:
  struct Kept {
    const uint8_t* begin = nullptr;
    size_t size = 0;
    PyObject* object = nullptr;
  };

  PyObject* create(const uint8_t* p, size_t size) const {
    const auto* const text = reinterpret_cast<const char*>(p);
    const auto length = static_cast<Py_ssize_t>(size);
    return is_text_ ? PyUnicode_DecodeUTF8(text, length, "strict") : PyBytes_FromStringAndSize(text, length);
  }

  const bool is_text_;
  bool repeats_ = true;
  size_t num_tries_ = 0;
  size_t num_hits_ = 0;
  std::vector<Kept> kept_;
};

bool are_slices(const int32_t* offsets, size_t count, size_t num_bytes) {
  if (offsets[0] < 0) return false;
  for (size_t i = 0; i < count; ++i)
    if (offsets[i] > offsets[i + 1]) return false;
  return static_cast<size_t>(offsets[count]) <= num_bytes;
}

}  // namespace

PyObject* put_objects(PyObject*, PyObject* args) {
  PyObject *array_object, *offsets_object, *data_object;
  int is_text;
  if (!PyArg_ParseTuple(args, "OOOp:put_objects", &array_object, &offsets_object, &data_object, &is_text))
    return nullptr;
  View array, offsets_view, data;
  if (!array.open(array_object, PyBUF_WRITABLE | PyBUF_ND | PyBUF_FORMAT) || !offsets_view.open(offsets_object) ||
      !data.open(data_object))
    return nullptr;
  const size_t count = array.size() / sizeof(PyObject*);
  const auto* const offsets = reinterpret_cast<const int32_t*>(offsets_view.data());
  if (!array.has_objects() || offsets_view.size() != 4 * (count + 1) || !are_slices(offsets, count, data.size())) {
    PyErr_SetString(PyExc_ValueError, "expected an array of objects and the offsets of as many slices");
    return nullptr;
  }
  auto* const objects = reinterpret_cast<PyObject**>(const_cast<uint8_t*>(array.data()));
  try {
    Maker maker(is_text != 0, count);
    for (size_t i = 0; i < count; ++i) {
      PyObject* const made = maker.make(data.data() + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i]));
      if (made == nullptr) return nullptr;
      PyObject* const before = objects[i];
      objects[i] = made;
      Py_XDECREF(before);
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  return Py_NewRef(Py_None);
}

}  // namespace shardkit
