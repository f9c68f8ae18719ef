// The parts of one request: the tables of several shards are worked on in one call, on all
// processors where there is much to do. Shards share nothing, so the results are those of the
// kernels one by one.
//
// What is not plain is left alone, before anything has changed: the caller then goes part by part.

#include "parts.h"

#include "arrays.h"
#include "cores.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

namespace resilient_ps {
namespace {

const int64_t HEAVY_BYTES = 128 * 1024;  // from here on other processors are woken up
const long KEPT = 8;                     // rows, for an image; beside what a part lacks
const int64_t SHARED_MAX = 16;           // up to so many parts are shared out in smaller tasks,
const int64_t SHARES = 2;                // so many to each
const int64_t SHARED_DIM_MAX = 256;
const int64_t TASK_KEYS = 4096;          // of a pull
const int64_t TASK_BYTES = 512 * 1024;   // of a dense table
const int64_t STAMPS_END = (1ll << 32) - 1;

PyObject* leave_it() {
    PyErr_Clear();
    Py_RETURN_NONE;
}

bool as_count(PyObject* object, int64_t* out) {
    *out = PyLong_AsLongLong(object);
    return *out >= 0;
}

// The parts of a request as Python gives them: a tuple of arrays for each, and how many keys.
struct Given {
    PyObject *counts, *tables;
    Py_ssize_t n;

    bool open(PyObject* counts_of, PyObject* tables_of, Py_ssize_t width) {
        counts = counts_of, tables = tables_of;
        if (!PyList_Check(counts) || !PyList_Check(tables)) return false;
        n = PyList_GET_SIZE(tables);
        if (n > PARTS_MAX || PyList_GET_SIZE(counts) != n) return false;
        for (Py_ssize_t i = 0; i < n; i++) {
            PyObject* table = PyList_GET_ITEM(tables, i);
            if (!PyTuple_Check(table) || PyTuple_GET_SIZE(table) != width) return false;
        }
        return true;
    }
    PyObject* table(Py_ssize_t i) const { return PyList_GET_ITEM(tables, i); }
    PyObject* item(Py_ssize_t i, Py_ssize_t place) const {
        return PyTuple_GET_ITEM(table(i), place);
    }
    bool count(Py_ssize_t i, int64_t* out) const {
        return as_count(PyList_GET_ITEM(counts, i), out);
    }
};

// ------------------------------------------------------------------------------------- push

}  // namespace

// Of one table, where an image keeps rows before they are pushed: see sparse_overlay.py.
struct Keeping {
    TableArrays kept;
    Buffer states, scratch;
    int64_t first, last, stride_bytes, count;
    char* memory;  // for as many rows as there are keys, with their keys and numbers

    Keeping() : count(0), memory(nullptr) {}
    ~Keeping() { free(memory); }

    // Is it certain that all the rows have room?
    bool open(PyObject* given, const PushPart& part) {
        if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 8) return false;
        const auto item = [&](Py_ssize_t place) { return PyTuple_GET_ITEM(given, place); };
        if (!states.open(item(0), "states", "B", 1) || !as_count(item(1), &first) ||
            !as_count(item(2), &last) || !kept.open(item(3), item(4), item(7)) ||
            !kept.open_row_keys(item(5)) || !scratch.open(item(6), "scratch", INT32_LETTERS, 1))
            return false;
        const int64_t* meta = kept.table.meta;
        const int64_t room = meta[INDEXABLE] < meta[ROOM] ? meta[INDEXABLE] : meta[ROOM];
        const int64_t stride = meta[STRIDE], n = part.n;
        const int64_t* live = part.arrays.table.meta;
        stride_bytes = stride * kept.slab.itemsize();
        if (last > states.size() || last > live[CREATED] || kept.dtype != part.arrays.dtype ||
            stride != live[STRIDE] || scratch.size() / 2 < n || meta[LOCATED] != 0 ||
            meta[BASE] + n > STAMPS_END || meta[CREATED] + n > room)
            return false;
        memory = (char*)malloc((size_t)(n * (stride_bytes + 12) + 1));
        return memory != nullptr;
    }

