// The compiled codec: Arrow columns to framed tf.train.Example records and back. The readable definition of the same is
// in shardkit/encoding/kernel_reference.py and shardkit/encoding/example.py.

#include "buffer.h"
#include "python.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernel stores numbers as they lie in memory; the reference in Python serves big-endian machines"
#endif

namespace {

PyMethodDef methods[] = {
    {"encode", shardkit::encode, METH_VARARGS,
     "encode(schema_capsule, array_capsule) -> (framed records, int64 size of each)"},
    {"scan", shardkit::scan, METH_VARARGS,
     "scan(frames) -> (int64 starts, int64 lengths, uint8 states, first byte that was not followed)"},
    {"decode", shardkit::decode, METH_VARARGS,
     "decode(frames, starts, lengths, specs, refuse_others=False) -> (columns, int64 records with problems)"},
    {"decode_pieces", shardkit::decode_pieces, METH_VARARGS,
     "decode_pieces([((frames, starts, lengths, ...), first, stop)], specs, gives_objects) -> (columns, int64 records with problems)"},
    {"put_objects", shardkit::put_objects, METH_VARARGS,
     "put_objects(array of objects, int32 offsets, data, is_text): each slice becomes str or bytes"},
    {"crc32c", shardkit::crc32c, METH_VARARGS, "crc32c(data, start=0) -> CRC32C of data, continued from start"},
    {"read_at", shardkit::read_at, METH_VARARGS,
     "read_at(descriptor, start, num_bytes, tail) -> (bytes of a file and the tail, CRC32C of the bytes)"},
    {"gather", shardkit::gather, METH_VARARGS, "gather(buffer or list of buffers, starts, sizes) -> pieces one after the other"},
    {"permutation", shardkit::permutation, METH_VARARGS, "permutation(count, key) -> int64 positions in a shuffled order"},
    {"count_keys", shardkit::count_keys, METH_VARARGS,
     "count_keys(slots, kind, max_keys, dropped, num_keys, values, is_float32, source, counts) -> (dropped, num_keys)"},
    {"hash_slices", shardkit::hash_slices, METH_VARARGS,
     "hash_slices(int32 offsets or None, data) -> uint64 hash of each slice, or of each 8 bytes"},
    {"count_slices", shardkit::count_slices, METH_VARARGS,
     "count_slices(int32 offsets, data) -> (int64 position of each distinct slice, int64 counts)"},
    {nullptr, nullptr, 0, nullptr},
};

int run(PyObject* module) { return shardkit::add_buffer_type(module) ? 0 : -1; }

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(run)},
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernel", "The compiled codec.", 0, methods, slots, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
