// Arrow record batches to framed tf.train.Example records, in one pass over the columns and without the GIL.
//
// Limited API, and Arrow through its C data interface (https://arrow.apache.org/docs/format/CDataInterface.html): the
// extension links neither. Columns come as int64, float32, binary, fixed-size binary, or lists of the first three, in
// the order in which their features are to be stored; shardkit/encoder.py brings them there. shardkit/example.py is
// the readable definition of the same bytes.

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#if defined(__x86_64__) || defined(_M_X64)
#include <nmmintrin.h>
#define SHARDKIT_X86 1
#endif

struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};

namespace {

// ---- CRC32C (RFC 3720), masked as TFRecord stores it ----

struct CrcTable {
  uint32_t t[8][256];
  CrcTable() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? (c >> 1) ^ 0x82F63B78u : c >> 1;
      t[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; ++i)
      for (int k = 1; k < 8; ++k) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xFF];
  }
};

uint32_t crc32c_portable(const uint8_t* p, size_t n) {
  static const CrcTable table;
  uint32_t c = 0xFFFFFFFFu;
  for (; n >= 8; p += 8, n -= 8) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= c;
    c = table.t[7][low & 0xFF] ^ table.t[6][(low >> 8) & 0xFF] ^ table.t[5][(low >> 16) & 0xFF] ^
        table.t[4][low >> 24] ^ table.t[3][high & 0xFF] ^ table.t[2][(high >> 8) & 0xFF] ^
        table.t[1][(high >> 16) & 0xFF] ^ table.t[0][high >> 24];
  }
  for (; n; --n) c = (c >> 8) ^ table.t[0][(c ^ *p++) & 0xFF];
  return ~c;
}

#ifdef SHARDKIT_X86
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const uint8_t* p, size_t n) {
  uint64_t c = 0xFFFFFFFFu;
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    c = _mm_crc32_u64(c, v);
  }
  uint32_t d = static_cast<uint32_t>(c);
  for (; n; --n) d = _mm_crc32_u8(d, *p++);
  return ~d;
}
#endif

using CrcFunction = uint32_t (*)(const uint8_t*, size_t);

CrcFunction choose_crc() {
#ifdef SHARDKIT_X86
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42;
#endif
  return crc32c_portable;
}

uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; }

// ---- Protobuf ----

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

inline void put_u32(uint8_t* p, uint32_t v) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(v >> (8 * i));
}

enum class Kind : uint8_t { kInt64, kFloat, kBytes, kFixedBytes };

// Field numbers of tensorflow.Feature: bytes_list 1, float_list 2, int64_list 3.
inline uint8_t feature_tag(Kind kind) {
  if (kind == Kind::kInt64) return 0x1A;
  return kind == Kind::kFloat ? 0x12 : 0x0A;
}

struct Column {
  std::string key;  // The entry's key field, tag and length included.
  Kind kind;
  bool is_list;
  int64_t width;  // Of fixed-size binary.
  const uint8_t* validity;
  int64_t offset;
  const int32_t* list_offsets;
  // Values: of the column itself, or of the child of a list.
  int64_t value_offset;
  const void* values;
  const int32_t* byte_offsets;
};

inline bool is_valid(const Column& c, int64_t row) {
  if (c.validity == nullptr) return true;
  int64_t i = row + c.offset;
  return c.validity[i >> 3] >> (i & 7) & 1;
}

inline void value_span(const Column& c, int64_t row, int64_t* first, int64_t* stop) {
  if (c.is_list) {
    *first = c.list_offsets[row + c.offset] + c.value_offset;
    *stop = c.list_offsets[row + c.offset + 1] + c.value_offset;
  } else {
    *first = row + c.value_offset;
    *stop = *first + 1;
  }
}

inline const uint8_t* bytes_at(const Column& c, int64_t i, uint64_t* size) {
  const uint8_t* base = static_cast<const uint8_t*>(c.values);
  if (c.kind == Kind::kFixedBytes) {
    *size = static_cast<uint64_t>(c.width);
    return base + i * c.width;
  }
  *size = static_cast<uint64_t>(c.byte_offsets[i + 1] - c.byte_offsets[i]);
  return base + c.byte_offsets[i];
}

