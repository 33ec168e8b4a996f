// Framed tf.train.Example records to column buffers: lists are found record by record, decoded column by column.

#include <algorithm>
#include <deque>
#include <new>
#include <string>
#include <vector>

#include "../buffer.h"
#include "fill.h"
#include "../python.h"
#include "rows.h"

namespace shardkit {
namespace {

struct Request {
  bool refuses_others = false;
  std::vector<uint8_t> gives_objects;  // For each spec, whether large bytes values may become Python objects.
  std::vector<std::string> names;  // Each once, in byte order.
  std::vector<ColumnSpec> specs;
};

bool read_long(PyObject* tuple, Py_ssize_t index, long long* value) {
  PyObject* item = PyTuple_GetItem(tuple, index);
  if (item == nullptr) return false;
  *value = PyLong_AsLongLong(item);
  return !(*value == -1 && PyErr_Occurred());
}

bool read_spec(PyObject* item, std::string* name, ColumnSpec* spec) {
  if (!PyTuple_Check(item) || PyTuple_Size(item) != 4) {
    PyErr_SetString(PyExc_TypeError, "a spec is (name, kind, num_values, required)");
    return false;
  }
  char* text;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(PyTuple_GetItem(item, 0), &text, &size) != 0) return false;
  name->assign(text, static_cast<size_t>(size));
  long long kind, num_values;
  if (!read_long(item, 1, &kind) || !read_long(item, 2, &num_values)) return false;
  const int is_required = PyObject_IsTrue(PyTuple_GetItem(item, 3));
  if (is_required < 0) return false;
  if (kind < kBytes || kind > kUint8 || num_values < -1 || num_values > INT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "a spec has an unknown kind or number of values");
    return false;
  }
  *spec = {0, static_cast<SpecKind>(kind), num_values, is_required != 0};
  return true;
}

bool read_request(PyObject* specs, Request* request) {
  if (!PyList_Check(specs)) {
    PyErr_SetString(PyExc_TypeError, "specs are a list");
    return false;
  }
  const Py_ssize_t count = PyList_Size(specs);
  std::vector<std::string> names(static_cast<size_t>(count));
  request->specs.resize(names.size());
  request->gives_objects.assign(names.size(), 0);
  for (size_t i = 0; i < names.size(); ++i)
    if (!read_spec(PyList_GetItem(specs, static_cast<Py_ssize_t>(i)), &names[i], &request->specs[i])) return false;
  request->names = names;
  std::sort(request->names.begin(), request->names.end());
  request->names.erase(std::unique(request->names.begin(), request->names.end()), request->names.end());
  for (size_t i = 0; i < names.size(); ++i) {
    const auto at = std::lower_bound(request->names.begin(), request->names.end(), names[i]);
    request->specs[i].slot = static_cast<size_t>(at - request->names.begin());
  }
  return true;
}

bool read_flags(PyObject* items, std::vector<uint8_t>* flags) {
  if (!PyList_Check(items) || PyList_Size(items) != static_cast<Py_ssize_t>(flags->size())) {
    PyErr_SetString(PyExc_TypeError, "expected a list with a bool for each spec");
    return false;
  }
  for (size_t i = 0; i < flags->size(); ++i)
    (*flags)[i] = PyObject_IsTrue(PyList_GetItem(items, static_cast<Py_ssize_t>(i))) == 1;
  return true;
}

// Where a record lies, and the end of the bytes that may be read there.
struct Place {
  Span bytes;
  const uint8_t* safe_end;
};

struct Decoded {
  std::vector<Filled> columns;
  std::vector<int64_t> problems;
  Arena arena;  // Some spans of columns lie in it.
};

class Decoder {
 public:
  Decoder(const Request& request, size_t num_records)
      : request_(request),
        names_(request.names),
        num_records_(num_records),
        slots_(names_.size()),
        columns_(request.specs.size()),
        is_bad_(num_records, 0) {
    std::vector<int> num_uses(names_.size(), 0);
    for (const ColumnSpec& spec : request.specs) ++num_uses[spec.slot];
    for (size_t i = 0; i < request.specs.size(); ++i) {
      const ColumnSpec& spec = request.specs[i];
      is_direct_.push_back(spec.is_single_number() && num_uses[spec.slot] == 1);
      is_direct_[i] ? add_numbers(i) : add_cells(spec.slot);
    }
  }

