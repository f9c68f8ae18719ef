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