// Bytes of the list message: packed numbers with their tag, or one field per bytes value.
uint64_t list_size(const Column& c, int64_t row) {
  int64_t first, stop;
  value_span(c, row, &first, &stop);
  uint64_t total = 0;
  if (c.kind == Kind::kInt64) {
    const uint64_t* v = static_cast<const uint64_t*>(c.values);
    for (int64_t i = first; i < stop; ++i) total += varint_size(v[i]);
  } else if (c.kind == Kind::kFloat) {
    total = 4 * static_cast<uint64_t>(stop - first);
  } else {
    for (int64_t i = first; i < stop; ++i) {
      uint64_t size;
      bytes_at(c, i, &size);
      total += 1 + varint_size(size) + size;
    }
    return total;
  }
  return total == 0 ? 0 : 1 + varint_size(total) + total;
}

uint8_t* put_list(const Column& c, int64_t row, uint64_t size, uint8_t* p) {
  int64_t first, stop;
  value_span(c, row, &first, &stop);
  if (c.kind == Kind::kInt64 || c.kind == Kind::kFloat) {
    if (size == 0) return p;
    // The packed length is what is left of the list message after its own tag and length.
    uint64_t packed = size - 2;
    while (1 + varint_size(packed) + packed != size) --packed;
    *p++ = 0x0A;
    p = put_varint(p, packed);
    if (c.kind == Kind::kInt64) {
      const uint64_t* v = static_cast<const uint64_t*>(c.values);
      for (int64_t i = first; i < stop; ++i) p = put_varint(p, v[i]);
    } else {
      std::memcpy(p, static_cast<const float*>(c.values) + first, packed);
      p += packed;
    }
    return p;
  }
  for (int64_t i = first; i < stop; ++i) {
    uint64_t n;
    const uint8_t* data = bytes_at(c, i, &n);
    *p++ = 0x0A;
    p = put_varint(p, n);
    if (n) std::memcpy(p, data, n);
    p += n;
  }
  return p;
}

struct EntrySizes {
  uint64_t feature, value, entry;
};

inline EntrySizes entry_sizes(const Column& c, uint64_t list) {
  EntrySizes s;
  s.feature = 1 + varint_size(list) + list;
  s.value = 1 + varint_size(s.feature) + s.feature;
  s.entry = c.key.size() + s.value;
  return s;
}

constexpr uint64_t kAbsent = ~uint64_t{0};

// ---- Columns from Arrow ----

bool fail(const char* message) {
  PyErr_SetString(PyExc_ValueError, message);
  return false;
}

bool read_values(const ArrowSchema* schema, const ArrowArray* array, Column* c) {
  const char* format = schema->format;
  c->value_offset = array->offset;
  if (std::strcmp(format, "l") == 0) {
    c->kind = Kind::kInt64;
    c->values = array->buffers[1];
  } else if (std::strcmp(format, "f") == 0) {
    c->kind = Kind::kFloat;
    c->values = array->buffers[1];
  } else if (std::strcmp(format, "z") == 0) {
    c->kind = Kind::kBytes;
    c->byte_offsets = static_cast<const int32_t*>(array->buffers[1]);
    c->values = array->buffers[2];
  } else if (std::strncmp(format, "w:", 2) == 0) {
    c->kind = Kind::kFixedBytes;
    c->width = std::strtoll(format + 2, nullptr, 10);
    c->values = array->buffers[1];
  } else {
    return fail("the kernel takes int64, float32, binary and fixed-size binary, and lists of them");
  }
  return true;
}

bool read_column(const ArrowSchema* schema, const ArrowArray* array, Column* c) {
  const size_t name_size = std::strlen(schema->name);
  uint8_t head[12];
  head[0] = 0x0A;
  uint8_t* end = put_varint(head + 1, name_size);
  c->key.assign(reinterpret_cast<char*>(head), end - head);
  c->key.append(schema->name, name_size);
  c->offset = array->offset;
  c->width = 0;
  c->byte_offsets = nullptr;
  c->list_offsets = nullptr;
  c->validity = array->null_count == 0 ? nullptr : static_cast<const uint8_t*>(array->buffers[0]);
  c->is_list = std::strcmp(schema->format, "+l") == 0;
  if (!c->is_list) return read_values(schema, array, c);
  c->list_offsets = static_cast<const int32_t*>(array->buffers[1]);
  return read_values(schema->children[0], array->children[0], c);
}

struct Encoder {
  std::vector<Column> columns;
  int64_t num_rows = 0;
  std::vector<uint64_t> lists;     // List sizes, column by column; kAbsent where null.
  std::vector<uint64_t> features;  // Bytes of the Features message of each row.