    // `numbers`: of all keys' rows, if they are known.
    void keep(const PushPart& part, const int32_t* numbers) {
        uint64_t* keys = (uint64_t*)memory;
        char* rows = (char*)(keys + part.n);
        uint32_t* taken = (uint32_t*)(rows + part.n * stride_bytes);
        const Table& live = part.arrays.table;
        uint8_t* flags = states.as<uint8_t>();
        count = numbers != nullptr
                    ? kernels->claim_located(numbers, part.n, taken, flags, first, last)
                    : kernels->claim_rows(
                          live.entries, live.entries_n, part.keys, part.n, taken, flags, first, last);
        if (count == 0) return;
        kernels->gather((const char*)live.slab, last, taken, count, rows, stride_bytes);
        for (int64_t i = 0; i < count; i++) keys[i] = live.row_keys[taken[i]];
        int32_t* places = scratch.as<int32_t>();
        kernels->load_rows(
            kept.table, keys, count, rows, stride_bytes, stride_bytes, places,
            places + scratch.size() / 2);
    }
};

namespace {

void push_part(void* context, int64_t number) {
    PushPart& part = *((PushPart* const*)context)[number];
    const Table& table = part.arrays.table;
    int32_t *rows = part.rows(), *following = part.following();
    if (part.keeping != nullptr) {  // before the first of its rows changes
        part.full = kernels->locate(table, part.keys, part.n, rows, following);
        part.keeping->keep(part, part.full == DONE ? rows : nullptr);
        if (part.full != DONE) return;
    }
    part.full = kernels->push_rows[part.arrays.dtype](
        table, part.keys, part.n, part.grads, rows, following);
}

// Few parts of pushes, to be shared out evenly: the rows of each are located, then changed in shares,
// by whoever has time.
struct SharedPushes {
    PushPart* const* parts;
    int64_t n;
    int located[SHARED_MAX] = {};  // is it? Then there is something to be changed, or it lacks room
    int left[SHARED_MAX] = {};     // shares that have not been changed

    bool can_share() const {
        if (n < 2 || n > SHARED_MAX) return false;
        for (int64_t i = 0; i < n; i++)
            if (parts[i]->keeping != nullptr || parts[i]->arrays.table.meta[DIM] > SHARED_DIM_MAX)
                return false;
        return true;
    }

    // Tasks are taken in their order: so nobody waits for one that has not begun.
    static void run(void* context, int64_t number) {
        SharedPushes& all = *(SharedPushes*)context;
        if (number < all.n)
            all.locate(number);
        else
            all.change((number - all.n) / SHARES, (number - all.n) % SHARES);
    }

    void locate(int64_t i) {
        PushPart& part = *parts[i];
        const Table& table = part.arrays.table;
        left[i] = SHARES;
        part.full = kernels->locate(table, part.keys, part.n, part.rows(), part.following());
        if (part.full == DONE && table.meta[ROWS] > table.meta[ROOM]) part.full = ROOM_FULL;
        __atomic_store_n(&located[i], 1, __ATOMIC_RELEASE);
    }

    void change(int64_t i, int64_t share) {
        while (!__atomic_load_n(&located[i], __ATOMIC_ACQUIRE)) sched_yield();
        PushPart& part = *parts[i];
        if (part.full != DONE) return;
        char work[(HYPERPARAMETERS + SHARED_DIM_MAX) * 8];
        Table table = part.arrays.table;
        memcpy(work, table.work, (size_t)(HYPERPARAMETERS * part.arrays.work.itemsize()));
        table.work = work;
        kernels->apply_rows[part.arrays.dtype](
            table, part.keys, part.n * share / SHARES, part.n * (share + 1) / SHARES, part.grads,
            part.rows(), part.following());
        if (__atomic_sub_fetch(&left[i], 1, __ATOMIC_ACQ_REL) == 0) part.end();
    }
};

}  // namespace

void PushPart::end() {
    int64_t* meta = arrays.table.meta;
    meta[CREATED] = meta[ROWS];
    meta[BASE] += n;
    meta[LOCATED] = 0;
}

bool PushPart::open(PyObject* table, int64_t count, int dtype) {
    int64_t rows_max;
    const auto item = [table](Py_ssize_t place) { return PyTuple_GET_ITEM(table, place); };
    if (!PyTuple_Check(table) || PyTuple_GET_SIZE(table) != 8 ||
        !arrays.open(item(0), item(1), item(4)) || !arrays.open_row_keys(item(2)) ||
        !arrays.open_hyper(item(5)) || !arrays.open_work(item(6)) ||
        !scratch.open(item(3), "scratch", INT32_LETTERS, 1) || !as_count(item(7), &rows_max))
        return false;
    n = count;
    const int64_t* meta = arrays.table.meta;
    return arrays.dtype == dtype && scratch.size() / 2 >= n && meta[LOCATED] == 0 &&
           meta[BASE] + n <= STAMPS_END && meta[CREATED] + n <= rows_max;
}

