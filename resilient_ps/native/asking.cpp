// A client's plain requests to the one server of a sparse table, in one call each: from the user's
// arrays to the bytes of the request, and from the bytes of the answer to the user's array. The
// bytes are those that grouping the keys, making messages and encoding these would give.
//
// What is not plain is left to the Python code, before anything has changed.

#include "asking.h"

#include "arrays.h"
#include "frames.h"

#include <stdlib.h>

namespace resilient_ps {
namespace {

const uint64_t ALIGNMENT = 16;  // of a request's arrays
const Py_ssize_t TABLE_FIELDS = 4;

// Epochs and positions, to be compared.
struct Place {
    uint64_t incarnation, counter, lsn;

    bool read(PyObject* position) { return position_of(position, &incarnation, &counter, &lsn); }
    void read(const char* at) {
        incarnation = get<uint64_t>(at), counter = get<uint64_t>(at + 8);
        lsn = get<uint64_t>(at + 16);
    }
    bool is_before(const Place& other) const {
        if (incarnation != other.incarnation) return incarnation < other.incarnation;
        return counter != other.counter ? counter < other.counter : lsn < other.lsn;
    }
};

// What a request says of all its parts.
struct Asked {
    uint64_t kind, number, incarnation, job, rank, worker_incarnation, clock, n, wait_ns;
    uint64_t table, dtype, dim, rows_max;

    // args: kind, number, incarnation, worker, clock, n, wait_ns, table
    bool read(PyObject* const* args) {
        PyObject *worker = args[3], *of_table = args[7];
        return as_number(args[0], 255, &kind) && as_number(args[1], U64, &number) &&
               as_number(args[2], U64, &incarnation) && is_tuple_of(worker, words.worker, 3) &&
               as_number(PyTuple_GET_ITEM(worker, 0), U32, &job) &&
               as_number(PyTuple_GET_ITEM(worker, 1), U32, &rank) &&
               as_number(PyTuple_GET_ITEM(worker, 2), U64, &worker_incarnation) &&
               as_number(args[4], U64, &clock) && as_number(args[5], U32, &n) &&
               as_number(args[6], U64, &wait_ns) &&
               is_tuple_of(of_table, (PyObject*)&PyTuple_Type, TABLE_FIELDS) &&
               as_number(PyTuple_GET_ITEM(of_table, 0), U32, &table) &&
               as_number(PyTuple_GET_ITEM(of_table, 1), DTYPES_MAX - 1, &dtype) &&
               as_number(PyTuple_GET_ITEM(of_table, 2), U32, &dim) &&
               as_number(PyTuple_GET_ITEM(of_table, 3), U32, &rows_max) && dtype > 0 &&
               words.dtypes[dtype] != nullptr && dim > 0;
    }

    char* pack_head(char* at, int64_t parts_n, int64_t keys_n, int64_t value_bytes) const {
        memcpy(at, words.magic, 4);
        at = put<uint8_t>(at + 4, (uint8_t)words.version);
        at = put<uint8_t>(at, (uint8_t)kind);
        at = put<uint8_t>(at, value_bytes ? (uint8_t)dtype : 0);
        at = put<uint8_t>(at, 0);
        at = put<uint32_t>(at, (uint32_t)(REQUEST_BYTES + parts_n * PART_BYTES));
        at = put<uint32_t>(at, (uint32_t)keys_n);
        at = put<uint64_t>(at, (uint64_t)value_bytes);
        at = put<uint64_t>(at, number);
        at = put<uint64_t>(at, incarnation);
        at = put<uint32_t>(at, (uint32_t)job);
        at = put<uint32_t>(at, (uint32_t)rank);
        at = put<uint64_t>(at, worker_incarnation);
        at = put<uint64_t>(at, clock);
        at = put<uint32_t>(at, (uint32_t)n);
        at = put<uint32_t>(at, (uint32_t)table);
        at = put<uint64_t>(at, wait_ns);
        at = put<double>(at, 0.0);  // rate
        at = put<uint8_t>(at, 0);   // settled
        at = put<uint32_t>(at, (uint32_t)parts_n);
        return put<uint32_t>(at, 0);  // text
    }
};

// The rows of a request: float32, float64 or int64, (n, dim).
bool open_rows(Buffer* rows, PyObject* object, const Asked& asked, int64_t n, bool writable) {
    const char letters[] = {words.letters[asked.dtype], 0};
    return rows->open(object, "rows", letters, writable) && rows->dimensions() == 2 &&
           rows->length(0) == n && rows->length(1) == (int64_t)asked.dim &&
           rows->itemsize() == words.itemsizes[asked.dtype];
}

struct Shards {
    PyObject *order, *seen, *last;  // `last`: null for a pull
    int64_t n;
    int64_t counts[MAX_SHARDS];

