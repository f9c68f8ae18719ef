// The module resilient_ps._native: kernels of kernels.h for numpy arrays, and the codec of codec.cpp.
//
// The functions check what would otherwise touch foreign memory: see arrays.h.

#include "answering.h"
#include "arrays.h"
#include "asking.h"
#include "checksum.h"
#include "codec.h"
#include "log_codec.h"
#include "parts.h"
#include "receiving.h"
#include "replicating.h"

#include <stdlib.h>
#include <string.h>

namespace resilient_ps {

const Kernels* kernels = &baseline_kernels;

namespace {

const char* instructions = "baseline";

void choose_kernels() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("popcnt")) {
        kernels = &avx2_kernels;
        instructions = "avx2";
    }
#endif
}

// push_rows(keys, grads, entries, slab, row_keys, scratch, meta, hyper, work) -> int
PyObject* push_rows(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer keys, grads, scratch;
    TableArrays arrays;
    if (!takes(nargs, 9, "push_rows") || !keys.open(args[0], "keys", UINT64_LETTERS) ||
        !arrays.open(args[2], args[3], args[6]) || !arrays.open_row_keys(args[4]) ||
        !arrays.open_hyper(args[7]) || !arrays.open_work(args[8]) ||
        !grads.open(args[1], "grads", "") || !scratch.open(args[5], "scratch", INT32_LETTERS, 1))
        return nullptr;
    const int64_t n = keys.size(), half = scratch.size() / 2;
    if (!fits(dtype_of(grads) == arrays.dtype, "grads and slab differ in their type") ||
        !fits(grads.size() == n * arrays.table.meta[DIM], "grads must be one row per key") ||
        !fits(half >= n, "scratch is too short"))
        return nullptr;
    int full;
    {
        WithoutInterpreter released(grads.bytes() >= WORTH_RELEASING_BYTES);
        int32_t* rows = scratch.as<int32_t>();
        full = kernels->push_rows[arrays.dtype](
            arrays.table, keys.as<uint64_t>(), n, grads.as<void>(), rows, rows + half);
    }
    return PyLong_FromLong(full);
}

// load_rows(keys, source, columns, entries, slab, row_keys, scratch, meta) -> int
//
// `source`: rows of the slab's type, or their bytes, which need not be aligned.
PyObject* load_rows(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer keys, source, scratch;
    TableArrays arrays;
    if (!takes(nargs, 8, "load_rows") || !keys.open(args[0], "keys", UINT64_LETTERS) ||
        !arrays.open(args[3], args[4], args[7]) || !arrays.open_row_keys(args[5]) ||
        !source.open(args[1], "source", "") || !scratch.open(args[6], "scratch", INT32_LETTERS, 1))
        return nullptr;
    const int64_t columns = PyLong_AsLongLong(args[2]);
    if (columns == -1 && PyErr_Occurred()) return nullptr;
    const int64_t n = keys.size(), half = scratch.size() / 2;
    const int64_t stride = arrays.table.meta[STRIDE], itemsize = arrays.slab.itemsize();
    if ((source.letter() != 'B' &&
         !fits(dtype_of(source) == arrays.dtype, "source and slab differ in their type")) ||
        !fits(columns > 0 && columns <= stride, "columns must be 1 to the stride") ||
        !fits(source.bytes() == n * columns * itemsize, "source must be one row per key") ||
        !fits(half >= n, "scratch is too short"))
        return nullptr;
    int full;
    {
        WithoutInterpreter released(source.bytes() >= WORTH_RELEASING_BYTES);
        int32_t* rows = scratch.as<int32_t>();
        full = kernels->load_rows(
            arrays.table, keys.as<uint64_t>(), n, source.as<char>(), columns * itemsize,
            stride * itemsize, rows, rows + half);
    }
    return PyLong_FromLong(full);
}

