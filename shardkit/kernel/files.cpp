// Bytes of files, with their checksum, in one call.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "buffer.h"
#include "wire.h"

namespace shardkit {
namespace {

// So much is still in the cache when its checksum is computed.
constexpr size_t kReadBytes = size_t{256} << 10;

// Reads the wanted bytes, or up to the end of the file; returns the bytes read, or -1 with errno set.
Py_ssize_t read_whole(int descriptor, off_t start, size_t size, uint8_t* out, uint32_t* crc) {
  static const Crc32c crc32c_of = choose_crc32c();
  size_t done = 0;
  *crc = 0;
  while (done < size) {
    const ssize_t count = pread(descriptor, out + done, std::min(size - done, kReadBytes), start + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (count == 0) break;
    *crc = crc32c_of(out + done, static_cast<size_t>(count), *crc);
    done += static_cast<size_t>(count);
  }
  return static_cast<Py_ssize_t>(done);
}

}  // namespace

PyObject* read_at(PyObject*, PyObject* args) {
  int descriptor;
  long long start;
  Py_ssize_t size, tail_size;
  const char* tail;
  if (!PyArg_ParseTuple(args, "iLny#:read_at", &descriptor, &start, &size, &tail, &tail_size)) return nullptr;
  if (start < 0 || size < 0) {
    PyErr_SetString(PyExc_ValueError, "a position and a number of bytes are not negative");
    return nullptr;
  }
  try {
    Block data(static_cast<size_t>(size) + static_cast<size_t>(tail_size));
    uint32_t crc;
    int error = 0;
    Py_ssize_t count;
    {
      const Unlocked unlocked(true);
      count = read_whole(descriptor, static_cast<off_t>(start), static_cast<size_t>(size), data.data(), &crc);
      if (count < 0) error = errno;
    }
    if (count < 0) {
      errno = error;
      return PyErr_SetFromErrno(PyExc_OSError);
    }
    std::memcpy(data.data() + count, tail, static_cast<size_t>(tail_size));
    data.shrink(static_cast<size_t>(count + tail_size));
    return Py_BuildValue("(NI)", data.release(), crc);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace shardkit
