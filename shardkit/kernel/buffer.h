// Output buffers that are used again: fresh pages cost as much as decoding into them (0.5 ns a byte, measured).

#pragma once

#include "python.h"

namespace shardkit {

// Memory from the pool; goes back there unless a Python object took it over.
class Block {
 public:
  Block() = default;
  // Throws std::bad_alloc. At least kSlack bytes more may be written than were asked for.
  explicit Block(size_t size);
  ~Block();
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  // For outputs whose size was only bounded before; never grows.
  void shrink(size_t size) { size_ = size; }
  // Gives the memory to a new Python object with the buffer protocol; nullptr with a Python error set.
  PyObject* release();

  static constexpr size_t kSlack = 64;

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

bool add_buffer_type(PyObject* module);

}  // namespace shardkit
