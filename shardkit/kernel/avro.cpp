// Records of Avro blocks to column buffers: flat records of primitives, each of which may be a union with null.
//
// Unusual rows are reported, not decoded: shardkit/sources/avro/rows.py reads them with fastavro, which gives the
// error.

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "buffer.h"
#include "python.h"
#include "wire.h"

namespace shardkit {
namespace {

constexpr size_t kFirstRows = 1024;
constexpr size_t kFirstTextBytes = 4096;
constexpr size_t kMaxTextBytes = INT32_MAX;
constexpr size_t kMaxFields = 1 << 16;

enum FieldKind { kNull, kBoolean, kInt, kLong, kFloat32, kDouble, kText, kFixed, kEnum, kNumKinds };

// Thrown where a column does not fit 32-bit offsets.
struct TooMuchText {};

struct Piece {
  const uint8_t* begin;
  const uint8_t* end;
  int64_t num_rows;
};

struct Cursor {
  const uint8_t* p;
  const uint8_t* end;

  size_t rest() const { return static_cast<size_t>(end - p); }

  // A zigzag number of at most 64 bits; false if it is longer or cut off.
  bool number(int64_t* value) {
    uint64_t v = 0;
    if (p != end && *p < 0x80) {
      v = *p++;
    } else if (!long_number(&v)) {
      return false;
    }
    *value = static_cast<int64_t>((v >> 1) ^ (0 - (v & 1)));
    return true;
  }

  // Bytes behind their number.
  bool run(const uint8_t** begin, size_t* size) {
    int64_t length;
    return number(&length) && length >= 0 && take(static_cast<uint64_t>(length), begin, size);
  }

  bool take(uint64_t length, const uint8_t** begin, size_t* size) {
    if (length > rest()) return false;
    *begin = p;
    *size = static_cast<size_t>(length);
    p += length;
    return true;
  }

 private:
  bool long_number(uint64_t* value) {
    if (rest() >= 8) {
      const auto word = load<uint64_t>(p);
      const uint64_t stops = ~word & 0x8080808080808080;
      if (stops != 0) {
        const int size = (__builtin_ctzll(stops) >> 3) + 1;
        *value = short_varint(word, size);
        p += size;
        return true;
      }
    }
    uint64_t v = 0;
    for (int shift = 0; shift < 70 && p != end; shift += 7) {
      const uint8_t byte = *p++;
      if (shift == 63 && byte > 1) return false;
      v |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) {
        *value = v;
        return true;
      }
    }
    return false;
  }
};

// One field of the records, and the column that it becomes if it is wanted.
class Field {
 public:
  FieldKind kind = kNull;
  int64_t null_branch = -1;  // Of a union of two, which of them is null; -1 if it is no union.
  bool is_wanted = false;
  uint64_t fixed_size = 0;
  std::vector<std::string> symbols;

  void reserve(size_t num_rows, size_t done) {
    if (!is_wanted) return;
    grow(&values_, bytes_of(num_rows), done == 0 ? 0 : bytes_of(done));
    if (is_text() && done == 0) {
      store<int32_t>(values_.data(), 0);
      text_ = Block(kFirstTextBytes);
    }
    if (has_nulls_) grow_validity(num_rows, done);
    capacity_ = num_rows;
  }

  // Reads the value of a row; false if it is damaged or has an unusual form.
  bool read(Cursor* cursor, size_t row) {
    if (null_branch >= 0) {
      int64_t branch;
      if (!cursor->number(&branch) || branch < 0 || branch > 1) return false;
      if (branch == null_branch) {
        if (is_wanted) put_null(row);
        return true;
      }
    }
    return is_wanted ? read_value(cursor, row) : skip_value(cursor);
  }

  void finish(size_t num_rows) {
    if (!is_wanted) return;
    values_.shrink(bytes_of(num_rows));
    if (is_text()) text_.shrink(num_text_bytes_);
    if (has_nulls_) validity_.shrink((num_rows + 7) / 8);
  }

