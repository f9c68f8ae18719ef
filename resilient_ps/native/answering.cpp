// A server's answer to a plain pull in one call: from the bytes of the request to the bytes of the
// answer. The bytes are those that decoding, asking the shards and encoding give. Rows are gathered
// into them; blocks of dense tables are lent, as they are.
//
// Whether a worker may pull at all has been found out before: see quick_pulls.py. What is not plain
// is left to the Python code.

#include "answering.h"

#include "frames.h"
#include "parts.h"

#include <stdlib.h>

namespace resilient_ps {
namespace {

const int64_t MEANT_BYTES = 40;  // of a request's meta: see quick_pulls.py
const Py_ssize_t FEW_KEYS_BYTES = 16 * 1024;
const Py_ssize_t SPARSE_ARRAYS = 4, DENSE_ARRAYS = 3;  // of `pull_arrays`

PyObject *position_name, *pull_arrays_name;

// A request that is all there, and what stands in its parts.
struct Asked {
    const Head& head;
    int64_t parts_n;

    explicit Asked(const Received& received) : head(received.head), parts_n(0) {}
    bool is_plain(const Received& received) {
        if (!received.begins || head.kind != words.pull_kind || head.value_bytes || head.keys == 0 ||
            head.frame_bytes() != received.hi - received.lo ||
            head.meta_bytes < (uint64_t)REQUEST_BYTES)
            return false;
        const uint64_t n = get<uint32_t>(head.meta + 57), text_n = get<uint32_t>(head.meta + 61);
        parts_n = (int64_t)n;
        return text_n == 0 && n >= 1 && n <= (uint64_t)PARTS_MAX &&
               REQUEST_BYTES + n * PART_BYTES == head.meta_bytes;
    }
    const char* part(int64_t i) const { return head.meta + REQUEST_BYTES + i * PART_BYTES; }
    int64_t count(int64_t i) const { return get<uint32_t>(part(i) + 32); }
    uint64_t elements(int64_t i) const { return get<uint64_t>(part(i) + 36); }

    PyObject* plan_in(PyObject* plans) const {
        Owned meant(PyBytes_FromStringAndSize(head.meta, MEANT_BYTES));
        PyObject* plan = meant ? PyDict_GetItemWithError(plans, meant.get()) : nullptr;
        return plan != nullptr && PyDict_Check(plan) ? plan : nullptr;
    }
};

// The keys of a request where they are aligned.
class AlignedKeys {
   public:
    explicit AlignedKeys(const Head& head) {
        const size_t bytes = 8 * head.keys;
        memory_ = bytes <= (size_t)FEW_KEYS_BYTES ? few_ : (uint64_t*)malloc(bytes);
        if (memory_ != nullptr) memcpy(memory_, head.payload, bytes);
    }
    ~AlignedKeys() {
        if (memory_ != few_) free(memory_);
    }
    const uint64_t* get() const { return memory_; }

   private:
    uint64_t few_[FEW_KEYS_BYTES / 8];
    uint64_t* memory_;
};

// What of a shard a plan knows: where it stands, if that is not behind what was seen of it, and the
// arrays of its table.
bool look_up(PyObject* plan, const char* part, Place* place, Owned* arrays) {
    Owned number_of(number(get<uint32_t>(part)));
    PyObject* held = number_of ? PyDict_GetItemWithError(plan, number_of.get()) : nullptr;
    if (held == nullptr || !PyTuple_Check(held) || PyTuple_GET_SIZE(held) != 3) return false;
    Owned position(PyObject_GetAttr(PyTuple_GET_ITEM(held, 0), position_name));
    arrays->reset(PyObject_GetAttr(PyTuple_GET_ITEM(held, 1), pull_arrays_name));
    Place seen;
    seen.read(part + 4);
    return position && place->read(position.get()) && !place->is_before(seen) && *arrays &&
           PyTuple_Check(arrays->get());
}

int code_of(char letter) {
    for (int c = 1; c < DTYPES_MAX; c++)
        if (words.dtypes[c] != nullptr && words.letters[c] == letter) return c;
    return 0;
}

// The head and meta of an answer: what all shards say.
struct Said {
    Place places[PARTS_MAX];
    int64_t elements[PARTS_MAX];
    int code = 0;  // of the dtype
    int64_t bytes = 0;

