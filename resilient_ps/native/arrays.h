// The arrays of tables as what kernels take, checked: element types, lengths, alignment. What a
// table's arrays say of each other (`meta`) is believed.

#ifndef RESILIENT_PS_ARRAYS_H
#define RESILIENT_PS_ARRAYS_H

#include "buffers.h"
#include "kernels.h"

#include <stdlib.h>

namespace resilient_ps {

extern const Kernels* kernels;  // those for this machine's processor: chosen in module.cpp

const int64_t WORTH_RELEASING_BYTES = 64 * 1024;

inline bool takes(Py_ssize_t given, Py_ssize_t expected, const char* name) {
    if (given == expected) return true;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, expected, given);
    return false;
}

inline bool fits(bool condition, const char* what) {
    if (!condition) PyErr_SetString(PyExc_ValueError, what);
    return condition;
}

inline int dtype_of(const Buffer& buffer) {
    switch (buffer.letter()) {
        case 'f': return FLOAT32;
        case 'd': return FLOAT64;
        case 'l':
        case 'q': return INT64;
    }
    PyErr_SetString(PyExc_TypeError, "values must be float32, float64 or int64");
    return -1;
}

// The arrays that say what a table is, in the order of the kernels' arguments.
struct TableArrays {
    Buffer entries, slab, row_keys, meta, hyper, work;
    Table table;
    int dtype;

    bool open(PyObject* entries_of, PyObject* slab_of, PyObject* meta_of) {
        if (!entries.open(entries_of, "entries", UINT64_LETTERS, 1) ||
            !slab.open(slab_of, "slab", "", 1) || !meta.open(meta_of, "meta", INT64_LETTERS, 1))
            return false;
        dtype = dtype_of(slab);
        table.entries = entries.as<uint64_t>();
        table.entries_n = entries.size() / 2;
        table.slab = slab.as<void>();
        table.meta = meta.as<int64_t>();
        table.row_keys = nullptr;
        table.hyper = nullptr;
        table.work = nullptr;
        return dtype >= 0 && fits(meta.size() >= META_NUMBERS, "meta is too short") &&
               fits(table.entries_n > 0 && (table.entries_n & (table.entries_n - 1)) == 0,
                    "entries must be a power of two") &&
               fits(table.meta[ROOM] * table.meta[STRIDE] <= slab.size(), "slab is too short") &&
               fits(table.meta[DIM] > 0 && table.meta[DIM] <= table.meta[STRIDE], "wrong stride");
    }

    bool open_hyper(PyObject* object) {
        if (!hyper.open(object, "hyper", FLOAT64_LETTERS) ||
            !fits(hyper.size() >= HYPER_NUMBERS, "hyper is too short"))
            return false;
        table.hyper = hyper.as<double>();
        return true;
    }

    bool open_row_keys(PyObject* object) {
        if (!row_keys.open(object, "row_keys", UINT64_LETTERS, 1) ||
            !fits(row_keys.size() >= table.meta[ROOM], "row_keys is too short"))
            return false;
        table.row_keys = row_keys.as<uint64_t>();
        return true;
    }

    bool open_work(PyObject* object) {
        if (!work.open(object, "work", "", 1) || dtype_of(work) != dtype ||
            !fits(work.size() >= HYPERPARAMETERS + table.meta[DIM], "work is too short"))
            return false;
        table.work = work.as<void>();
        return true;
    }
};

// The arrays of a dense table.
struct DenseArrays {
    Buffer values, state, meta, hyper, work;
    Dense dense;
    int dtype;

    // `dtype_of_grads`: of the gradients that are pushed to it.
    bool open(
        PyObject* values_of, PyObject* state_of, PyObject* block_elements, PyObject* meta_of,
        PyObject* hyper_of, PyObject* work_of, int dtype_of_grads) {
        if (!values.open(values_of, "values", "", 1) || !state.open(state_of, "state", "", 1) ||
            !meta.open(meta_of, "meta", INT64_LETTERS) ||
            !hyper.open(hyper_of, "hyper", FLOAT64_LETTERS) || !work.open(work_of, "work", "", 1))
            return false;
        dense.block_elements = PyLong_AsLongLong(block_elements);
        if (dense.block_elements == -1 && PyErr_Occurred()) return false;
        dtype = dtype_of(values);
        if (dtype < 0 || !fits(dtype == dtype_of(state) && dtype == dtype_of_grads &&
                                   dtype == dtype_of(work),
                               "values, state, grads and work differ in their type") ||
            !fits(meta.size() >= META_NUMBERS && hyper.size() >= HYPER_NUMBERS &&
                      work.size() >= HYPERPARAMETERS && dense.block_elements > 0,
                  "meta, hyper or work is too short"))
            return false;
        dense.values = values.as<void>();
        dense.elements = values.size();
        dense.state = state.as<void>();
        dense.meta = meta.as<int64_t>();
        dense.hyper = hyper.as<double>();
        dense.work = work.as<void>();
        return makes_sense();
    }

    int64_t blocks() const {
        return (dense.elements + dense.block_elements - 1) / dense.block_elements;
    }

   private:
    bool makes_sense() const {
        const int64_t formula = dense.meta[FORMULA], line = dense.meta[LINE];
        const int64_t slots = formula >= ADAM ? 2 : formula >= MOMENTUM ? 1 : 0;
        return fits(line > 0 && (formula == SUM || dtype != INT64), "meta makes no sense") &&
               fits(state.size() >= slots * ((dense.elements + line - 1) / line * line) +
                                        (formula == ADAM ? blocks() : 0),
                    "state is too short");
    }
};

const int64_t MAX_SHARDS = 1024;
const int64_t FEW_KEYS = 4096;

// Groups for keys, on the stack where they are few.
class Groups {
   public:
    explicit Groups(int64_t n)
        : memory_(n <= FEW_KEYS ? few_ : (uint16_t*)malloc(n * sizeof(uint16_t))) {}
    ~Groups() {
        if (memory_ != few_) free(memory_);
    }
    uint16_t* get() { return memory_; }

   private:
    uint16_t few_[FEW_KEYS];
    uint16_t* memory_;
};

}  // namespace resilient_ps

#endif