    // args: order, ranks, seen, last
    bool open(PyObject* const* args, Buffer* ranks) {
        order = args[0], seen = args[2], last = args[3] == Py_None ? nullptr : args[3];
        if (!PyTuple_Check(order) || !PyList_Check(seen) || (last && !PyDict_Check(last)))
            return false;
        n = PyTuple_GET_SIZE(order);
        memset(counts, 0, sizeof(counts));
        return n >= 1 && n <= MAX_SHARDS && PyList_GET_SIZE(seen) == n &&
               ranks->open(args[1], "ranks", INT32_LETTERS) && ranks->size() == n;
    }

    int64_t parts() const {
        int64_t parts_n = 0;
        for (int64_t i = 0; i < n; i++) parts_n += counts[i] > 0;
        return parts_n;
    }

    bool pack(char* at, uint64_t dim) const {
        for (int64_t i = 0; i < n; i++) {
            if (counts[i] == 0) continue;
            uint64_t shard, prev = 0;
            Place place;
            PyObject* number_of = PyTuple_GET_ITEM(order, i);
            if (!as_number(number_of, (uint64_t)n - 1, &shard) ||
                !place.read(PyList_GET_ITEM(seen, (Py_ssize_t)shard)))
                return false;
            PyObject* before = last ? PyDict_GetItemWithError(last, number_of) : nullptr;
            if (PyErr_Occurred() || (before && !as_number(before, U32, &prev))) return false;
            at = put<uint32_t>(at, (uint32_t)shard);
            at = put<uint64_t>(at, place.incarnation);
            at = put<uint64_t>(at, place.counter);
            at = put<uint64_t>(at, place.lsn);
            at = put<uint32_t>(at, (uint32_t)prev);
            at = put<uint32_t>(at, (uint32_t)counts[i]);
            at = put<uint64_t>(at, last ? (uint64_t)counts[i] * dim : 0);
        }
        return true;
    }

    // This push is the last one that was sent to its shards. False: no memory is left.
    bool remember(PyObject* push_n) const {
        for (int64_t i = 0; i < n; i++)
            if (counts[i] && PyDict_SetItem(last, PyTuple_GET_ITEM(order, i), push_n) != 0)
                return false;
        return true;
    }
};

// Bytes that begin with their arrays aligned; `view` is the frame alone.
struct Room {
    Owned view;
    char* at;

    bool make(int64_t head_bytes, int64_t payload_bytes) {
        const Py_ssize_t size = (Py_ssize_t)(head_bytes + payload_bytes);
        Owned bytes(PyBytes_FromStringAndSize(nullptr, size + (Py_ssize_t)ALIGNMENT));
        if (!bytes) return false;
        char* start = PyBytes_AS_STRING(bytes.get());
        const Py_ssize_t pad =
            (Py_ssize_t)((ALIGNMENT - ((uintptr_t)start + (uint64_t)head_bytes) % ALIGNMENT) %
                         ALIGNMENT);
        Owned whole(PyMemoryView_FromObject(bytes.get()));
        Owned from(PyLong_FromSsize_t(pad)), to(PyLong_FromSsize_t(pad + size));
        if (!whole || !from || !to) return false;
        Owned slice(PySlice_New(from.get(), to.get(), nullptr));
        if (!slice) return false;
        view.reset(PyObject_GetItem(whole.get(), slice.get()));
        at = start + pad;
        return (bool)view;
    }
};

// ask(kind, number, incarnation, worker, clock, n, wait_ns, table, order, ranks, seen, last, keys,
// rows) -> (frame, places), or None
PyObject* ask(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 14, "ask")) return nullptr;
    Asked asked;
    Shards shards;
    Buffer keys, rows, ranks;
    if (!words.complete || !asked.read(args) || !shards.open(args + 8, &ranks) ||
        !keys.open(args[12], "keys", UINT64_LETTERS) || keys.dimensions() != 1)
        return leave_it();
    const int64_t n = keys.size();
    const bool is_push = shards.last != nullptr;
    if (n < 1 || n > (int64_t)asked.rows_max || !open_rows(&rows, args[13], asked, n, !is_push))
        return leave_it();
    const int64_t row_bytes = rows.itemsize() * (int64_t)asked.dim;
    const int64_t value_bytes = is_push ? n * row_bytes : 0;
    const bool is_much = 8 * n + value_bytes >= WORTH_RELEASING_BYTES;
    Groups groups(n);
    if (groups.get() == nullptr) return PyErr_NoMemory();
    bool valid;
    {
        WithoutInterpreter released(is_much);
        valid = kernels->find_groups(
            keys.as<uint64_t>(), n, shards.n, ranks.as<int32_t>(), groups.get(), shards.counts);
    }
    if (!valid) return leave_it();
    int64_t next[MAX_SHARDS], total = 0;
    for (int64_t i = 0; i < shards.n; i++) next[i] = total, total += shards.counts[i];
    const int64_t parts_n = shards.parts();
    const int64_t head_bytes = HEAD_BYTES + REQUEST_BYTES + parts_n * PART_BYTES;
    Room room;
    Owned places(is_push ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize(nullptr, 4 * n));
    if (!places || !room.make(head_bytes, 8 * n + value_bytes)) return nullptr;
    if (!shards.pack(asked.pack_head(room.at, parts_n, n, value_bytes), asked.dim))
        return leave_it();
    uint64_t* grouped = (uint64_t*)(room.at + head_bytes);
    uint32_t* places_at = is_push ? nullptr : (uint32_t*)PyBytes_AS_STRING(places.get());
    {
        WithoutInterpreter released(is_much);
        kernels->group(
            keys.as<uint64_t>(), n, groups.get(), next, grouped, nullptr, places_at,
            is_push ? rows.as<char>() : nullptr, (char*)(grouped + n), row_bytes);
    }
    if (is_push && !shards.remember(args[5])) return nullptr;
    return PyTuple_Pack(2, room.view.get(), places.get());
}

