// A client's plain requests to the one server of a table, in one call each: from the user's arrays
// to the bytes of the request, and from the bytes of the answer to the user's array. The bytes are
// those that grouping the keys, making messages and encoding these would give.
//
// What is not plain is left to the Python code, before anything has changed.

#include "asking.h"

#include "arrays.h"
#include "frames.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

namespace resilient_ps {
namespace {

const Py_ssize_t TABLE_FIELDS = 4, CUT_FIELDS = 5;
// Received at a time: while a call receives, its socket is locked, and what arrives has to wait for
// it. In turns, the other core does a part of the work.
const int64_t TURN_BYTES = 256 * 1024;
// Pushes of more than a server's scratch are sent while they are prepared, in pieces of this size:
// the server receives what is there, and works on it.
const int64_t LATE_BYTES = 256 * 1024, SENT_BYTES = 64 * 1024;
const int64_t META_KEPT_BYTES = ANSWER_BYTES + MAX_SHARDS * PART_ANSWER_BYTES;

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
        at = put_head(
            at, (int)kind, value_bytes ? (int)dtype : 0, REQUEST_BYTES + parts_n * PART_BYTES,
            (uint64_t)keys_n, value_bytes, number);
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

// A frame that is sent while it is being filled.
struct Leaving {
    int fd;
    char* frame;
    int64_t sent = 0;

    // What the kernel takes of the first `bytes`. An error is found by whoever sends the rest.
    void send_upto(int64_t bytes) {
        if (fd < 0 || sent >= bytes) return;
        const ssize_t count =
            send(fd, frame + sent, (size_t)(bytes - sent), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count > 0) sent += count;
    }
};

// A large push, whose keys and rows are still to be put into its frame.
struct Late {
    Buffer keys, rows;
    char* frame;
    int64_t n, shards, begin, row_bytes;  // `begin`: where the keys do
    // What `ask` gives: where each group begins, room for the order of the keys, and their groups.
    int64_t* first;
    uint32_t* order;
    uint16_t* groups;

    static int64_t bytes(int64_t shards, int64_t n) { return 8 * shards + (4 + 2) * n; }
    void place(char* at, int64_t shards_n, int64_t keys_n) {
        first = (int64_t*)at;
        order = (uint32_t*)(at + 8 * shards_n);
        groups = (uint16_t*)(order + keys_n);
    }

