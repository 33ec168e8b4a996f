#include "../python.h"

#include "columns.h"

#include <cstdlib>
#include <cstring>

#include "../wire.h"

namespace shardkit {
namespace {

bool read_values(const ArrowSchema* schema, const ArrowArray* array, Column* c) {
  const char* format = schema->dictionary == nullptr ? schema->format : "dictionary";
  c->value_offset = array->offset;
  c->values = array->buffers[1];
  if (std::strcmp(format, "l") == 0) {
    c->kind = Kind::kInt64;
  } else if (std::strcmp(format, "f") == 0) {
    c->kind = Kind::kFloat;
  } else if (std::strcmp(format, "z") == 0) {
    c->kind = Kind::kBytes;
    c->byte_offsets = static_cast<const int32_t*>(array->buffers[1]);
    c->values = array->buffers[2];
  } else if (std::strncmp(format, "w:", 2) == 0) {
    c->kind = Kind::kFixedBytes;
    c->width = std::strtoll(format + 2, nullptr, 10);
  } else {
    PyErr_SetString(PyExc_ValueError, "the kernel takes int64, float32, binary and fixed-size binary, and their lists");
    return false;
  }
  return true;
}

bool read_column(const ArrowSchema* schema, const ArrowArray* array, Column* c) {
  const size_t name_size = std::strlen(schema->name);
  uint8_t head[12];
  head[0] = 0x0A;
  uint8_t* end = put_varint(head + 1, name_size);
  c->key.assign(reinterpret_cast<char*>(head), static_cast<size_t>(end - head));
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

}  // namespace

bool read_columns(const ArrowSchema* schema, const ArrowArray* array, std::vector<Column>* columns) {
  if (std::strcmp(schema->format, "+s") != 0 || array->offset != 0 || array->null_count > 0) {
    PyErr_SetString(PyExc_ValueError, "the kernel takes a record batch");
    return false;
  }
  columns->resize(static_cast<size_t>(schema->n_children));
  for (size_t i = 0; i < columns->size(); ++i)
    if (!read_column(schema->children[i], array->children[i], &(*columns)[i])) return false;
  return true;
}

}  // namespace shardkit
