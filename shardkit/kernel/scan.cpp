// Where the records of a buffer lie, and records brought into a new order.

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "buffer.h"
#include "python.h"
#include "wire.h"

namespace shardkit {
namespace {

struct Frames {
  const uint8_t* data;
  int64_t size;
  Crc32c crc;
  bool checks_records;

  // Length of the record whose frame starts at `at`, -1 if the frame cannot be followed.
  int64_t length_at(int64_t at) const {
    if (size - at < kOverheadBytes) return -1;
    const uint8_t* header = data + at;
    const auto length = load<uint64_t>(header);
    if (length > static_cast<uint64_t>(size - at - kOverheadBytes)) return -1;
    if (load<uint32_t>(header + 8) != masked(crc(header, 8, 0))) return -1;
    return static_cast<int64_t>(length);
  }
};

struct Found {
  Block starts, lengths, states;
  int64_t count = 0;
  int64_t end = 0;

  void reserve(int64_t capacity) {
    const auto n = static_cast<size_t>(capacity);
    Block starts_(8 * n), lengths_(8 * n), states_(n);
    if (count > 0) {
      std::memcpy(starts_.data(), starts.data(), static_cast<size_t>(count) * 8);
      std::memcpy(lengths_.data(), lengths.data(), static_cast<size_t>(count) * 8);
      std::memcpy(states_.data(), states.data(), static_cast<size_t>(count));
    }
    starts = std::move(starts_);
    lengths = std::move(lengths_);
    states = std::move(states_);
  }
};

Found follow(const Frames& frames) {
  Found found;
  int64_t capacity = frames.size / 256 + 64;
  found.reserve(capacity);
  int64_t at = 0;
  while (at < frames.size) {
    const int64_t length = frames.length_at(at);
    if (length < 0) break;
    if (found.count == capacity) found.reserve(capacity *= 2);
    const uint8_t* record = frames.data + at + kHeaderBytes;
    const uint32_t stated = load<uint32_t>(record + length);
    found.starts.as<int64_t>()[found.count] = at + kHeaderBytes;
    found.lengths.as<int64_t>()[found.count] = length;
    found.states.data()[found.count] =
        frames.checks_records && stated != masked(frames.crc(record, static_cast<size_t>(length), 0));
    ++found.count;
    at += length + kOverheadBytes;
  }
  found.end = at;
  found.starts.shrink(8 * static_cast<size_t>(found.count));
  found.lengths.shrink(8 * static_cast<size_t>(found.count));
  found.states.shrink(static_cast<size_t>(found.count));
  return found;
}

// Several buffers as one run of bytes. A piece lies in one of them.
class Pieces {
 public:
  void add(const View& view) {
    data_.push_back(view.data());
    bounds_.push_back(bounds_.back() + static_cast<int64_t>(view.size()));
  }

  // Where a piece lies; false if it is not inside of one buffer.
  bool find(int64_t start, int64_t size, const uint8_t** found) const {
    if (start < 0 || size < 0 || start > bounds_.back()) return false;
    const size_t i = data_.size() == 1 ? 0 : index_of(start);
    if (size > bounds_[i + 1] - start) return false;
    *found = size == 0 ? nullptr : data_[i] + (start - bounds_[i]);
    return true;
  }

 private:
  size_t index_of(int64_t start) const {
    const auto after = std::upper_bound(bounds_.begin() + 1, bounds_.end() - 1, start);
    return static_cast<size_t>(after - bounds_.begin()) - 1;
  }

  std::vector<const uint8_t*> data_;
  std::vector<int64_t> bounds_ = {0};
};

// Of so many, the headers are read in tens of microseconds.
constexpr size_t kQuickBytes = size_t{4} << 20;

struct Source {
  const uint8_t* data;
  size_t size;
};

// Finds all pieces; -1 if there is one that is not inside of one buffer, else their total size.
int64_t find_sources(const Pieces& pieces, const int64_t* starts, const int64_t* sizes, size_t count, Source* found) {
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!pieces.find(starts[i], sizes[i], &found[i].data) || total > INT64_MAX - sizes[i]) return -1;
    found[i].size = static_cast<size_t>(sizes[i]);
    total += sizes[i];
  }
  return total;
}