  // (validity or None, values or offsets[, bytes]).
  PyObject* release() {
    PyObject* validity = has_nulls_ ? validity_.release() : Py_NewRef(Py_None);
    if (validity == nullptr) return nullptr;
    PyObject* values = values_.release();
    if (values == nullptr) {
      Py_DECREF(validity);
      return nullptr;
    }
    if (!is_text()) return Py_BuildValue("(NN)", validity, values);
    PyObject* text = text_.release();
    if (text == nullptr) {
      Py_DECREF(validity);
      Py_DECREF(values);
      return nullptr;
    }
    return Py_BuildValue("(NNN)", validity, values, text);
  }

 private:
  bool is_text() const { return kind == kText || kind == kFixed || kind == kEnum; }

  size_t bytes_of(size_t num_rows) const {
    if (is_text()) return 4 * (num_rows + 1);
    if (kind == kBoolean) return (num_rows + 7) / 8;
    return num_rows * (kind == kInt || kind == kFloat32 ? 4 : 8);
  }

  static void grow(Block* block, size_t size, size_t used) {
    Block larger(size);
    if (used > 0) std::memcpy(larger.data(), block->data(), used);
    *block = std::move(larger);
  }

  // Rows up to `done` keep their bits, all others have values.
  void grow_validity(size_t num_rows, size_t done) {
    const size_t size = (num_rows + 7) / 8, used = has_nulls_ ? (done + 7) / 8 : 0;
    grow(&validity_, size, used);
    std::memset(validity_.data() + used, 0xFF, size - used);
    has_nulls_ = true;
  }

  void put_null(size_t row) {
    if (!has_nulls_) grow_validity(capacity_, 0);
    validity_.data()[row >> 3] &= static_cast<uint8_t>(~(1u << (row & 7)));
    if (is_text()) {
      end_text(row);
    } else if (kind == kBoolean) {
      put_bit(row, 0);
    } else if (kind == kInt || kind == kFloat32) {
      values_.as<uint32_t>()[row] = 0;
    } else {
      values_.as<uint64_t>()[row] = 0;
    }
  }

  bool read_value(Cursor* cursor, size_t row) {
    int64_t number;
    const uint8_t* bytes;
    size_t size;
    switch (kind) {
      case kBoolean:
        if (!cursor->take(1, &bytes, &size) || *bytes > 1) return false;
        put_bit(row, *bytes);
        return true;
      case kInt:
        if (!cursor->number(&number) || number < INT32_MIN || number > INT32_MAX) return false;
        values_.as<int32_t>()[row] = static_cast<int32_t>(number);
        return true;
      case kLong:
        return cursor->number(values_.as<int64_t>() + row);
      case kFloat32:
        if (!cursor->take(4, &bytes, &size)) return false;
        values_.as<uint32_t>()[row] = quiet(load<uint32_t>(bytes));
        return true;
      case kDouble:
        if (!cursor->take(8, &bytes, &size)) return false;
        values_.as<uint64_t>()[row] = load<uint64_t>(bytes);
        return true;
      case kText:
        return cursor->run(&bytes, &size) && put_text(row, bytes, size);
      case kFixed:
        return cursor->take(fixed_size, &bytes, &size) && put_text(row, bytes, size);
      case kEnum: {
        if (!cursor->number(&number) || number < 0 || static_cast<uint64_t>(number) >= symbols.size()) return false;
        const std::string& symbol = symbols[static_cast<size_t>(number)];
        return put_text(row, reinterpret_cast<const uint8_t*>(symbol.data()), symbol.size());
      }
      default:
        return false;
    }
  }

  bool skip_value(Cursor* cursor) const {
    int64_t number;
    const uint8_t* bytes;
    size_t size;
    switch (kind) {
      case kNull:
        return true;
      case kBoolean:
        return cursor->take(1, &bytes, &size);
      case kFloat32:
        return cursor->take(4, &bytes, &size);
      case kDouble:
        return cursor->take(8, &bytes, &size);
      case kText:
        return cursor->run(&bytes, &size);
      case kFixed:
        return cursor->take(fixed_size, &bytes, &size);
      case kEnum:
        return cursor->number(&number) && number >= 0 && static_cast<uint64_t>(number) < symbols.size();
      default:
        return cursor->number(&number);
    }
  }