  Decoded decode(const Place* places) {
    parse(places);
    // A record with a problem in one column is empty in all: where one was found, the columns are filled again.
    for (std::vector<uint8_t> before; !is_filled_ || before != is_bad_; is_filled_ = true) {
      before = is_bad_;
      for (size_t i = 0; i < columns_.size(); ++i)
        if (!is_direct_[i])
          columns_[i] = fill_column(request_.specs[i], num_records_, slots_[request_.specs[i].slot].cells, &is_bad_,
                                    request_.gives_objects[i] != 0);
    }
    Decoded decoded;
    for (size_t record = 0; record < num_records_; ++record) {
      if (!is_bad_[record]) continue;
      decoded.problems.push_back(static_cast<int64_t>(record));
      for (size_t i = 0; i < columns_.size(); ++i)
        if (is_direct_[i]) clear_number(i, record);
    }
    decoded.columns = std::move(columns_);
    decoded.arena = std::move(arena_);
    return decoded;
  }

 private:
  void add_numbers(size_t i) {
    const ColumnSpec& spec = request_.specs[i];
    Filled& column = columns_[i];
    column.validity = Validity(num_records_);
    column.buffers.emplace_back(num_records_ * spec.value_size());
    slots_[spec.slot].mode = spec.kind == kFloat ? Slot::kFloat : Slot::kInt64;
    slots_[spec.slot].numbers = column.buffers[0].data();
    column_of_slot_.resize(names_.size(), 0);
    column_of_slot_[spec.slot] = i;
  }

  void add_cells(size_t slot) {
    if (slots_[slot].cells != nullptr) return;
    // Not a multiple of 4 KiB apart: all columns of a record would share one set of the cache.
    cells_.emplace_back((num_records_ + 1) * sizeof(Cell));
    slots_[slot].cells = cells_.back().as<Cell>();
  }

  void parse(const Place* places) {
    RecordParser parser(names_, request_.refuses_others, slots_, &arena_);
    for (size_t record = 0; record < num_records_; ++record) {
      if (record + kAhead < num_records_) ask_for(places[record + kAhead].bytes);
      const Parsed parsed = parser.parse(places[record].bytes, places[record].safe_end, record);
      is_bad_[record] = parsed == Parsed::kDamaged;
      if (parsed == Parsed::kMixed) take_states(parser.states(), record);
    }
  }

  // Records lie anywhere in tens of megabytes: they are asked for before they are needed.
  static void ask_for(Span bytes) {
    const size_t size = std::min(bytes.size(), kAskedBytes);
    for (size_t i = 0; i < size; i += 64) __builtin_prefetch(bytes.begin + i);
  }

  // Only single numbers are judged here; cells are when they are decoded.
  void take_states(const std::vector<uint8_t>& states, size_t record) {
    for (size_t slot = 0; slot < states.size(); ++slot) {
      if (slots_[slot].mode == Slot::kCells || states[slot] == kFound) continue;
      const size_t i = column_of_slot_[slot];
      if (states[slot] == kUnfit || request_.specs[i].is_required)
        is_bad_[record] = 1;
      else
        columns_[i].validity.set_null(record);
    }
  }

  void clear_number(size_t i, size_t record) {
    const size_t width = request_.specs[i].value_size();
    std::memset(columns_[i].buffers[0].data() + width * record, 0, width);
    columns_[i].validity.set_null(record);
  }

  const Request& request_;
  const Names names_;
  const size_t num_records_;
  std::vector<Slot> slots_;
  std::vector<size_t> column_of_slot_;
  std::vector<Block> cells_;
  std::vector<Filled> columns_;
  std::vector<uint8_t> is_direct_;
  std::vector<uint8_t> is_bad_;
  Arena arena_;
  bool is_filled_ = false;

  static constexpr size_t kAhead = 4;
  static constexpr size_t kAskedBytes = 1024;
};

