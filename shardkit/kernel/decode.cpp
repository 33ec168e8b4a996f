// Framed tf.train.Example records to column buffers: lists are found record by record, decoded column by column.

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "buffer.h"
#include "fill.h"
#include "python.h"
#include "rows.h"

namespace shardkit {
namespace {

struct Request {
  bool refuses_others = false;
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
  if (kind < kBytes || kind > kFloat64 || num_values < -1 || num_values > INT32_MAX) {
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

struct Decoded {
  std::vector<Filled> columns;
  std::vector<int64_t> problems;
};

class Decoder {
 public:
  Decoder(const Request& request, Span frames, size_t count)
      : request_(request),
        names_(request.names),
        records_({count, frames}),
        slots_(names_.size()),
        columns_(request.specs.size()),
        is_bad_(count, 0) {
    std::vector<int> num_uses(names_.size(), 0);
    for (const ColumnSpec& spec : request.specs) ++num_uses[spec.slot];
    for (size_t i = 0; i < request.specs.size(); ++i) {
      const ColumnSpec& spec = request.specs[i];
      is_direct_.push_back(spec.is_single_number() && num_uses[spec.slot] == 1);
      is_direct_[i] ? add_numbers(i) : add_cells(spec.slot);
    }
  }

  Decoded decode(const int64_t* starts, const int64_t* lengths) {
    parse(starts, lengths);
    // A record with a problem in one column is empty in all: where one was found, the columns are filled again.
    for (std::vector<uint8_t> before; !is_filled_ || before != is_bad_; is_filled_ = true) {
      before = is_bad_;
      for (size_t i = 0; i < columns_.size(); ++i)
        if (!is_direct_[i])
          columns_[i] = fill_column(request_.specs[i], records_, slots_[request_.specs[i].slot].cells, &is_bad_);
    }
    Decoded decoded;
    for (size_t record = 0; record < records_.count; ++record) {
      if (!is_bad_[record]) continue;
      decoded.problems.push_back(static_cast<int64_t>(record));
      for (size_t i = 0; i < columns_.size(); ++i)
        if (is_direct_[i]) clear_number(i, record);
    }
    decoded.columns = std::move(columns_);
    return decoded;
  }

 private:
  void add_numbers(size_t i) {
    const ColumnSpec& spec = request_.specs[i];
    Filled& column = columns_[i];
    column.validity = Validity(records_.count);
    column.buffers.emplace_back(records_.count * spec.value_size());
    slots_[spec.slot].mode = spec.kind == kFloat ? Slot::kFloat : Slot::kInt64;
    slots_[spec.slot].numbers = column.buffers[0].data();
    column_of_slot_.resize(names_.size(), 0);
    column_of_slot_[spec.slot] = i;
  }

  void add_cells(size_t slot) {
    if (slots_[slot].cells != nullptr) return;
    // Not a multiple of 4 KiB apart: all columns of a record would share one set of the cache.
    cells_.emplace_back((records_.count + 1) * sizeof(Cell));
    slots_[slot].cells = cells_.back().as<Cell>();
  }

  void parse(const int64_t* starts, const int64_t* lengths) {
    RecordParser parser(names_, {records_.safe.end, request_.refuses_others}, slots_, &arena_);
    for (size_t record = 0; record < records_.count; ++record) {
      const uint8_t* const begin = records_.safe.begin + starts[record];
      const Parsed parsed = parser.parse({begin, begin + lengths[record]}, record);
      is_bad_[record] = parsed == Parsed::kDamaged;
      if (parsed == Parsed::kMixed) take_states(parser.states(), record);
    }
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
  const Records records_;
  std::vector<Slot> slots_;
  std::vector<size_t> column_of_slot_;
  std::vector<Block> cells_;
  std::vector<Filled> columns_;
  std::vector<uint8_t> is_direct_;
  std::vector<uint8_t> is_bad_;
  Arena arena_;
  bool is_filled_ = false;
};

PyObject* to_tuple(Filled* filled) {
  const auto count = static_cast<Py_ssize_t>(filled->buffers.size());
  PyObject* tuple = PyTuple_New(count + 1);
  if (tuple == nullptr) return nullptr;
  PyObject* validity = filled->validity.has_nulls() ? filled->validity.bits().release() : Py_NewRef(Py_None);
  bool is_whole = validity != nullptr && PyTuple_SetItem(tuple, 0, validity) == 0;
  for (Py_ssize_t i = 0; is_whole && i < count; ++i) {
    PyObject* buffer = filled->buffers[static_cast<size_t>(i)].release();
    is_whole = buffer != nullptr && PyTuple_SetItem(tuple, i + 1, buffer) == 0;
  }
  if (is_whole) return tuple;
  Py_DECREF(tuple);
  return nullptr;
}

PyObject* to_python(Decoded* decoded) {
  PyObject* columns = PyList_New(0);
  if (columns == nullptr) return nullptr;
  for (Filled& filled : decoded->columns) {
    PyObject* tuple = to_tuple(&filled);
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

bool check_records(const int64_t* starts, const int64_t* lengths, size_t count, size_t num_bytes) {
  const auto end = static_cast<int64_t>(num_bytes);
  for (size_t i = 0; i < count; ++i)
    if (starts[i] < 0 || lengths[i] < 0 || starts[i] > end || lengths[i] > end - starts[i]) return false;
  return true;
}

}  // namespace

PyObject* decode(PyObject*, PyObject* args) {
  PyObject *frames_object, *starts_object, *lengths_object, *specs_object;
  int refuses_others = 0;
  if (!PyArg_ParseTuple(args, "OOOO|p:decode", &frames_object, &starts_object, &lengths_object, &specs_object,
                        &refuses_others))
    return nullptr;
  View frames, starts_view, lengths_view;
  if (!frames.open(frames_object) || !starts_view.open(starts_object) || !lengths_view.open(lengths_object))
    return nullptr;
  size_t count, num_lengths;
  const int64_t* starts = starts_view.int64s(&count);
  if (starts == nullptr) return nullptr;
  const int64_t* lengths = lengths_view.int64s(&num_lengths);
  if (lengths == nullptr) return nullptr;
  if (count != num_lengths || !check_records(starts, lengths, count, frames.size())) {
    PyErr_SetString(PyExc_ValueError, "a record lies outside of the frames");
    return nullptr;
  }
  enum { kDone, kNoMemory, kTooLarge } outcome = kDone;
  try {
    Request request;
    if (!read_request(specs_object, &request)) return nullptr;
    request.refuses_others = refuses_others != 0;
    Decoded decoded;
    Py_BEGIN_ALLOW_THREADS;
    try {
      decoded = Decoder(request, {frames.data(), frames.data() + frames.size()}, count).decode(starts, lengths);
    } catch (const TooLarge&) {
      outcome = kTooLarge;
    } catch (const std::bad_alloc&) {
      outcome = kNoMemory;
    }
    Py_END_ALLOW_THREADS;
    if (outcome == kDone) return to_python(&decoded);
  } catch (const std::bad_alloc&) {
    outcome = kNoMemory;
  }
  if (outcome == kNoMemory) return PyErr_NoMemory();
  PyErr_SetString(PyExc_OverflowError, "a column is larger than 2 GiB or has more than 2**31 values");
  return nullptr;
}

}  // namespace shardkit