    // args: frame, places, keys, rows
    bool open(PyObject* const* args) {
        if (!keys.open(args[2], "keys", UINT64_LETTERS) || !rows.open(args[3], "rows", ""))
            return false;
        const Py_buffer* view =
            PyMemoryView_Check(args[0]) ? PyMemoryView_GET_BUFFER(args[0]) : nullptr;
        if (!fits(view != nullptr && view->len >= HEAD_BYTES && PyBytes_Check(args[1]),
                  "send_rows: not a frame and its places"))
            return false;
        frame = (char*)view->buf;
        n = get<uint32_t>(frame + 12);
        begin = HEAD_BYTES + get<uint32_t>(frame + 8);
        const int64_t value_bytes = (int64_t)get<uint64_t>(frame + 16);
        shards = (PyBytes_GET_SIZE(args[1]) - bytes(0, n)) / 8;
        if (!fits(n > 0 && begin + 8 * n + value_bytes == view->len &&
                      rows.bytes() == value_bytes && value_bytes % n == 0 && keys.size() == n &&
                      shards > 0 && shards <= MAX_SHARDS &&
                      bytes(shards, n) == PyBytes_GET_SIZE(args[1]),
                  "send_rows: the rows are not those of the frame"))
            return false;
        row_bytes = value_bytes / n;
        place(PyBytes_AS_STRING(args[1]), shards, n);
        return true;
    }
};

// ask(kind, number, incarnation, worker, clock, n, wait_ns, table, order, ranks, seen, last, keys,
// rows) -> (frame, places), or None. `places`, of a pull: for each row of the answer, in its order,
// which of the keys it belongs to. Of a large push: what `send_rows` has to know, which puts the keys
// and rows into the frame.
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
    const bool is_late = is_push && 8 * n + value_bytes >= LATE_BYTES;
    const int64_t places_bytes = is_late ? Late::bytes(shards.n, n) : 4 * n;
    Owned places(is_push && !is_late ? Py_NewRef(Py_None)
                                     : PyBytes_FromStringAndSize(nullptr, places_bytes));
    if (!places || !room.make(head_bytes, 8 * n + value_bytes)) return nullptr;
    if (!shards.pack(asked.pack_head(room.at, parts_n, n, value_bytes), asked.dim))
        return leave_it();
    uint64_t* grouped = (uint64_t*)(room.at + head_bytes);
    if (is_late) {
        Late late;
        late.place(PyBytes_AS_STRING(places.get()), shards.n, n);
        memcpy(late.first, next, (size_t)(8 * shards.n));
        memcpy(late.groups, groups.get(), (size_t)(2 * n));
    } else {
        uint32_t* places_at = is_push ? nullptr : (uint32_t*)PyBytes_AS_STRING(places.get());
        WithoutInterpreter released(is_much);
        kernels->group(
            keys.as<uint64_t>(), n, groups.get(), next, grouped, places_at, nullptr,
            is_push ? rows.as<char>() : nullptr, (char*)(grouped + n), row_bytes);
    }
    if (is_push && !shards.remember(args[5])) return nullptr;
    return PyTuple_Pack(2, room.view.get(), places.get());
}

// send_rows(fd, frame, places, keys, rows) -> how many bytes of the frame have been sent. All of
// them are in it then. A negative `fd`: nothing is sent.
PyObject* send_rows(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 5, "send_rows")) return nullptr;
    Late late;
    const int fd = (int)PyLong_AsLong(args[0]);
    if (PyErr_Occurred() || !late.open(args + 1)) return nullptr;
    const int64_t n = late.n, row_bytes = late.row_bytes;
    const int64_t step = row_bytes < SENT_BYTES ? SENT_BYTES / row_bytes : 1;
    Leaving leaving = {fd, late.frame};
    {
        WithoutInterpreter released(true);
        leaving.send_upto(late.begin);
        int64_t next[MAX_SHARDS];
        memcpy(next, late.first, (size_t)(8 * late.shards));
        uint64_t* grouped = (uint64_t*)(late.frame + late.begin);
        kernels->group(
            late.keys.as<uint64_t>(), n, late.groups, next, grouped, late.order, nullptr, nullptr,
            nullptr, row_bytes);
        const int64_t rows_at = late.begin + 8 * n;
        leaving.send_upto(rows_at);
        for (int64_t i = 0; i < n; i += step) {
            const int64_t count = n - i < step ? n - i : step;
            char* to = late.frame + rows_at + i * row_bytes;
            kernels->gather(late.rows.as<char>(), n, late.order + i, count, to, row_bytes);
            leaving.send_upto(rows_at + (i + count) * row_bytes);
        }
    }
    return PyLong_FromLongLong(leaving.sent);
}

// What of a dense table is asked for: see split.py. Elements `start[i]` to `start[i] + elements[i] - 1`
// of the whole array stand for `counts[i]` blocks.
struct Cut {
    int64_t n, keys, total;  // parts, blocks and elements
    int64_t shards[MAX_SHARDS], counts[MAX_SHARDS], start[MAX_SHARDS], elements[MAX_SHARDS];

