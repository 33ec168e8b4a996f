// Python's limited API (one build for every version from 3.11 on) and helpers of all functions.

#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <cstddef>
#include <cstdint>

namespace shardkit {

// A view of an object with the buffer protocol, let go at the end of the scope.
class View {
 public:
  View() { view_.obj = nullptr; }
  ~View() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  // Sets a Python error and returns false if the object has no contiguous bytes.
  bool open(PyObject* object, int flags = PyBUF_SIMPLE) { return PyObject_GetBuffer(object, &view_, flags) == 0; }

  // Whether the items are Python objects; only if opened with PyBUF_FORMAT.
  bool has_objects() const { return view_.format != nullptr && view_.format[0] == 'O' && view_.format[1] == 0; }
  const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

  // The bytes as 8-byte integers; sets a Python error if there is a rest or the start is not aligned.
  const int64_t* int64s(size_t* count) const {
    if (size() % 8 != 0 || reinterpret_cast<uintptr_t>(view_.buf) % 8 != 0) {
      PyErr_SetString(PyExc_ValueError, "expected aligned int64 values");
      return nullptr;
    }
    static const int64_t nothing = 0;
    *count = size() / 8;
    return *count == 0 ? &nothing : static_cast<const int64_t*>(view_.buf);
  }

 private:
  Py_buffer view_;
};

// Lets other threads run, if asked to, until the end of the scope. For work of a few microseconds it is not worth it: to
// get the interpreter back from a thread that has it takes tens of them.
class Unlocked {
 public:
  explicit Unlocked(bool is_wanted) : state_(is_wanted ? PyEval_SaveThread() : nullptr) {}
  ~Unlocked() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

PyObject* encode(PyObject*, PyObject* args);
PyObject* crc32c(PyObject*, PyObject* args);
PyObject* read_at(PyObject*, PyObject* args);
PyObject* scan(PyObject*, PyObject* args);
PyObject* gather(PyObject*, PyObject* args);
PyObject* permutation(PyObject*, PyObject* args);
PyObject* decode(PyObject*, PyObject* args);
PyObject* decode_pieces(PyObject*, PyObject* args);
PyObject* put_objects(PyObject*, PyObject* args);
PyObject* count_keys(PyObject*, PyObject* args);
PyObject* hash_slices(PyObject*, PyObject* args);
PyObject* count_slices(PyObject*, PyObject* args);

}  // namespace shardkit