void make_pushes(PushPart* const* parts, int64_t n, int64_t bytes) {
    WithoutInterpreter released(bytes >= WORTH_RELEASING_BYTES);
    run_pushes(parts, n, bytes >= HEAVY_BYTES);
}

void run_pushes(PushPart* const* parts, int64_t n, bool worth_it) {
    SharedPushes shared = {parts, n};
    if (worth_it && shared.can_share())
        run_tasks(SharedPushes::run, &shared, n * (1 + SHARES), true);
    else
        run_tasks(push_part, (void*)parts, n, worth_it);
}

namespace {

PyObject* made(PushPart* parts, Py_ssize_t n, int64_t bytes) {
    PushPart* all[PARTS_MAX];
    for (Py_ssize_t i = 0; i < n; i++) all[i] = &parts[i];
    make_pushes(all, n, bytes);
    PyObject* lacks = PyTuple_New(n);
    for (Py_ssize_t i = 0; lacks != nullptr && i < n; i++) {
        const Keeping* keeping = parts[i].keeping;
        const long kept = keeping != nullptr && keeping->count > 0 ? KEPT : 0;
        PyTuple_SET_ITEM(lacks, i, PyLong_FromLong(parts[i].full | kept));  // small: it exists
    }
    return lacks;
}

// `keeping`: room for what is kept, or nullptr.
PyObject* push_given(PyObject* const* args, Keeping* keeping) {
    Buffer keys, grads;
    Given given;
    if (!keys.open(args[0], "keys", UINT64_LETTERS) || !grads.open(args[1], "grads", "") ||
        !given.open(args[2], args[3], 8))
        return leave_it();
    const int dtype = dtype_of(grads);
    if (keeping != nullptr && PyList_GET_SIZE(args[4]) != given.n) return leave_it();
    PushPart parts[PARTS_MAX];
    int64_t first = 0, start = 0;
    for (Py_ssize_t i = 0; i < given.n; i++) {
        PushPart& part = parts[i];
        int64_t count;
        if (dtype < 0 || !given.count(i, &count) || !part.open(given.table(i), count, dtype))
            return leave_it();
        part.keys = keys.as<uint64_t>() + first;
        part.grads = grads.as<char>() + start * grads.itemsize();
        first += part.n;
        start += part.n * part.arrays.table.meta[DIM];
        if (first > keys.size() || start > grads.size()) return leave_it();
        PyObject* kept = keeping != nullptr ? PyList_GET_ITEM(args[4], i) : Py_None;
        if (kept == Py_None) continue;
        if (!keeping[i].open(kept, part)) return leave_it();
        part.keeping = &keeping[i];
    }
    if (first != keys.size() || start != grads.size()) return leave_it();
    return made(parts, given.n, grads.bytes());
}

// push_parts(keys, grads, counts, tables, kept) -> what each part lacks, and KEPT; or None. `kept`:
// empty, or of each part None, or where rows are kept: states, first, last; entries, slab, row keys,
// scratch and meta.
PyObject* push_parts(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 5, "push_parts")) return nullptr;
    if (!PyList_Check(args[4]) || PyList_GET_SIZE(args[4]) > PARTS_MAX) return leave_it();
    if (PyList_GET_SIZE(args[4]) == 0) return push_given(args, nullptr);
    Keeping keeping[PARTS_MAX];
    return push_given(args, keeping);
}