// pull_rows(keys, out, entries, slab, meta, hyper)
PyObject* pull_rows(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer keys, out;
    TableArrays arrays;
    if (!takes(nargs, 6, "pull_rows") || !keys.open(args[0], "keys", UINT64_LETTERS) ||
        !out.open(args[1], "out", "", 1) || !arrays.open(args[2], args[3], args[4]) ||
        !arrays.open_hyper(args[5]))
        return nullptr;
    const int64_t n = keys.size();
    if (!fits(dtype_of(out) == arrays.dtype, "out and slab differ in their type") ||
        !fits(out.size() == n * arrays.table.meta[DIM], "out must be one row per key"))
        return nullptr;
    {
        WithoutInterpreter released(out.bytes() >= WORTH_RELEASING_BYTES);
        kernels->pull_rows[arrays.dtype](arrays.table, keys.as<uint64_t>(), n, out.as<void>());
    }
    Py_RETURN_NONE;
}

bool is_index(const Buffer& entries) {
    int64_t n = entries.size() / 2;
    return fits(n > 0 && (n & (n - 1)) == 0, "entries must be a power of two");
}

// rehash(entries, larger, rows_kept)
PyObject* rehash(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer entries, larger;
    if (!takes(nargs, 3, "rehash") || !entries.open(args[0], "entries", UINT64_LETTERS) ||
        !larger.open(args[1], "larger", UINT64_LETTERS, 1) || !is_index(entries) ||
        !is_index(larger) || !fits(larger.size() >= entries.size(), "larger is smaller"))
        return nullptr;
    int64_t kept = PyLong_AsLongLong(args[2]);
    if (kept == -1 && PyErr_Occurred()) return nullptr;
    {
        WithoutInterpreter released(larger.bytes() >= WORTH_RELEASING_BYTES);
        kernels->rehash(
            entries.as<uint64_t>(), entries.size() / 2, larger.as<uint64_t>(), larger.size() / 2,
            kept);
    }
    Py_RETURN_NONE;
}

// forget_stamps(entries)
PyObject* forget_stamps(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer entries;
    if (!takes(nargs, 1, "forget_stamps") ||
        !entries.open(args[0], "entries", UINT64_LETTERS, 1))
        return nullptr;
    {
        WithoutInterpreter released(entries.bytes() >= WORTH_RELEASING_BYTES);
        kernels->forget_stamps(entries.as<uint64_t>(), entries.size() / 2);
    }
    Py_RETURN_NONE;
}

// row_numbers(keys, rows, entries)
PyObject* row_numbers(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer keys, rows, entries;
    if (!takes(nargs, 3, "row_numbers") || !keys.open(args[0], "keys", UINT64_LETTERS) ||
        !rows.open(args[1], "rows", INT32_LETTERS, 1) ||
        !entries.open(args[2], "entries", UINT64_LETTERS) || !is_index(entries) ||
        !fits(rows.size() == keys.size(), "rows must be one per key"))
        return nullptr;
    {
        WithoutInterpreter released(keys.bytes() >= WORTH_RELEASING_BYTES);
        kernels->row_numbers(
            entries.as<uint64_t>(), entries.size() / 2, keys.as<uint64_t>(), keys.size(),
            rows.as<int32_t>());
    }
    Py_RETURN_NONE;
}

// survey_rows(entries, first, last, stamp, touched)
PyObject* survey_rows(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer entries, touched;
    if (!takes(nargs, 5, "survey_rows") || !entries.open(args[0], "entries", UINT64_LETTERS) ||
        !touched.open(args[4], "touched", "?", 1))
        return nullptr;
    const int64_t first = PyLong_AsLongLong(args[1]), last = PyLong_AsLongLong(args[2]);
    const int64_t stamp = PyLong_AsLongLong(args[3]);
    if ((first == -1 || last == -1 || stamp == -1) && PyErr_Occurred()) return nullptr;
    if (!fits(stamp > 0, "a stamp is more than 0") ||
        !fits(0 <= first && first <= last && last <= entries.size() / 2, "no such entries"))
        return nullptr;
    {
        WithoutInterpreter released(16 * (last - first) >= WORTH_RELEASING_BYTES);
        kernels->survey_rows(
            entries.as<uint64_t>() + 2 * first, last - first, (uint64_t)stamp,
            touched.as<uint8_t>(), touched.size());
    }
    Py_RETURN_NONE;
}

