#include "buffer.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace shardkit {
namespace {

// Pooled memory stays resident: enough for the blocks that a few threads decode, or the runs that they sort.
constexpr size_t kMaxPooledBytes = size_t{64} << 20;
constexpr size_t kMaxBlockBytes = size_t{24} << 20;
// malloc itself serves small ones from memory that is warm.
constexpr size_t kMinBlockBytes = size_t{16} << 10;
constexpr size_t kAlignment = 64;
constexpr size_t kMinHugeBytes = size_t{4} << 20;
constexpr uintptr_t kPageBytes = 4096;

// Large buffers are mapped afresh each time: of 46 MB of decoded images, 11,200 page faults took 60 % of the CPU time.
void ask_for_huge_pages([[maybe_unused]] uint8_t* data, [[maybe_unused]] size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (size < kMinHugeBytes) return;
  const auto start = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (start + kPageBytes - 1) / kPageBytes * kPageBytes;
  madvise(reinterpret_cast<void*>(first), size - (first - start), MADV_HUGEPAGE);
#endif
}

struct Free {
  uint8_t* data;
  size_t capacity;
};

class Pool {
 public:
  uint8_t* take(size_t size, size_t* capacity) {
    if (size >= kMinBlockBytes) {
      const std::lock_guard<std::mutex> guard(lock_);
      size_t best = free_.size();
      for (size_t i = 0; i < free_.size(); ++i) {
        if (free_[i].capacity < size || free_[i].capacity / 4 > size) continue;
        if (best == free_.size() || free_[i].capacity < free_[best].capacity) best = i;
      }
      if (best != free_.size()) {
        const Free found = free_[best];
        free_[best] = free_.back();
        free_.pop_back();
        num_bytes_ -= found.capacity;
        *capacity = found.capacity;
        return found.data;
      }
      // An eighth more, so that the next block, which is about as large, fits too.
      size += size / 8;
    }
    // TensorFlow takes over memory without a copy if it is aligned so (EIGEN_MAX_ALIGN_BYTES), and Arrow recommends it.
    size = (size + kAlignment - 1) / kAlignment * kAlignment;
    *capacity = size;
    auto* data = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, size));
    if (data == nullptr) throw std::bad_alloc();
    ask_for_huge_pages(data, size);
    return data;
  }

  void give(uint8_t* data, size_t capacity) noexcept {
    if (capacity >= kMinBlockBytes && capacity <= kMaxBlockBytes) {
      try {
        const std::lock_guard<std::mutex> guard(lock_);
        if (num_bytes_ + capacity <= kMaxPooledBytes) {
          free_.push_back({data, capacity});
          num_bytes_ += capacity;
          return;
        }
      } catch (...) {
      }
    }
    std::free(data);
  }

 private:
  std::mutex lock_;
  std::vector<Free> free_;
  size_t num_bytes_ = 0;
};

// Never destroyed: buffers may outlive the module when the interpreter ends.
Pool& pool() {
  static Pool* const instance = new Pool;
  return *instance;
}

struct BufferObject {
  PyObject_HEAD
  uint8_t* data;
  size_t size;
  size_t capacity;
};

PyTypeObject* buffer_type = nullptr;

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* buffer = reinterpret_cast<BufferObject*>(self);
  return PyBuffer_FillInfo(view, self, buffer->data, static_cast<Py_ssize_t>(buffer->size), 0, flags);
}

Py_ssize_t get_length(PyObject* self) {
  return static_cast<Py_ssize_t>(reinterpret_cast<BufferObject*>(self)->size);
}

void dealloc(PyObject* self) {
  auto* buffer = reinterpret_cast<BufferObject*>(self);
  pool().give(buffer->data, buffer->capacity);
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyType_Slot slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
    {Py_mp_length, reinterpret_cast<void*>(get_length)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_doc, const_cast<char*>("Bytes in pooled memory. The memory is used again when no view of it is left.")},
    {0, nullptr},
};

PyType_Spec spec = {
    "shardkit._kernel.Buffer", sizeof(BufferObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots,
};

}  // namespace

Block::Block(size_t size) : size_(size) {
  if (size > static_cast<size_t>(PY_SSIZE_T_MAX) / 2) throw std::bad_alloc();
  data_ = pool().take(size + kSlack, &capacity_);
}

Block::~Block() {
  if (data_ != nullptr) pool().give(data_, capacity_);
}

Block::Block(Block&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(other.size_), capacity_(other.capacity_) {}

Block& Block::operator=(Block&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

PyObject* Block::release() {
  auto* buffer = PyObject_New(BufferObject, buffer_type);
  if (buffer == nullptr) return nullptr;
  buffer->data = std::exchange(data_, nullptr);
  buffer->size = size_;
  buffer->capacity = capacity_;
  return reinterpret_cast<PyObject*>(buffer);
}

bool add_buffer_type(PyObject* module) {
  buffer_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (buffer_type == nullptr) return false;
  return PyModule_AddObjectRef(module, "Buffer", reinterpret_cast<PyObject*>(buffer_type)) == 0;
}

}  // namespace shardkit