// push_each(keys, grads, counts, tables) -> as push_parts, of parts with arrays of their own
PyObject* push_each(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Given given;
    if (!takes(nargs, 4, "push_each")) return nullptr;
    if (!given.open(args[2], args[3], 8) || !PyList_Check(args[0]) || !PyList_Check(args[1]) ||
        PyList_GET_SIZE(args[0]) != given.n || PyList_GET_SIZE(args[1]) != given.n)
        return leave_it();
    PushPart parts[PARTS_MAX];
    Buffer keys[PARTS_MAX], grads[PARTS_MAX];
    int64_t bytes = 0;
    for (Py_ssize_t i = 0; i < given.n; i++) {
        PushPart& part = parts[i];
        if (!keys[i].open(PyList_GET_ITEM(args[0], i), "keys", UINT64_LETTERS) ||
            !grads[i].open(PyList_GET_ITEM(args[1], i), "grads", ""))
            return leave_it();
        const int dtype = dtype_of(grads[i]);
        int64_t count;
        if (dtype < 0 || !given.count(i, &count) || !part.open(given.table(i), count, dtype) ||
            part.n != keys[i].size() ||
            part.n * part.arrays.table.meta[DIM] != grads[i].size())
            return leave_it();
        part.keys = keys[i].as<uint64_t>();
        part.grads = grads[i].as<char>();
        bytes += grads[i].bytes();
    }
    return made(parts, given.n, bytes);
}

// ------------------------------------------------------------------------------------- pull

void pull_part(void* context, int64_t number) {
    Pull& pull = *(Pull*)context;
    Py_ssize_t i = pull.n - 1;
    while (pull.parts[i].first_task > number) i--;
    PullPart& part = pull.parts[i];
    const int64_t from = (number - part.first_task) * TASK_KEYS;
    const int64_t left = part.n - from;
    kernels->pull_rows[part.arrays.dtype](
        part.arrays.table, part.keys + from, left < TASK_KEYS ? left : TASK_KEYS,
        part.out + from * part.row_bytes());
}

}  // namespace

void Pull::add(const uint64_t* keys, int64_t count, char* out) {
    PullPart& part = parts[n++];
    part.keys = keys, part.n = count, part.out = out;
    part.first_task = tasks;
    tasks += (count + TASK_KEYS - 1) / TASK_KEYS;
    bytes += count * part.row_bytes();
}

void Pull::run() {
    WithoutInterpreter released(bytes >= WORTH_RELEASING_BYTES);
    run_tasks(pull_part, this, tasks, bytes >= HEAVY_BYTES);
}

namespace {

// pull_parts(keys, out, counts, tables) -> True, or None
PyObject* pull_parts(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer keys, out;
    Given given;
    if (!takes(nargs, 4, "pull_parts")) return nullptr;
    if (!keys.open(args[0], "keys", UINT64_LETTERS) || !out.open(args[1], "out", "", 1) ||
        !given.open(args[2], args[3], 4))
        return leave_it();
    const int dtype = dtype_of(out);
    if (dtype < 0) return leave_it();
    Pull pull;
    int64_t first = 0, start = 0;
    for (Py_ssize_t i = 0; i < given.n; i++) {
        TableArrays& arrays = pull.parts[i].arrays;
        int64_t count;
        if (!given.count(i, &count) ||
            !arrays.open(given.item(i, 0), given.item(i, 1), given.item(i, 2)) ||
            !arrays.open_hyper(given.item(i, 3)) || arrays.dtype != dtype)
            return leave_it();
        const int64_t elements = count * arrays.table.meta[DIM];
        if (first + count > keys.size() || start + elements > out.size()) return leave_it();
        pull.add(keys.as<uint64_t>() + first, count, out.as<char>() + start * out.itemsize());
        first += count;
        start += elements;
    }
    if (first != keys.size() || start != out.size()) return leave_it();
    pull.run();
    Py_RETURN_TRUE;
}

// ------------------------------------------------------------------------------------ dense

void push_blocks_of(const DenseRun& run, int64_t number) {
    const int64_t from = number * run.blocks_per_task;
    const int64_t left = run.blocks - from;
    const int64_t n = left < run.blocks_per_task ? left : run.blocks_per_task;
    char work[HYPERPARAMETERS * 8];
    memcpy(work, run.table.dense.work, HYPERPARAMETERS * run.itemsize);
    Dense dense = run.table.dense;
    dense.work = work;  // Adam writes there
    for (int64_t i = 0; i < n; i++) {
        const int64_t block = run.first_block + from + i;
        kernels->push_blocks[run.table.dtype](
            dense, run.grads + (from + i) * dense.block_elements * run.itemsize, &block, 1);
    }
}

struct Runs {
    DenseRun* const* all;
    int64_t n;
};

void push_task(void* context, int64_t number) {
    const Runs& runs = *(const Runs*)context;
    int64_t i = runs.n - 1;
    while (runs.all[i]->first_task > number) i--;
    push_blocks_of(*runs.all[i], number - runs.all[i]->first_task);
}

}  // namespace