  // As a number that was a Python float on its way has it: no NaN of it signals.
  static uint32_t quiet(uint32_t bits) {
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? bits | 0x00400000 : bits;
  }

  // Rows come in order: the bits behind one are not set yet.
  void put_bit(size_t row, uint8_t bit) {
    uint8_t* const byte = values_.data() + (row >> 3);
    *byte = static_cast<uint8_t>(((row & 7) == 0 ? 0 : *byte) | bit << (row & 7));
  }

  bool put_text(size_t row, const uint8_t* bytes, size_t size) {
    if (size > text_.size() - num_text_bytes_) {
      if (size > kMaxTextBytes - num_text_bytes_) throw TooMuchText();
      grow(&text_, std::min(2 * (num_text_bytes_ + size), kMaxTextBytes), num_text_bytes_);
    }
    if (size > 0) copy_bytes(text_.data() + num_text_bytes_, bytes, size);
    num_text_bytes_ += size;
    end_text(row);
    return true;
  }

  void end_text(size_t row) { values_.as<int32_t>()[row + 1] = static_cast<int32_t>(num_text_bytes_); }

  Block values_, text_, validity_;
  size_t num_text_bytes_ = 0, capacity_ = 0;
  bool has_nulls_ = false;
};

struct Progress {
  bool is_whole = true;  // Whether all rows were decoded that were looked at.
  size_t num_rows = 0;
  // Where it stopped: a piece, the rows done of it, and the bytes they took.
  size_t piece = 0;
  int64_t row = 0;
  int64_t position = 0;
};

// Decodes rows until they take `stop_bytes`, or all.
Progress decode_rows(const std::vector<Piece>& pieces, int64_t stop_bytes, std::vector<Field>* fields) {
  Progress progress;
  size_t capacity = kFirstRows;
  int64_t num_bytes = 0;
  for (Field& field : *fields) field.reserve(capacity, 0);
  for (; progress.piece < pieces.size(); ++progress.piece) {
    const Piece& piece = pieces[progress.piece];
    Cursor cursor = {piece.begin, piece.end};
    for (progress.row = 0; progress.row < piece.num_rows; ++progress.num_rows) {
      if (progress.num_rows == capacity) {
        capacity *= 2;
        for (Field& field : *fields) field.reserve(capacity, progress.num_rows);
      }
      for (Field& field : *fields) {
        if (field.read(&cursor, progress.num_rows)) continue;
        progress.is_whole = false;
        return progress;
      }
      ++progress.row;
      progress.position = cursor.p - piece.begin;
      if (num_bytes + progress.position < stop_bytes) continue;
      ++progress.num_rows;
      return progress;
    }
    if (cursor.p != cursor.end) {
      progress.is_whole = false;
      return progress;
    }
    num_bytes += piece.end - piece.begin;
    progress.row = progress.position = 0;
  }
  return progress;
}

bool read_symbols(PyObject* list, std::vector<std::string>* symbols) {
  if (!PyList_Check(list)) {
    PyErr_SetString(PyExc_TypeError, "the symbols of an enum are a list of bytes");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    char* text;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(PyList_GetItem(list, i), &text, &size) != 0) return false;
    symbols->emplace_back(text, static_cast<size_t>(size));
  }
  return true;
}

bool read_field(PyObject* item, Field* field) {
  int kind, null_branch, is_wanted;
  PyObject* extra;
  if (!PyTuple_Check(item)) {
    PyErr_SetString(PyExc_TypeError, "a field is (kind, null branch, whether it is wanted, size or symbols)");
    return false;
  }
  if (!PyArg_ParseTuple(item, "iipO:field", &kind, &null_branch, &is_wanted, &extra)) return false;
  field->kind = static_cast<FieldKind>(kind);
  field->null_branch = null_branch;
  field->is_wanted = is_wanted != 0;
  if (kind < kNull || kind >= kNumKinds || null_branch < -1 || null_branch > 1 || (is_wanted && kind == kNull)) {
    PyErr_SetString(PyExc_ValueError, "a field has an unknown kind, or no such branch");
    return false;
  }
  if (kind == kEnum) return read_symbols(extra, &field->symbols);
  if (kind != kFixed) return true;
  const long long size = PyLong_AsLongLong(extra);
  if (size == -1 && PyErr_Occurred()) return false;
  if (size < 0) PyErr_SetString(PyExc_ValueError, "a field has a negative size");
  field->fixed_size = static_cast<uint64_t>(size);
  return size >= 0;
}