    int64_t head_bytes(const Asked& asked) const {
        return HEAD_BYTES + ANSWER_BYTES + asked.parts_n * PART_ANSWER_BYTES;
    }

    char* pack(const Asked& asked, char* at) const {
        const int64_t meta_bytes = ANSWER_BYTES + asked.parts_n * PART_ANSWER_BYTES;
        at = put_head(at, words.answer_kind, code, meta_bytes, 0, bytes, asked.head.request);
        at = put<uint32_t>(at, (uint32_t)asked.parts_n);
        for (int64_t i = 0; i < asked.parts_n; i++) {
            at = put<uint32_t>(at, get<uint32_t>(asked.part(i)));
            at = put<uint8_t>(at, 0);  // Status.OK
            at = put<uint64_t>(at, places[i].incarnation);
            at = put<uint64_t>(at, places[i].counter);
            at = put<uint64_t>(at, places[i].lsn);
            at = put<uint64_t>(at, 0);  // value
            at = put<uint32_t>(at, (uint32_t)asked.count(i));
            at = put<uint64_t>(at, (uint64_t)elements[i]);
            at = put<uint32_t>(at, 0);  // text
        }
        return at;
    }
};

// Rows that shards have, if their tables are as they should be.
struct Rows {
    Said said;
    Pull pull;
    int dtype;

    bool open(const Asked& asked, PyObject* plan) {
        int64_t keys_n = 0;
        for (int64_t i = 0; i < asked.parts_n; i++) {
            if (asked.elements(i) != 0 || !open_part(asked.part(i), plan, i)) return false;
            const TableArrays& table = pull.parts[i].arrays;
            if (i > 0 && table.dtype != dtype) return false;
            dtype = table.dtype;
            said.elements[i] = asked.count(i) * table.table.meta[DIM];
            said.bytes += said.elements[i] * table.slab.itemsize();
            keys_n += asked.count(i);
        }
        said.code = code_of(pull.parts[0].arrays.slab.letter());
        return keys_n == (int64_t)asked.head.keys && said.code > 0;
    }

    bool open_part(const char* part, PyObject* plan, int64_t i) {
        Owned arrays;
        if (!look_up(plan, part, &said.places[i], &arrays) ||
            PyTuple_GET_SIZE(arrays.get()) != SPARSE_ARRAYS)
            return false;
        TableArrays& table = pull.parts[i].arrays;
        return table.open(PyTuple_GET_ITEM(arrays.get(), 0), PyTuple_GET_ITEM(arrays.get(), 1),
                          PyTuple_GET_ITEM(arrays.get(), 2)) &&
               table.open_hyper(PyTuple_GET_ITEM(arrays.get(), 3));
    }

    void fill(const Asked& asked, const uint64_t* keys, char* out) {
        for (int64_t i = 0; i < asked.parts_n; i++) {
            const int64_t count = asked.count(i);
            pull.add(keys, count, out);
            keys += count;
            out += count * pull.parts[i].row_bytes();
        }
        pull.run();
    }
};

// [the bytes of the answer], or None
PyObject* answer_rows(const Asked& asked, PyObject* plan, uint64_t values_max) {
    Rows rows;
    if (!rows.open(asked, plan) || (uint64_t)rows.said.bytes > values_max) return leave_it();
    AlignedKeys keys(asked.head);
    Room room;
    if (keys.get() == nullptr) return PyErr_NoMemory();
    if (!room.make(rows.said.head_bytes(asked), rows.said.bytes)) return nullptr;
    rows.fill(asked, keys.get(), rows.said.pack(asked, room.at));
    return Py_BuildValue("[O]", room.view.get());
}

// Blocks that stand one behind the other on their shards, as views of bytes behind what `list`
// holds.
struct Blocks {
    Said said;

    bool open(const Asked& asked, PyObject* plan, PyObject* list) {
        const char* keys = asked.head.payload;
        int64_t keys_n = 0;
        for (int64_t i = 0; i < asked.parts_n; i++) {
            keys_n += asked.count(i);
            if (keys_n > (int64_t)asked.head.keys || asked.elements(i) != 0 ||
                !open_part(asked.part(i), keys, asked.count(i), plan, i, list))
                return false;
            keys += 8 * asked.count(i);
        }
        return keys_n == (int64_t)asked.head.keys;
    }