// How a validity is given: as an Arrow bitmap, or as a byte of 0 or 1 a record.
enum class ValidityForm { kBits, kBytes };

PyObject* release_validity(Validity* validity, ValidityForm form) {
  if (!validity->has_nulls()) return Py_NewRef(Py_None);
  return form == ValidityForm::kBits ? validity->bits().release() : validity->bytes().release();
}

// A list of bytes objects. The bytes are copied while other threads run.
PyObject* to_list(const std::vector<Span>& spans) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(spans.size()));
  if (list == nullptr) return nullptr;
  std::vector<char*> copies(spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    PyObject* const object = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(spans[i].size()));
    if (object == nullptr || PyList_SetItem(list, static_cast<Py_ssize_t>(i), object) != 0) {
      Py_DECREF(list);
      return nullptr;
    }
    copies[i] = PyBytes_AsString(object);
  }
  Py_BEGIN_ALLOW_THREADS;
  for (size_t i = 0; i < spans.size(); ++i)
    if (!spans[i].is_empty()) std::memcpy(copies[i], spans[i].begin, spans[i].size());
  Py_END_ALLOW_THREADS;
  return list;
}

PyObject* to_tuple(Filled* filled, ValidityForm form) {
  if (filled->has_spans) {
    PyObject* const list = to_list(filled->spans);
    return list == nullptr ? nullptr : Py_BuildValue("(NN)", release_validity(&filled->validity, form), list);
  }
  const auto count = static_cast<Py_ssize_t>(filled->buffers.size());
  PyObject* tuple = PyTuple_New(count + 1);
  if (tuple == nullptr) return nullptr;
  PyObject* validity = release_validity(&filled->validity, form);
  bool is_whole = validity != nullptr && PyTuple_SetItem(tuple, 0, validity) == 0;
  for (Py_ssize_t i = 0; is_whole && i < count; ++i) {
    PyObject* buffer = filled->buffers[static_cast<size_t>(i)].release();
    is_whole = buffer != nullptr && PyTuple_SetItem(tuple, i + 1, buffer) == 0;
  }
  if (is_whole) return tuple;
  Py_DECREF(tuple);
  return nullptr;
}

PyObject* to_python(Decoded* decoded, ValidityForm form) {
  PyObject* columns = PyList_New(0);
  if (columns == nullptr) return nullptr;
  for (Filled& filled : decoded->columns) {
    PyObject* tuple = to_tuple(&filled, form);
    const bool is_added = tuple != nullptr && PyList_Append(columns, tuple) == 0;
    Py_XDECREF(tuple);
    if (!is_added) {
      Py_DECREF(columns);
      return nullptr;
    }
  }
  Block problems(8 * decoded->problems.size());
  if (!decoded->problems.empty()) std::memcpy(problems.data(), decoded->problems.data(), problems.size());
  return Py_BuildValue("(NN)", columns, problems.release());
}

// Records of one buffer or of several, and the objects that keep them.
class Places {
 public:
  // Adds the records of `frames` with the starts and lengths from `first` on, before `stop` or all if that is negative;
  // false with a Python error set if one lies outside.
  bool add(PyObject* frames_object, PyObject* starts_object, PyObject* lengths_object, Py_ssize_t first,
           Py_ssize_t stop) {
    View* const frames = open(frames_object);
    View* const starts_view = frames == nullptr ? nullptr : open(starts_object);
    View* const lengths_view = starts_view == nullptr ? nullptr : open(lengths_object);
    if (lengths_view == nullptr) return false;
    size_t count, num_lengths;
    const int64_t* const starts = starts_view->int64s(&count);
    if (starts == nullptr) return false;
    const int64_t* const lengths = lengths_view->int64s(&num_lengths);
    if (lengths == nullptr) return false;
    if (stop < 0) stop = static_cast<Py_ssize_t>(count);
    const bool are_there =
        count == num_lengths && first >= 0 && first <= stop && stop <= static_cast<Py_ssize_t>(count);
    if (are_there && add_records(*frames, starts + first, lengths + first, static_cast<size_t>(stop - first)))
      return true;
    PyErr_SetString(PyExc_ValueError, "a record lies outside of the frames");
    return false;
  }

