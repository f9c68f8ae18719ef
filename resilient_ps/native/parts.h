// The parts of one request, several shards' tables in one call: see parts.cpp.

#ifndef RESILIENT_PS_PARTS_H
#define RESILIENT_PS_PARTS_H

#include "arrays.h"

namespace resilient_ps {

const Py_ssize_t PARTS_MAX = 64;

// Of one table, rows to be pulled. `arrays` is opened by whoever adds it.
struct PullPart {
    TableArrays arrays;
    const uint64_t* keys;
    int64_t n, first_task;
    char* out;

    int64_t row_bytes() const { return arrays.table.meta[DIM] * arrays.slab.itemsize(); }
};

struct Keeping;

// Of one table, rows to be pushed to. `keys` and `grads` are given by whoever opens it.
struct PushPart {
    TableArrays arrays;
    Buffer scratch;
    const uint64_t* keys;
    int64_t n;
    const char* grads;
    int full;  // what it lacks to go on; 0: it is done
    Keeping* keeping = nullptr;  // what an image keeps of it before

    // Is it certain that `count` keys fit, but for what can grow while they are pushed? `table`: a
    // tuple (entries, slab, row keys, scratch, meta, hyper, work, most rows).
    bool open(PyObject* table, int64_t count, int dtype);

    int32_t* rows() const { return scratch.as<int32_t>(); }
    int32_t* following() const { return rows() + scratch.size() / 2; }
    void end();  // all its rows have been changed
};

// Makes the steps of all parts, which are of different tables.
void make_pushes(PushPart* const* parts, int64_t n, int64_t bytes);

// The same without the interpreter, on all processors where that is `worth_it`.
void run_pushes(PushPart* const* parts, int64_t n, bool worth_it);

// Consecutive blocks of one dense table, to be pushed to.
struct DenseRun {
    DenseArrays table;
    int64_t itemsize, first_block, blocks, blocks_per_task, first_task, tasks;
    const char* grads;

    // args: values, state, first block, block elements, meta, hyper, work. `elements` gradients are
    // at `at`, of this type.
    bool open(PyObject* const* args, const char* at, int64_t elements, int dtype_of_grads);

   private:
    bool is_within(int64_t elements) const;
};

// Makes the steps of all runs, which are of different tables; PARTS_MAX at most.
void push_dense(DenseRun* const* runs, int64_t n, int64_t bytes);

struct Pull {
    PullPart parts[PARTS_MAX];
    Py_ssize_t n = 0;
    int64_t tasks = 0, bytes = 0;

    void add(const uint64_t* keys, int64_t count, char* out);  // of `parts[n].arrays`
    void run();
};

bool add_parts(PyObject* module);

}  // namespace resilient_ps

#endif