// claim_rows(keys, rows, states, first, last, entries) -> int
PyObject* claim_rows(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer keys, rows, states, entries;
    if (!takes(nargs, 6, "claim_rows") || !keys.open(args[0], "keys", UINT64_LETTERS) ||
        !rows.open(args[1], "rows", UINT32_LETTERS, 1) || !states.open(args[2], "states", "B", 1) ||
        !entries.open(args[5], "entries", UINT64_LETTERS) || !is_index(entries) ||
        !fits(rows.size() == keys.size(), "rows must be one per key"))
        return nullptr;
    const int64_t first = PyLong_AsLongLong(args[3]), last = PyLong_AsLongLong(args[4]);
    if ((first == -1 || last == -1) && PyErr_Occurred()) return nullptr;
    if (!fits(first >= 0 && last <= states.size(), "states are fewer than rows")) return nullptr;
    int64_t count;
    {
        WithoutInterpreter released(keys.bytes() >= WORTH_RELEASING_BYTES);
        count = kernels->claim_rows(
            entries.as<uint64_t>(), entries.size() / 2, keys.as<uint64_t>(), keys.size(),
            rows.as<uint32_t>(), states.as<uint8_t>(), first, last);
    }
    return PyLong_FromLongLong(count);
}

// push_blocks(values, state, grads, blocks, block_elements, meta, hyper, work)
PyObject* push_blocks(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    DenseArrays table;
    Buffer grads, blocks;
    if (!takes(nargs, 8, "push_blocks") || !grads.open(args[2], "grads", "") ||
        !blocks.open(args[3], "blocks", INT64_LETTERS) ||
        !table.open(args[0], args[1], args[4], args[5], args[6], args[7], dtype_of(grads)))
        return nullptr;
    const Dense& dense = table.dense;
    int64_t needed = 0;
    for (int64_t i = 0; i < blocks.size(); i++) {
        const int64_t block = blocks.as<int64_t>()[i];
        if (!fits(block >= 0 && block < table.blocks(), "no such block")) return nullptr;
        const int64_t left = dense.elements - block * dense.block_elements;
        needed += left < dense.block_elements ? left : dense.block_elements;
    }
    if (!fits(grads.size() == needed, "grads must be exactly those of the blocks")) return nullptr;
    {
        WithoutInterpreter released(grads.bytes() >= WORTH_RELEASING_BYTES);
        kernels->push_blocks[table.dtype](
            dense, grads.as<void>(), blocks.as<int64_t>(), blocks.size());
    }
    Py_RETURN_NONE;
}

// fill_rows(out, first_row, meta, hyper)
PyObject* fill_rows(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer out, meta, hyper;
    if (!takes(nargs, 4, "fill_rows") || !out.open(args[0], "out", "", 1) ||
        !meta.open(args[2], "meta", INT64_LETTERS) || !hyper.open(args[3], "hyper", FLOAT64_LETTERS))
        return nullptr;
    int64_t first_row = PyLong_AsLongLong(args[1]);
    if (first_row == -1 && PyErr_Occurred()) return nullptr;
    const int dtype = dtype_of(out);
    if (dtype < 0 || !fits(meta.size() >= META_NUMBERS && hyper.size() >= HYPER_NUMBERS &&
                               meta.as<int64_t>()[DIM] > 0,
                           "meta or hyper is too short"))
        return nullptr;
    {
        WithoutInterpreter released(out.bytes() >= WORTH_RELEASING_BYTES);
        kernels->fill_rows[dtype](
            out.as<void>(), out.size() / meta.as<int64_t>()[DIM], first_row, meta.as<int64_t>(),
            hyper.as<double>());
    }
    Py_RETURN_NONE;
}