  const Place* data() const { return places_.data(); }
  size_t size() const { return places_.size(); }

 private:
  View* open(PyObject* object) {
    views_.emplace_back();
    return views_.back().open(object) ? &views_.back() : nullptr;
  }

  bool add_records(const View& frames, const int64_t* starts, const int64_t* lengths, size_t count) {
    const auto size = static_cast<int64_t>(frames.size());
    const uint8_t* const safe_end = frames.data() + size;
    for (size_t i = 0; i < count; ++i) {
      if (starts[i] < 0 || lengths[i] < 0 || starts[i] > size || lengths[i] > size - starts[i]) return false;
      const uint8_t* const begin = frames.data() + starts[i];
      places_.push_back({{begin, begin + lengths[i]}, safe_end});
    }
    return true;
  }

  std::deque<View> views_;
  std::vector<Place> places_;
};

bool add_pieces(PyObject* pieces, Places* places) {
  if (!PyList_Check(pieces)) {
    PyErr_SetString(PyExc_TypeError, "pieces are a list");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyList_Size(pieces); ++i) {
    PyObject* const piece = PyList_GetItem(pieces, i);
    PyObject* const records = PyTuple_Check(piece) && PyTuple_Size(piece) == 3 ? PyTuple_GetItem(piece, 0) : nullptr;
    if (records == nullptr || !PyTuple_Check(records) || PyTuple_Size(records) < 3) {
      PyErr_SetString(PyExc_TypeError, "a piece is ((frames, starts, lengths, ...), first, stop)");
      return false;
    }
    long long first, stop;
    if (!read_long(piece, 1, &first) || !read_long(piece, 2, &stop)) return false;
    if (stop < 0) {
      PyErr_SetString(PyExc_ValueError, "a record lies outside of the frames");
      return false;
    }
    if (!places->add(PyTuple_GetItem(records, 0), PyTuple_GetItem(records, 1), PyTuple_GetItem(records, 2),
                     static_cast<Py_ssize_t>(first), static_cast<Py_ssize_t>(stop)))
      return false;
  }
  return true;
}

PyObject* decode_places(const Places& places, const Request& request, ValidityForm form) {
  enum { kDone, kNoMemory, kTooLarge } outcome = kDone;
  Decoded decoded;
  Py_BEGIN_ALLOW_THREADS;
  try {
    decoded = Decoder(request, places.size()).decode(places.data());
  } catch (const TooLarge&) {
    outcome = kTooLarge;
  } catch (const std::bad_alloc&) {
    outcome = kNoMemory;
  }
  Py_END_ALLOW_THREADS;
  if (outcome == kDone) return to_python(&decoded, form);
  if (outcome == kNoMemory) return PyErr_NoMemory();
  PyErr_SetString(PyExc_OverflowError, "a column is larger than 2 GiB or has more than 2**31 values");
  return nullptr;
}

}  // namespace

PyObject* decode(PyObject*, PyObject* args) {
  PyObject *frames, *starts, *lengths, *specs;
  int refuses_others = 0;
  if (!PyArg_ParseTuple(args, "OOOO|p:decode", &frames, &starts, &lengths, &specs, &refuses_others)) return nullptr;
  try {
    Places places;
    if (!places.add(frames, starts, lengths, 0, -1)) return nullptr;
    Request request;
    if (!read_request(specs, &request)) return nullptr;
    request.refuses_others = refuses_others != 0;
    return decode_places(places, request, ValidityForm::kBits);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* decode_pieces(PyObject*, PyObject* args) {
  PyObject *pieces, *specs, *gives_objects;
  if (!PyArg_ParseTuple(args, "OOO:decode_pieces", &pieces, &specs, &gives_objects)) return nullptr;
  try {
    Places places;
    if (!add_pieces(pieces, &places)) return nullptr;
    Request request;
    if (!read_request(specs, &request) || !read_flags(gives_objects, &request.gives_objects)) return nullptr;
    return decode_places(places, request, ValidityForm::kBytes);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace shardkit
