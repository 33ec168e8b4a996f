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

Decoded decode_records(const Request& request, Span frames, const int64_t* starts, const int64_t* lengths, size_t count) {
  const Names names(request.names);
  const ParseOptions options = {frames.end, request.refuses_others};
  CellTable cells(names.size(), count);
  std::vector<uint8_t> is_bad(count, 0);
  Arena arena;
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* const begin = frames.begin + starts[i];
    if (!parse_record(names, options, {begin, begin + lengths[i]}, &arena, i, &cells)) is_bad[i] = 1;
  }
  const Records records = {cells, count, frames};
  Decoded decoded;
  // A record with a problem in one column is empty in all: where one was found, the columns are filled again.
  for (std::vector<uint8_t> before; before != is_bad || decoded.columns.size() != request.specs.size();) {
    before = is_bad;
    decoded.columns.clear();
    for (const ColumnSpec& spec : request.specs) decoded.columns.push_back(fill_column(spec, records, &is_bad));
  }
  for (size_t i = 0; i < count; ++i)
    if (is_bad[i]) decoded.problems.push_back(static_cast<int64_t>(i));
  return decoded;
}

PyObject* to_tuple(Filled* filled) {
  const auto count = static_cast<Py_ssize_t>(filled->buffers.size());
  PyObject* tuple = PyTuple_New(count + 1);
  if (tuple == nullptr) return nullptr;
  PyObject* validity = filled->has_nulls ? filled->validity.release() : Py_NewRef(Py_None);
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
      decoded = decode_records(request, {frames.data(), frames.data() + frames.size()}, starts, lengths, count);
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