// The request that is answered, as its frame says it.
struct Request {
    uint64_t number, parts_n, keys;
    const char* parts;
    bool is_push;

    bool open(PyObject* frame) {
        if (!PyMemoryView_Check(frame)) return false;
        const Py_buffer* view = PyMemoryView_GET_BUFFER(frame);
        if (view->len < HEAD_BYTES + REQUEST_BYTES) return false;
        const char* at = (const char*)view->buf;
        keys = get<uint32_t>(at + 12), number = get<uint64_t>(at + 24);
        is_push = get<uint64_t>(at + 16) > 0;
        parts_n = get<uint32_t>(at + HEAD_BYTES + 57);
        parts = at + HEAD_BYTES + REQUEST_BYTES;
        return (uint64_t)(view->len - HEAD_BYTES - REQUEST_BYTES) >= parts_n * PART_BYTES;
    }
};

// Do all parts say in their order that all is well, and nothing but that?
bool all_is_well(const Head& head, const Request& request, PyObject* seen, uint64_t dim) {
    const uint64_t meta_bytes = ANSWER_BYTES + request.parts_n * PART_ANSWER_BYTES;
    if (head.kind != words.answer_kind || head.request != request.number || head.keys ||
        head.meta_bytes != meta_bytes || get<uint32_t>(head.meta) != request.parts_n)
        return false;
    const char* part = request.parts;
    const char* at = head.meta + ANSWER_BYTES;
    for (uint64_t i = 0; i < request.parts_n; i++, part += PART_BYTES, at += PART_ANSWER_BYTES) {
        const uint32_t shard = get<uint32_t>(at);
        const uint64_t elements = request.is_push ? 0 : get<uint32_t>(part + 32) * dim;
        Place now, before;
        now.read(at + 5);
        if (shard != get<uint32_t>(part) || at[4] != 0 || get<uint64_t>(at + 41) != elements ||
            get<uint32_t>(at + 49) != 0 || shard >= PyList_GET_SIZE(seen) ||
            !before.read(PyList_GET_ITEM(seen, shard)) || now.is_before(before))
            return false;
    }
    return true;
}

bool move_on(const Head& head, uint64_t parts_n, PyObject* seen) {
    Positions positions;
    const char* at = head.meta + ANSWER_BYTES;
    for (uint64_t i = 0; i < parts_n; i++, at += PART_ANSWER_BYTES) {
        Place now;
        now.read(at + 5);
        PyObject* position = positions.make(now.incarnation, now.counter, now.lsn);
        if (position == nullptr || PyList_SetItem(seen, get<uint32_t>(at), position) != 0)
            return false;
    }
    return true;
}

// answered(scratch, lo, hi, meta_limit, payload_limit, frame, seen, places, out) -> whether
// scratch[lo:hi] is the whole answer that was hoped for; then it has been taken in
PyObject* answered(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 9, "answered")) return nullptr;
    Received received;
    Request request;
    PyObject *seen = args[6], *places = args[7], *out_of = args[8];
    if (!received.open(args)) return nullptr;
    const Head& head = received.head;
    if (!received.begins || head.frame_bytes() != received.hi - received.lo ||
        !request.open(args[5]) || !PyList_Check(seen))
        Py_RETURN_FALSE;
    Buffer out;
    uint64_t dim = 0;
    const int64_t n = (int64_t)request.keys;
    if (!request.is_push) {
        if (!PyBytes_Check(places) || PyBytes_GET_SIZE(places) != 4 * n ||
            !out.open(out_of, "out", "", 1) || out.dimensions() != 2 || out.length(0) != n ||
            head.value_bytes != (uint64_t)out.bytes()) {
            PyErr_Clear();
            Py_RETURN_FALSE;
        }
        dim = (uint64_t)out.length(1);
    } else if (head.value_bytes) {
        Py_RETURN_FALSE;
    }
    if (!all_is_well(head, request, seen, dim)) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    if (!request.is_push &&
        !kernels->gather(
            head.payload, n, (const uint32_t*)PyBytes_AS_STRING(places), n, out.as<char>(),
            (int64_t)dim * out.itemsize()))
        Py_RETURN_FALSE;
    if (!move_on(head, request.parts_n, seen)) return nullptr;
    Py_RETURN_TRUE;
}

PyMethodDef methods[] = {
    {"ask", (PyCFunction)(void (*)(void))ask, METH_FASTCALL, nullptr},
    {"answered", (PyCFunction)(void (*)(void))answered, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_asking(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace resilient_ps