    bool open(PyObject* parts) {
        keys = total = n = 0;
        if (!PyTuple_Check(parts) || PyTuple_GET_SIZE(parts) > MAX_SHARDS) return false;
        for (; n < PyTuple_GET_SIZE(parts); n++) {
            PyObject* part = PyTuple_GET_ITEM(parts, n);
            uint64_t shard, first, count, from, to;
            if (!PyTuple_Check(part) || PyTuple_GET_SIZE(part) != CUT_FIELDS ||
                !as_number(PyTuple_GET_ITEM(part, 0), MAX_SHARDS - 1, &shard) ||
                !as_number(PyTuple_GET_ITEM(part, 1), U32, &first) ||
                !as_number(PyTuple_GET_ITEM(part, 2), U32, &count) ||
                !as_number(PyTuple_GET_ITEM(part, 3), INT64_MAX, &from) ||
                !as_number(PyTuple_GET_ITEM(part, 4), INT64_MAX, &to) ||
                (int64_t)first != keys || count == 0 || from >= to)
                return false;
            shards[n] = (int64_t)shard, counts[n] = (int64_t)count;
            start[n] = (int64_t)from, elements[n] = (int64_t)(to - from);
            keys += counts[n], total += elements[n];
        }
        return n > 0;
    }

    bool is_within(int64_t size) const {
        for (int64_t i = 0; i < n; i++)
            if (start[i] + elements[i] > size) return false;
        return true;
    }

    // `last`: null for a pull.
    bool pack(char* at, PyObject* seen, PyObject* last) const {
        for (int64_t i = 0; i < n; i++) {
            uint64_t prev = 0;
            Place place;
            Owned shard(number((uint64_t)shards[i]));
            if (!shard || shards[i] >= PyList_GET_SIZE(seen) ||
                !place.read(PyList_GET_ITEM(seen, (Py_ssize_t)shards[i])))
                return false;
            PyObject* before = last ? PyDict_GetItemWithError(last, shard.get()) : nullptr;
            if (PyErr_Occurred() || (before && !as_number(before, U32, &prev))) return false;
            at = put<uint32_t>(at, (uint32_t)shards[i]);
            at = put<uint64_t>(at, place.incarnation);
            at = put<uint64_t>(at, place.counter);
            at = put<uint64_t>(at, place.lsn);
            at = put<uint32_t>(at, (uint32_t)prev);
            at = put<uint32_t>(at, (uint32_t)counts[i]);
            at = put<uint64_t>(at, last ? (uint64_t)elements[i] : 0);
        }
        return true;
    }

    // This push is the last one that was sent to its shards. False: no memory is left.
    bool remember(PyObject* last, PyObject* push_n) const {
        for (int64_t i = 0; i < n; i++) {
            Owned shard(number((uint64_t)shards[i]));
            if (!shard || PyDict_SetItem(last, shard.get(), push_n) != 0) return false;
        }
        return true;
    }
};

// ask_blocks(kind, number, incarnation, worker, clock, n, wait_ns, table, seen, last, blocks,
// parts) -> the frame, of a push without its values; or None
PyObject* ask_blocks(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 12, "ask_blocks")) return nullptr;
    Asked asked;
    Cut cut;
    Buffer blocks;
    PyObject *seen = args[8], *last = args[9] == Py_None ? nullptr : args[9];
    if (!words.complete || !asked.read(args) || !PyList_Check(seen) ||
        (last && !PyDict_Check(last)) || !blocks.open(args[10], "blocks", UINT64_LETTERS) ||
        !cut.open(args[11]) || cut.keys != blocks.size())
        return leave_it();
    const int64_t value_bytes = last ? cut.total * words.itemsizes[asked.dtype] : 0;
    const int64_t head_bytes = HEAD_BYTES + REQUEST_BYTES + cut.n * PART_BYTES;
    Owned frame(PyBytes_FromStringAndSize(nullptr, head_bytes + blocks.bytes()));
    if (!frame) return nullptr;
    char* at = PyBytes_AS_STRING(frame.get());
    memcpy(at + head_bytes, blocks.as<char>(), (size_t)blocks.bytes());
    if (!cut.pack(asked.pack_head(at, cut.n, cut.keys, value_bytes), seen, last))
        return leave_it();
    if (last && !cut.remember(last, args[5])) return nullptr;
    return PyMemoryView_FromObject(frame.get());
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