PyObject* counts_as_tuple(const int64_t* counts, int64_t shards) {
    PyObject* tuple = PyTuple_New(shards);
    if (tuple == nullptr) return nullptr;
    for (int64_t i = 0; i < shards; i++) {
        PyObject* count = PyLong_FromLongLong(counts[i]);
        if (count == nullptr) {
            Py_DECREF(tuple);
            return nullptr;
        }
        PyTuple_SET_ITEM(tuple, i, count);
    }
    return tuple;
}

// Both `group_keys` and `group_rows`: see the stub.
PyObject* group_any(
    const Buffer& keys, PyObject* ranks_of, const Buffer& grouped, int64_t shards, uint32_t* order,
    uint32_t* places, const char* rows, char* grouped_rows, int64_t row_bytes) {
    const int64_t n = keys.size();
    Buffer ranks;
    if (!fits(shards >= 1 && shards <= MAX_SHARDS, "shards must be 1 to 1024") ||
        !fits(grouped.size() == n, "grouped must be as long as keys") ||
        (ranks_of != Py_None && (!ranks.open(ranks_of, "ranks", INT32_LETTERS) ||
                                 !fits(ranks.size() == shards, "ranks must be one per shard"))))
        return nullptr;
    int64_t counts[MAX_SHARDS], next[MAX_SHARDS];
    memset(counts, 0, shards * sizeof(int64_t));
    Groups groups(n);
    if (groups.get() == nullptr) return PyErr_NoMemory();
    bool valid;
    {
        WithoutInterpreter released(n * (8 + row_bytes) >= WORTH_RELEASING_BYTES);
        valid = kernels->find_groups(
            keys.as<uint64_t>(), n, shards,
            ranks_of == Py_None ? nullptr : ranks.as<int32_t>(), groups.get(), counts);
        if (valid) {
            int64_t total = 0;
            for (int64_t i = 0; i < shards; i++) {
                next[i] = total;
                total += counts[i];
            }
            kernels->group(
                keys.as<uint64_t>(), n, groups.get(), next, grouped.as<uint64_t>(), order, places,
                rows, grouped_rows, row_bytes);
        }
    }
    if (!fits(valid, "ranks must be a permutation")) return nullptr;
    return counts_as_tuple(counts, shards);
}

// group_keys(keys, shards, ranks, grouped, order, places) -> counts
PyObject* group_keys(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer keys, grouped, order, places;
    if (!takes(nargs, 6, "group_keys") || !keys.open(args[0], "keys", UINT64_LETTERS) ||
        !grouped.open(args[3], "grouped", UINT64_LETTERS, 1) ||
        (args[4] != Py_None && !order.open(args[4], "order", UINT32_LETTERS, 1)) ||
        (args[5] != Py_None && !places.open(args[5], "places", UINT32_LETTERS, 1)))
        return nullptr;
    int64_t shards = PyLong_AsLongLong(args[1]);
    if (shards == -1 && PyErr_Occurred()) return nullptr;
    uint32_t* order_at = args[4] == Py_None ? nullptr : order.as<uint32_t>();
    uint32_t* places_at = args[5] == Py_None ? nullptr : places.as<uint32_t>();
    if (!fits((!order_at || order.size() == keys.size()) &&
                  (!places_at || places.size() == keys.size()),
              "order and places must be as long as keys"))
        return nullptr;
    return group_any(keys, args[2], grouped, shards, order_at, places_at, nullptr, nullptr, 0);
}

// group_rows(keys, shards, ranks, grouped, rows, grouped_rows) -> counts
PyObject* group_rows(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer keys, grouped, rows, grouped_rows;
    if (!takes(nargs, 6, "group_rows") || !keys.open(args[0], "keys", UINT64_LETTERS) ||
        !grouped.open(args[3], "grouped", UINT64_LETTERS, 1) || !rows.open(args[4], "rows", "") ||
        !grouped_rows.open(args[5], "grouped_rows", "", 1))
        return nullptr;
    int64_t shards = PyLong_AsLongLong(args[1]);
    if (shards == -1 && PyErr_Occurred()) return nullptr;
    const int64_t n = keys.size(), row_bytes = n ? rows.bytes() / n : 0;
    if (!fits(rows.bytes() == n * row_bytes && rows.bytes() == grouped_rows.bytes(),
              "rows and grouped_rows must be as many as keys, and equally wide") ||
        !fits(row_bytes % 4 == 0, "rows must be of whole 4-byte values"))
        return nullptr;
    return group_any(
        keys, args[2], grouped, shards, nullptr, nullptr, rows.as<char>(), grouped_rows.as<char>(),
        row_bytes);
}