    bool open_part(
        const char* part, const char* keys, int64_t count, PyObject* plan, int64_t i,
        PyObject* list) {
        Owned arrays;
        if (count < 1 || !look_up(plan, part, &said.places[i], &arrays) ||
            PyTuple_GET_SIZE(arrays.get()) != DENSE_ARRAYS)
            return false;
        PyObject* values = PyTuple_GET_ITEM(arrays.get(), 0);
        const int64_t first_block = PyLong_AsLongLong(PyTuple_GET_ITEM(arrays.get(), 1));
        const int64_t per_block = PyLong_AsLongLong(PyTuple_GET_ITEM(arrays.get(), 2));
        const Py_ssize_t size = PyObject_Length(values);
        const uint64_t first_key = get<uint64_t>(keys);
        if (PyErr_Occurred() || per_block < 1 || first_key > (uint64_t)INT64_MAX / 2)
            return false;
        for (int64_t k = 1; k < count; k++)
            if (get<uint64_t>(keys + 8 * k) != first_key + (uint64_t)k) return false;
        const int64_t from = (int64_t)first_key - first_block, to = from + count;
        if (from < 0 || to > (size + per_block - 1) / per_block) return false;
        return lend(values, from * per_block, to * per_block < size ? to * per_block : size, i, list);
    }

    bool lend(PyObject* values, int64_t from, int64_t to, int64_t i, PyObject* list) {
        Owned lent(PySequence_GetSlice(values, (Py_ssize_t)from, (Py_ssize_t)to));
        Owned view(lent ? PyMemoryView_FromObject(lent.get()) : nullptr);
        if (!view) return false;
        const Py_buffer* buffer = PyMemoryView_GET_BUFFER(view.get());
        const int code = code_of(buffer->format ? buffer->format[0] : 'B');
        if (code == 0 || (i > 0 && code != said.code)) return false;
        said.code = code;
        said.elements[i] = to - from;
        said.bytes += buffer->len;
        Owned bytes(PyObject_CallMethod(view.get(), "cast", "s", "B"));
        return bytes && PyList_Append(list, bytes.get()) == 0;
    }
};

// [the bytes of the answer before its values, these], or None
PyObject* answer_blocks(const Asked& asked, PyObject* plan, uint64_t values_max) {
    Blocks blocks;
    Owned list(PyList_New(1)), head(PyBytes_FromStringAndSize(
        nullptr, (Py_ssize_t)blocks.said.head_bytes(asked)));
    if (!list || !head) return nullptr;
    char* at = PyBytes_AS_STRING(head.get());
    PyList_SET_ITEM(list.get(), 0, head.release());
    if (!blocks.open(asked, plan, list.get()) || (uint64_t)blocks.said.bytes > values_max)
        return leave_it();
    blocks.said.pack(asked, at);
    return list.release();
}

// Are the plan's tables dense?
bool lends(PyObject* plan, const Asked& asked) {
    Place place;
    Owned arrays;
    return look_up(plan, asked.part(0), &place, &arrays) &&
           PyTuple_GET_SIZE(arrays.get()) == DENSE_ARRAYS;
}

// answer_pull(scratch, lo, hi, meta_limit, payload_limit, plans, values_max, lent_max) -> the
// buffers of the answer, or None
PyObject* answer_pull(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 8, "answer_pull")) return nullptr;
    Received received;
    uint64_t values_max, lent_max;
    if (!received.open(args)) return nullptr;
    Asked asked(received);
    if (!PyDict_Check(args[5]) || !as_number(args[6], INT64_MAX, &values_max) ||
        !as_number(args[7], INT64_MAX, &lent_max) || !asked.is_plain(received))
        return leave_it();
    PyObject* plan = asked.plan_in(args[5]);
    if (plan == nullptr) return leave_it();
    return lends(plan, asked) ? answer_blocks(asked, plan, lent_max)
                              : answer_rows(asked, plan, values_max);
}

PyMethodDef methods[] = {
    {"answer_pull", (PyCFunction)(void (*)(void))answer_pull, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_answering(PyObject* module) {
    position_name = PyUnicode_InternFromString("position");
    pull_arrays_name = PyUnicode_InternFromString("pull_arrays");
    return position_name != nullptr && pull_arrays_name != nullptr &&
           PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace resilient_ps