bool DenseRun::open(PyObject* const* args, const char* at, int64_t elements, int dtype_of_grads) {
    if (!table.open(args[0], args[1], args[3], args[4], args[5], args[6], dtype_of_grads))
        return false;
    first_block = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return false;
    grads = at;
    itemsize = table.values.itemsize();
    const int64_t per_block = table.dense.block_elements;
    blocks = (elements + per_block - 1) / per_block;
    const int64_t per_task = TASK_BYTES / (per_block * itemsize);
    blocks_per_task = per_task > 0 ? per_task : 1;
    tasks = (blocks + blocks_per_task - 1) / blocks_per_task;
    return is_within(elements);
}

bool DenseRun::is_within(int64_t elements) const {
    const Dense& dense = table.dense;
    if (!fits(first_block >= 0 && first_block < table.blocks(), "no such blocks")) return false;
    const int64_t end = first_block * dense.block_elements + elements;
    return fits(end <= dense.elements, "no such blocks") &&
           fits(elements % dense.block_elements == 0 || end == dense.elements,
                "grads must be exactly those of whole blocks");
}

void push_dense(DenseRun* const* runs, int64_t n, int64_t bytes) {
    Runs all = {runs, n};
    int64_t tasks = 0;
    for (int64_t i = 0; i < n; i++) runs[i]->first_task = tasks, tasks += runs[i]->tasks;
    WithoutInterpreter released(bytes >= WORTH_RELEASING_BYTES);
    run_tasks(push_task, &all, tasks, bytes >= HEAVY_BYTES);
}

namespace {

// push_run(values, state, grads, first_block, block_elements, meta, hyper, work)
PyObject* push_run(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer grads;
    DenseRun run;
    if (!takes(nargs, 8, "push_run") || !grads.open(args[2], "grads", "")) return nullptr;
    PyObject* const table[] = {args[0], args[1], args[3], args[4], args[5], args[6], args[7]};
    if (!run.open(table, grads.as<char>(), grads.size(), dtype_of(grads))) return nullptr;
    DenseRun* const only = &run;
    push_dense(&only, 1, grads.bytes());
    Py_RETURN_NONE;
}

// push_runs(grads, elements, runs) -> True, or None. Of each run: how many of the gradients are
// its, and what `push_run` takes but for them; no table is there twice.
PyObject* push_runs(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer grads;
    Given given;
    if (!takes(nargs, 3, "push_runs")) return nullptr;
    if (!grads.open(args[0], "grads", "") || !given.open(args[1], args[2], 7)) return leave_it();
    const int dtype = dtype_of(grads);
    DenseRun runs[PARTS_MAX];
    DenseRun* all[PARTS_MAX];
    int64_t start = 0;
    for (Py_ssize_t i = 0; i < given.n; i++) {
        int64_t elements;
        all[i] = &runs[i];
        if (!given.count(i, &elements) || start + elements > grads.size() ||
            !runs[i].open(&PyTuple_GET_ITEM(PyList_GET_ITEM(given.tables, i), 0),
                          grads.as<char>() + start * grads.itemsize(), elements, dtype))
            return leave_it();
        start += elements;
    }
    if (start != grads.size()) return leave_it();
    push_dense(all, given.n, grads.bytes());
    Py_RETURN_TRUE;
}

// run_of(blocks) -> (first, one past the last) if they follow one another, else None
PyObject* run_of(PyObject*, PyObject* object) {
    Buffer blocks;
    if (!blocks.open(object, "blocks", UINT64_LETTERS) || blocks.dimensions() != 1 ||
        blocks.size() == 0)
        return leave_it();
    const uint64_t* numbers = blocks.as<uint64_t>();
    if (numbers[0] > (uint64_t)INT64_MAX / 2) return leave_it();
    for (int64_t i = 1; i < blocks.size(); i++)
        if (numbers[i] != numbers[0] + (uint64_t)i) return leave_it();
    return Py_BuildValue("(LL)", (long long)numbers[0], (long long)numbers[0] + blocks.size());
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, nullptr}

PyMethodDef methods[] = {
    FAST(push_parts),
    FAST(push_each),
    FAST(pull_parts),
    FAST(push_run),
    FAST(push_runs),
    {"run_of", run_of, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_parts(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace resilient_ps