// Do all parts say in their order that all is well, and nothing but that? `elements`: of each part;
// null: `dim` for each of its keys.
bool all_is_well(
    const Head& head, const Request& request, PyObject* seen, uint64_t dim,
    const int64_t* elements) {
    const uint64_t meta_bytes = ANSWER_BYTES + request.parts_n * PART_ANSWER_BYTES;
    if (head.kind != words.answer_kind || head.request != request.number || head.keys ||
        head.meta_bytes != meta_bytes || get<uint32_t>(head.meta) != request.parts_n)
        return false;
    const char* part = request.parts;
    const char* at = head.meta + ANSWER_BYTES;
    for (uint64_t i = 0; i < request.parts_n; i++, part += PART_BYTES, at += PART_ANSWER_BYTES) {
        const uint32_t shard = get<uint32_t>(at);
        const uint64_t expected = request.is_push ? 0
                                  : elements      ? (uint64_t)elements[i]
                                                  : get<uint32_t>(part + 32) * dim;
        Place now, before;
        now.read(at + 5);
        if (shard != get<uint32_t>(part) || at[4] != 0 || get<uint64_t>(at + 41) != expected ||
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

// What is hoped for of an answer, and where its values are to be put.
struct Hoped {
    Request request;
    PyObject* seen;
    Buffer out;
    const uint32_t* places;
    int64_t rows, row_bytes;
    uint64_t dim;
    bool is_dense;  // then `cut` says what of `out` is asked for, else `places`
    Cut cut;

    // args: frame, seen, places or parts, out
    bool open(PyObject* const* args) {
        seen = args[1], rows = row_bytes = 0, dim = 0, is_dense = false;
        if (!request.open(args[0]) || !PyList_Check(seen)) return false;
        if (request.is_push) return true;
        if (PyTuple_Check(args[2])) return open_dense(args[2], args[3]);
        rows = (int64_t)request.keys;
        if (!PyBytes_Check(args[2]) || PyBytes_GET_SIZE(args[2]) != 4 * rows ||
            !out.open(args[3], "out", "", 1) || out.dimensions() != 2 || out.length(0) != rows)
            return false;
        places = (const uint32_t*)PyBytes_AS_STRING(args[2]);
        dim = (uint64_t)out.length(1);
        row_bytes = (int64_t)dim * out.itemsize();
        return true;
    }
    bool open_dense(PyObject* parts, PyObject* array) {
        is_dense = true;
        return cut.open(parts) && (uint64_t)cut.n == request.parts_n &&
               out.open(array, "out", "", 1) && cut.is_within(out.size());
    }
    int64_t value_bytes() const {
        return is_dense ? cut.total * out.itemsize() : rows * row_bytes;
    }
    // Does this head, with its meta, say what is hoped for?
    bool is_met_by(const Head& head) const {
        return head.value_bytes == (uint64_t)value_bytes() &&
               all_is_well(head, request, seen, dim, is_dense ? cut.elements : nullptr);
    }
    // The next `n` rows of the answer, the first of which is its number `first`.
    bool put(const char* from, int64_t first, int64_t n) const {
        return kernels->scatter(from, places + first, n, out.as<char>(), rows, row_bytes);
    }
    bool put_all(const char* from) const {
        if (!is_dense) return put(from, 0, rows);
        for (int64_t i = 0; i < cut.n; i++) {
            const int64_t bytes = cut.elements[i] * out.itemsize();
            memcpy(out.as<char>() + cut.start[i] * out.itemsize(), from, (size_t)bytes);
            from += bytes;
        }
        return true;
    }
    // How much of an answer may be received before it is known to be what is hoped for: blocks are
    // received where they are to stay.
    int64_t peek_bytes(int64_t most) const {
        if (!is_dense) return most;
        const int64_t head = HEAD_BYTES + ANSWER_BYTES + cut.n * PART_ANSWER_BYTES;
        return head < most ? head : most;
    }
};

PyObject* refused() {
    PyErr_Clear();
    Py_RETURN_FALSE;
}

// answered(scratch, lo, hi, meta_limit, payload_limit, frame, seen, places, out) -> whether
// scratch[lo:hi] is the whole answer that was hoped for; then it has been taken in
PyObject* answered(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 9, "answered")) return nullptr;
    Received received;
    Hoped hoped;
    if (!received.open(args)) return nullptr;
    const Head& head = received.head;
    if (!received.begins || head.frame_bytes() != received.hi - received.lo ||
        !hoped.open(args + 5) || !hoped.is_met_by(head) || !hoped.put_all(head.payload))
        return refused();
    if (!move_on(head, hoped.request.parts_n, hoped.seen)) return nullptr;
    Py_RETURN_TRUE;
}

// ---------------------------------------------------------------------------------- receive

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

// A socket that blocks for a short time at most.
struct Source {
    int fd;
    int error = 0;  // of errno; 0 at the end of the stream

    int64_t receive(char* to, int64_t bytes, int flags = 0) {
        const ssize_t count = recv(fd, to, (size_t)bytes, flags);
        error = count < 0 ? errno : 0;
        return count;
    }
    bool is_late() const { return error == EAGAIN || error == EWOULDBLOCK; }
};

// The rows of an answer, on their way from a socket. The same scratch is used again and again: so
// they are moved on while they are in the cache.
struct ArrivingRows {
    const Hoped& hoped;
    Source& source;
    char* scratch;
    int64_t scratch_bytes;
    const char* at;  // what has been received and not been put
    int64_t have;
    int64_t done = 0;  // rows

    int64_t bytes() const { return done * hoped.row_bytes + have; }

    // False: something has come in between.
    bool take_all() {
        for (;;) {
            const int64_t n = have / hoped.row_bytes;
            hoped.put(at, done, n);
            done += n;
            if (done == hoped.rows) return true;
            have -= n * hoped.row_bytes;
            memmove(scratch, at + n * hoped.row_bytes, (size_t)have);
            at = scratch;
            const int64_t left = (hoped.rows - done) * hoped.row_bytes - have;
            const int64_t room = scratch_bytes - have;
            const int64_t count = source.receive(scratch + have, left < room ? left : room);
            if (count <= 0) return false;
            have += count;
        }
    }
};

// The blocks of an answer, which are received where they are to stay.
struct ArrivingBlocks {
    const Hoped& hoped;
    Source& source;
    int64_t part = 0, done = 0;  // of the part, bytes
    int64_t before = 0;          // bytes of the parts before it

    int64_t bytes() const { return before + done; }

    bool take_all() {
        const Cut& cut = hoped.cut;
        const int64_t item = hoped.out.itemsize();
        while (part < cut.n) {
            int64_t end = cut.start[part] + cut.elements[part], last = part;
            while (last + 1 < cut.n && cut.start[last + 1] == end) end += cut.elements[++last];
            const int64_t size = (end - cut.start[part]) * item;
            while (done < size) {
                char* to = hoped.out.as<char>() + cut.start[part] * item + done;
                const int64_t left = size - done;
                const int64_t count =
                    source.receive(to, left < TURN_BYTES ? left : TURN_BYTES, MSG_WAITALL);
                if (count <= 0) return false;
                done += count;
            }
            before += size, done = 0, part = last + 1;
        }
        return true;
    }
};

PyObject* failed(int error) {
    if (error == 0) {
        PyErr_SetString(PyExc_ConnectionResetError, "the server closed the connection");
        return nullptr;
    }
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

// All values of an answer. False: nothing has come for so long, or the connection broke. An error of
// Python's is set then, and the connection is at an end, because what follows is not the beginning
// of a frame.
template <class Arriving>
bool receive_all(Arriving arriving, int64_t patience_ns) {
    Source& source = arriving.source;
    int64_t arrived_bytes = 0, arrived_ns = now_ns();
    for (;;) {
        bool complete;
        {
            WithoutInterpreter released(arriving.hoped.value_bytes() >= WORTH_RELEASING_BYTES);
            complete = arriving.take_all();
        }
        if (complete) return true;
        if (arriving.bytes() > arrived_bytes)
            arrived_bytes = arriving.bytes(), arrived_ns = now_ns();
        if (source.error == EINTR && PyErr_CheckSignals() == 0) continue;
        if (source.is_late() && now_ns() < arrived_ns + patience_ns) continue;
        shutdown(source.fd, SHUT_RDWR);
        if (!PyErr_Occurred()) failed(source.error);
        return false;
    }
}

// receive(fd, scratch, meta_limit, payload_limit, patience_ns, frame, seen, places, out) -> 0: the
// answer that was hoped for has been received, and taken in. Else so many bytes have been received
// into the scratch, and nothing else has happened; -1: none within the socket's patience.
PyObject* receive(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 9, "receive")) return nullptr;
    Hoped hoped;
    Buffer scratch;
    uint64_t meta_limit, payload_limit;
    const int fd = (int)PyLong_AsLong(args[0]);
    const int64_t patience_ns = PyLong_AsLongLong(args[4]);
    if (PyErr_Occurred() || !scratch.open(args[1], "scratch", "B", 1)) return nullptr;
    if (!as_number(args[2], U64, &meta_limit) || !as_number(args[3], U64, &payload_limit) ||
        !hoped.open(args + 5)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "receive: not a plain call");
        return nullptr;
    }
    char* const at = scratch.as<char>();
    Source source = {fd};
    int64_t count;
    {
        WithoutInterpreter released(true);
        count = source.receive(at, hoped.peek_bytes(scratch.bytes()));
    }
    if (count < 0 && (source.is_late() || source.error == EINTR))
        return PyErr_CheckSignals() == 0 ? PyLong_FromLong(-1) : nullptr;
    if (count <= 0) return failed(source.error);
    Head head;
    char meta[META_KEPT_BYTES];  // as the scratch is used again
    const bool begins =
        words.complete && head.read(at, (uint64_t)count, meta_limit, payload_limit, false);
    const bool is_plain = begins && (uint64_t)count <= head.frame_bytes() &&
                          head.meta_bytes <= sizeof(meta) && hoped.is_met_by(head) &&
                          (!hoped.request.is_push || (uint64_t)count == head.frame_bytes()) &&
                          hoped.row_bytes <= scratch.bytes();
    PyErr_Clear();
    if (!is_plain) return PyLong_FromLongLong(count);
    memcpy(meta, head.meta, head.meta_bytes);
    if (hoped.is_dense) {
        if (!receive_all(ArrivingBlocks{hoped, source}, patience_ns)) return nullptr;
    } else if (!hoped.request.is_push) {
        ArrivingRows rows = {hoped, source, at, scratch.bytes(), head.payload,
                             at + count - head.payload};
        if (!receive_all(rows, patience_ns)) return nullptr;
    }
    head.meta = meta;
    return move_on(head, hoped.request.parts_n, hoped.seen) ? PyLong_FromLong(0) : nullptr;
}

PyMethodDef methods[] = {
    {"ask", (PyCFunction)(void (*)(void))ask, METH_FASTCALL, nullptr},
    {"send_rows", (PyCFunction)(void (*)(void))send_rows, METH_FASTCALL, nullptr},
    {"ask_blocks", (PyCFunction)(void (*)(void))ask_blocks, METH_FASTCALL, nullptr},
    {"answered", (PyCFunction)(void (*)(void))answered, METH_FASTCALL, nullptr},
    {"receive", (PyCFunction)(void (*)(void))receive, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_asking(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace resilient_ps