  uint64_t measure(int64_t* sizes) {
    lists.resize(columns.size() * static_cast<size_t>(num_rows));
    features.assign(static_cast<size_t>(num_rows), 0);
    uint64_t* list = lists.data();
    for (const Column& c : columns) {
      for (int64_t row = 0; row < num_rows; ++row, ++list) {
        if (!is_valid(c, row)) {
          *list = kAbsent;
          continue;
        }
        *list = list_size(c, row);
        const uint64_t entry = entry_sizes(c, *list).entry;
        features[row] += 1 + varint_size(entry) + entry;
      }
    }
    uint64_t total = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
      const uint64_t framed = 16 + 1 + varint_size(features[row]) + features[row];
      sizes[row] = static_cast<int64_t>(framed);
      total += framed;
    }
    return total;
  }

  void write(const int64_t* sizes, uint8_t* out, CrcFunction crc) const {
    for (int64_t row = 0; row < num_rows; ++row) {
      const uint64_t length = static_cast<uint64_t>(sizes[row]) - 16;
      for (int i = 0; i < 8; ++i) out[i] = static_cast<uint8_t>(length >> (8 * i));
      put_u32(out + 8, masked(crc(out, 8)));
      uint8_t* p = out + 12;
      *p++ = 0x0A;
      p = put_varint(p, features[row]);
      for (size_t k = 0; k < columns.size(); ++k) {
        const uint64_t list = lists[k * static_cast<size_t>(num_rows) + static_cast<size_t>(row)];
        if (list == kAbsent) continue;
        const Column& c = columns[k];
        const EntrySizes s = entry_sizes(c, list);
        *p++ = 0x0A;
        p = put_varint(p, s.entry);
        std::memcpy(p, c.key.data(), c.key.size());
        p += c.key.size();
        *p++ = 0x12;
        p = put_varint(p, s.feature);
        *p++ = feature_tag(c.kind);
        p = put_varint(p, list);
        p = put_list(c, row, list, p);
      }
      put_u32(p, masked(crc(out + 12, length)));
      out = p + 4;
    }
  }
};

PyObject* encode(PyObject*, PyObject* args) {
  PyObject *schema_capsule, *array_capsule;
  if (!PyArg_ParseTuple(args, "OO", &schema_capsule, &array_capsule)) return nullptr;
  auto* schema = static_cast<ArrowSchema*>(PyCapsule_GetPointer(schema_capsule, "arrow_schema"));
  if (schema == nullptr) return nullptr;
  auto* array = static_cast<ArrowArray*>(PyCapsule_GetPointer(array_capsule, "arrow_array"));
  if (array == nullptr) return nullptr;
  if (std::strcmp(schema->format, "+s") != 0 || array->offset != 0) {
    fail("the kernel takes a record batch");
    return nullptr;
  }
  static const CrcFunction crc = choose_crc();
  try {
    Encoder encoder;
    encoder.num_rows = array->length;
    encoder.columns.resize(static_cast<size_t>(schema->n_children));
    for (int64_t i = 0; i < schema->n_children; ++i)
      if (!read_column(schema->children[i], array->children[i], &encoder.columns[static_cast<size_t>(i)]))
        return nullptr;
    PyObject* sizes = PyBytes_FromStringAndSize(nullptr, encoder.num_rows * 8);
    if (sizes == nullptr) return nullptr;
    std::vector<int64_t> measured(static_cast<size_t>(encoder.num_rows));
    uint64_t total = 0;
    bool out_of_memory = false;
    Py_BEGIN_ALLOW_THREADS;
    try {
      total = encoder.measure(measured.data());
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
    Py_END_ALLOW_THREADS;
    PyObject* data = nullptr;
    if (!out_of_memory && total <= static_cast<uint64_t>(PY_SSIZE_T_MAX))
      data = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(total));
    if (data == nullptr) {
      Py_DECREF(sizes);
      return PyErr_NoMemory();
    }
    if (encoder.num_rows) std::memcpy(PyBytes_AsString(sizes), measured.data(), measured.size() * 8);
    auto* out = reinterpret_cast<uint8_t*>(PyBytes_AsString(data));
    Py_BEGIN_ALLOW_THREADS;
    encoder.write(measured.data(), out, crc);
    Py_END_ALLOW_THREADS;
    return Py_BuildValue("(NN)", data, sizes);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyMethodDef methods[] = {
    {"encode", encode, METH_VARARGS,
     "encode(schema_capsule, array_capsule) -> (framed records, int64 size of each as bytes)"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernel", "The compiled codec.", -1, methods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__kernel(void) { return PyModule_Create(&definition); }