bool read_fields(PyObject* list, std::vector<Field>* fields) {
  const Py_ssize_t count = PyList_Check(list) ? PyList_Size(list) : -1;
  if (count < 0 || static_cast<size_t>(count) > kMaxFields) {
    PyErr_SetString(PyExc_TypeError, "fields are a list, not too long");
    return false;
  }
  fields->resize(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!read_field(PyList_GetItem(list, i), &(*fields)[static_cast<size_t>(i)])) return false;
  return true;
}

bool open_pieces(PyObject* list, std::vector<std::unique_ptr<View>>* views, std::vector<Piece>* pieces) {
  if (!PyList_Check(list)) {
    PyErr_SetString(PyExc_TypeError, "pieces are a list of (data, start, number of rows)");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    PyObject* item = PyList_GetItem(list, i);
    PyObject* data;
    long long start, num_rows;
    if (!PyTuple_Check(item)) {
      PyErr_SetString(PyExc_TypeError, "a piece is (data, start, number of rows)");
      return false;
    }
    if (!PyArg_ParseTuple(item, "OLL:piece", &data, &start, &num_rows)) return false;
    views->emplace_back(new View);
    if (!views->back()->open(data)) return false;
    const View& view = *views->back();
    // A row of no bytes has no columns that are worth decoding, and there could be any number of them.
    if (start < 0 || static_cast<uint64_t>(start) > view.size() || num_rows < 0 ||
        static_cast<uint64_t>(num_rows) > view.size()) {
      PyErr_SetString(PyExc_ValueError, "a piece starts behind its end, or has more rows than bytes");
      return false;
    }
    pieces->push_back({view.data() + start, view.data() + view.size(), num_rows});
  }
  return true;
}

PyObject* columns_of(std::vector<Field>* fields) {
  PyObject* columns = PyList_New(0);
  if (columns == nullptr) return nullptr;
  for (Field& field : *fields) {
    if (!field.is_wanted) continue;
    PyObject* column = field.release();
    const bool is_added = column != nullptr && PyList_Append(columns, column) == 0;
    Py_XDECREF(column);
    if (!is_added) {
      Py_DECREF(columns);
      return nullptr;
    }
  }
  return columns;
}

PyObject* to_python(const Progress& progress, std::vector<Field>* fields) {
  PyObject* columns = progress.is_whole ? columns_of(fields) : Py_NewRef(Py_None);
  if (columns == nullptr) return nullptr;
  return Py_BuildValue("(NLnLL)", columns, static_cast<long long>(progress.num_rows),
                       static_cast<Py_ssize_t>(progress.piece), static_cast<long long>(progress.row),
                       static_cast<long long>(progress.position));
}

}  // namespace

PyObject* decode_avro(PyObject*, PyObject* args) {
  PyObject *pieces_object, *fields_object;
  long long stop_bytes;
  if (!PyArg_ParseTuple(args, "OOL:decode_avro", &pieces_object, &fields_object, &stop_bytes)) return nullptr;
  try {
    std::vector<Field> fields;
    std::vector<std::unique_ptr<View>> views;
    std::vector<Piece> pieces;
    if (!read_fields(fields_object, &fields) || !open_pieces(pieces_object, &views, &pieces)) return nullptr;
    Progress progress;
    bool is_out_of_memory = false;
    Py_BEGIN_ALLOW_THREADS;
    try {
      progress = decode_rows(pieces, stop_bytes, &fields);
      if (progress.is_whole)
        for (Field& field : fields) field.finish(progress.num_rows);
    } catch (const TooMuchText&) {
      progress.is_whole = false;
    } catch (const std::bad_alloc&) {
      is_out_of_memory = true;
    }
    Py_END_ALLOW_THREADS;
    if (is_out_of_memory) return PyErr_NoMemory();
    return to_python(progress, &fields);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace shardkit
