// A server's answer to a plain pull of a sparse table in one call: from the bytes of the request to
// the bytes of the answer. The bytes are those that decoding, asking the shards and encoding give.
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

// What the shards of a request say, if their tables are as they should be.
struct Answered {
    Pull pull;
    Place places[PARTS_MAX];
    int64_t elements[PARTS_MAX];
    int dtype, code;
    int64_t bytes;

    bool open(const Asked& asked, PyObject* plan) {
        int64_t keys_n = 0;
        bytes = 0;
        for (int64_t i = 0; i < asked.parts_n; i++) {
            if (asked.elements(i) != 0 || !open_part(asked.part(i), plan, i)) return false;
            const Buffer& slab = pull.parts[i].arrays.slab;
            if (i > 0 && pull.parts[i].arrays.dtype != dtype) return false;
            dtype = pull.parts[i].arrays.dtype;
            elements[i] = asked.count(i) * pull.parts[i].arrays.table.meta[DIM];
            bytes += elements[i] * slab.itemsize();
            keys_n += asked.count(i);
        }
        code = 0;
        for (int c = 1; c < DTYPES_MAX; c++)
            if (words.dtypes[c] != nullptr && words.letters[c] == pull.parts[0].arrays.slab.letter())
                code = c;
        return keys_n == (int64_t)asked.head.keys && code > 0;
    }

    bool open_part(const char* part, PyObject* plan, int64_t i) {
        Owned number_of(number(get<uint32_t>(part)));
        PyObject* held = number_of ? PyDict_GetItemWithError(plan, number_of.get()) : nullptr;
        if (held == nullptr || !PyTuple_Check(held) || PyTuple_GET_SIZE(held) != 3) return false;
        Owned position(PyObject_GetAttr(PyTuple_GET_ITEM(held, 0), position_name));
        Owned arrays(PyObject_GetAttr(PyTuple_GET_ITEM(held, 1), pull_arrays_name));
        Place seen;
        seen.read(part + 4);
        if (!position || !places[i].read(position.get()) || places[i].is_before(seen) || !arrays ||
            !PyTuple_Check(arrays.get()) || PyTuple_GET_SIZE(arrays.get()) != 4)
            return false;
        TableArrays& table = pull.parts[i].arrays;
        return table.open(PyTuple_GET_ITEM(arrays.get(), 0), PyTuple_GET_ITEM(arrays.get(), 1),
                          PyTuple_GET_ITEM(arrays.get(), 2)) &&
               table.open_hyper(PyTuple_GET_ITEM(arrays.get(), 3));
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

// answer_pull(scratch, lo, hi, meta_limit, payload_limit, plans, values_max) -> the bytes of
// the answer, or None
PyObject* answer_pull(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 7, "answer_pull")) return nullptr;
    Received received;
    uint64_t values_max;
    if (!received.open(args)) return nullptr;
    Asked asked(received);
    if (!PyDict_Check(args[5]) || !as_number(args[6], INT64_MAX, &values_max) ||
        !asked.is_plain(received))
        return leave_it();
    PyObject* plan = asked.plan_in(args[5]);
    if (plan == nullptr) return leave_it();
    Answered answered;
    if (!answered.open(asked, plan) || (uint64_t)answered.bytes > values_max) return leave_it();
    AlignedKeys keys(asked.head);
    Room room;
    const int64_t head_bytes = HEAD_BYTES + ANSWER_BYTES + asked.parts_n * PART_ANSWER_BYTES;
    if (keys.get() == nullptr) return PyErr_NoMemory();
    if (!room.make(head_bytes, answered.bytes)) return nullptr;
    answered.fill(asked, keys.get(), answered.pack(asked, room.at));
    return Py_NewRef(room.view.get());
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