// gather(source, order, out) and scatter(grouped, order, out): rows of both, (n, width)
PyObject* move_rows(PyObject* const* args, Py_ssize_t nargs, const char* name, bool is_gather) {
    Buffer source, order, out;
    if (!takes(nargs, 3, name) || !source.open(args[0], "source", "") ||
        !order.open(args[1], "order", UINT32_LETTERS) || !out.open(args[2], "out", "", 1) ||
        !fits(source.dimensions() == 2 && out.dimensions() == 2, "rows must be (n, width)"))
        return nullptr;
    const int64_t width = source.length(1) * source.itemsize();
    const Buffer& moved = is_gather ? out : source;
    if (!fits(width == out.length(1) * out.itemsize() && width % 4 == 0,
              "rows must be equally wide, and of whole 4-byte values") ||
        !fits(moved.length(0) == order.size(), "order must be one number per row"))
        return nullptr;
    bool valid;
    {
        WithoutInterpreter released(moved.bytes() >= WORTH_RELEASING_BYTES);

        if (is_gather)
            valid = kernels->gather(
                source.as<char>(), source.length(0), order.as<uint32_t>(), order.size(),
                out.as<char>(), width);
        else
            valid = kernels->scatter(
                source.as<char>(), order.as<uint32_t>(), order.size(), out.as<char>(),
                out.length(0), width);

    }
    return PyBool_FromLong(valid);
}

PyObject* gather(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    return move_rows(args, nargs, "gather", true);
}

PyObject* scatter(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    return move_rows(args, nargs, "scatter", false);
}

// use_instructions(name): for tests and measurements
PyObject* use_instructions(PyObject*, PyObject* name) {
    const char* text = PyUnicode_AsUTF8(name);
    if (text == nullptr) return nullptr;
    if (strcmp(text, "baseline") == 0) {
        kernels = &baseline_kernels;
        instructions = "baseline";
    } else if (strcmp(text, "best") == 0) {
        choose_kernels();
    } else {
        return PyErr_Format(PyExc_ValueError, "no instructions %s", text);
    }
    return PyUnicode_FromString(instructions);
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, nullptr}

PyMethodDef methods[] = {
    FAST(push_rows),
    FAST(load_rows),
    FAST(pull_rows),
    FAST(rehash),
    FAST(forget_stamps),
    FAST(row_numbers),
    FAST(survey_rows),
    FAST(claim_rows),
    FAST(push_blocks),
    FAST(fill_rows),
    FAST(group_keys),
    FAST(group_rows),
    FAST(gather),
    FAST(scatter),
    {"use_instructions", use_instructions, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "resilient_ps._native", nullptr, -1, methods, nullptr, nullptr, nullptr,
    nullptr,
};

}  // namespace
}  // namespace resilient_ps

PyMODINIT_FUNC PyInit__native() {
    resilient_ps::choose_kernels();
    PyObject* module = PyModule_Create(&resilient_ps::definition);
    if (module == nullptr) return nullptr;
    if (!resilient_ps::add_codec(module) || !resilient_ps::add_parts(module) ||
        !resilient_ps::add_asking(module) || !resilient_ps::add_answering(module) ||
        !resilient_ps::add_log_codec(module) || !resilient_ps::add_replicating(module) ||
        !resilient_ps::add_receiving(module) || !resilient_ps::add_checksum(module)) {
        Py_DECREF(module);
        return nullptr;
    }
    return module;
}