void copy_sources(const Source* sources, size_t count, uint8_t* out) {
  constexpr size_t kAhead = 6;  // Pieces lie anywhere in tens of megabytes: ask for them before they are needed.
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      const Source& next = sources[i + kAhead];
      const size_t size = next.size < 1024 ? next.size : 1024;
      for (size_t k = 0; k < size; k += 64) __builtin_prefetch(next.data + k);
    }
    if (sources[i].size > 0) std::memcpy(out, sources[i].data, sources[i].size);
    out += sources[i].size;
  }
}

bool open_all(PyObject* object, std::vector<std::unique_ptr<View>>* views, Pieces* pieces) {
  const bool is_list = PyList_Check(object);
  const Py_ssize_t count = is_list ? PyList_Size(object) : 1;
  for (Py_ssize_t i = 0; i < count; ++i) {
    views->emplace_back(new View);
    if (!views->back()->open(is_list ? PyList_GetItem(object, i) : object)) return false;
    pieces->add(*views->back());
  }
  if (count > 0) return true;
  PyErr_SetString(PyExc_ValueError, "there is nothing to gather from");
  return false;
}

PyObject* gather_pieces(const Pieces& pieces, const int64_t* starts, const int64_t* sizes, size_t count) {
  Block sources(count * sizeof(Source));
  const int64_t total = find_sources(pieces, starts, sizes, count, sources.as<Source>());
  if (total < 0) {
    PyErr_SetString(PyExc_ValueError, "a piece lies outside of the data");
    return nullptr;
  }
  Block out(static_cast<size_t>(total));
  Py_BEGIN_ALLOW_THREADS;
  copy_sources(sources.as<Source>(), count, out.data());
  Py_END_ALLOW_THREADS;
  return out.release();
}

}  // namespace

PyObject* scan(PyObject*, PyObject* args) {
  PyObject* object;
  int checks_records = 1;
  if (!PyArg_ParseTuple(args, "O|p:scan", &object, &checks_records)) return nullptr;
  View view;
  if (!view.open(object)) return nullptr;
  static const Crc32c crc = choose_crc32c();
  try {
    Found found;
    {
      const Unlocked unlocked(checks_records != 0 || view.size() > kQuickBytes);
      found = follow({view.data(), static_cast<int64_t>(view.size()), crc, checks_records != 0});
    }
    return Py_BuildValue("(NNNL)", found.starts.release(), found.lengths.release(), found.states.release(),
                         static_cast<long long>(found.end));
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* crc32c(PyObject*, PyObject* args) {
  PyObject* object;
  unsigned int start = 0;
  if (!PyArg_ParseTuple(args, "O|I:crc32c", &object, &start)) return nullptr;
  View view;
  if (!view.open(object)) return nullptr;
  static const Crc32c crc = choose_crc32c();
  uint32_t found;
  Py_BEGIN_ALLOW_THREADS;
  found = crc(view.data(), view.size(), start);
  Py_END_ALLOW_THREADS;
  return PyLong_FromUnsignedLong(found);
}

PyObject* gather(PyObject*, PyObject* args) {
  PyObject *data_object, *starts_object, *sizes_object;
  if (!PyArg_ParseTuple(args, "OOO:gather", &data_object, &starts_object, &sizes_object)) return nullptr;
  View starts_view, sizes_view;
  if (!starts_view.open(starts_object) || !sizes_view.open(sizes_object)) return nullptr;
  size_t count, num_sizes;
  const int64_t* starts = starts_view.int64s(&count);
  if (starts == nullptr) return nullptr;
  const int64_t* sizes = sizes_view.int64s(&num_sizes);
  if (sizes == nullptr) return nullptr;
  if (count != num_sizes) {
    PyErr_SetString(PyExc_ValueError, "every piece needs a start and a size");
    return nullptr;
  }
  try {
    std::vector<std::unique_ptr<View>> views;
    Pieces pieces;
    if (!open_all(data_object, &views, &pieces)) return nullptr;
    return gather_pieces(pieces, starts, sizes, count);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace shardkit
