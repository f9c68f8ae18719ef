// What frames of requests and answers look like, and the objects of Python that they are made of:
// for codec.cpp and asking.cpp. See resilient_ps/framing.py and frames.py.

#ifndef RESILIENT_PS_FRAMES_H
#define RESILIENT_PS_FRAMES_H

#include "buffers.h"

#include <string.h>

namespace resilient_ps {

const int64_t HEAD_BYTES = 32, REQUEST_BYTES = 65, PART_BYTES = 44, ANSWER_BYTES = 4;
const int64_t PART_ANSWER_BYTES = 53;
const int KINDS_MAX = 64, STATUSES_MAX = 64, DTYPES_MAX = 8;
const uint64_t ALIGNMENT = 64;  // of the arrays in a frame: rows are whole lines of the cache
const uint64_t U32 = 0xFFFFFFFFu, U64 = ~0ull;

// Objects of Python that frames are made of; set once by `set_up`.
struct Vocabulary {
    bool complete;
    int version, answer_kind, pull_kind;
    int log_kinds[2];  // see log_codec.cpp
    PyObject *request, *answer, *part, *part_answer, *position, *epoch, *worker;  // types
    PyObject* kinds[KINDS_MAX];
    PyObject* statuses[STATUSES_MAX];
    PyObject* dtypes[DTYPES_MAX];
    int64_t itemsizes[DTYPES_MAX];
    char letters[DTYPES_MAX];  // of struct formats
    PyObject *no_keys, *empty_bytes, *empty_tuple, *key_dtype, *make_array, *no_epoch;
    char magic[4];
};

extern Vocabulary words;

template <class T>
inline T get(const char* at) {
    T value;
    memcpy(&value, at, sizeof(T));
    return value;
}

template <class T>
inline char* put(char* at, T value) {
    memcpy(at, &value, sizeof(T));
    return at + sizeof(T);
}

// A reference that is given up at the end of the scope.
class Owned {
   public:
    explicit Owned(PyObject* object = nullptr) : object_(object) {}
    ~Owned() { Py_XDECREF(object_); }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    PyObject* get() const { return object_; }
    PyObject* release() {
        PyObject* object = object_;
        object_ = nullptr;
        return object;
    }
    void reset(PyObject* object) {
        Py_XDECREF(object_);
        object_ = object;
    }
    explicit operator bool() const { return object_ != nullptr; }

   private:
    PyObject* object_;
};

inline PyObject* leave_it() {
    PyErr_Clear();
    Py_RETURN_NONE;
}

inline bool as_number(PyObject* object, uint64_t most, uint64_t* out) {
    if (object == nullptr || !PyLong_Check(object)) return false;
    *out = PyLong_AsUnsignedLongLong(object);
    if (*out == (uint64_t)-1 && PyErr_Occurred()) return false;
    return *out <= most;
}

inline bool is_tuple_of(PyObject* object, PyObject* type, Py_ssize_t size) {
    return Py_TYPE(object) == (PyTypeObject*)type && PyTuple_GET_SIZE(object) == size;
}

inline bool position_of(PyObject* object, uint64_t* incarnation, uint64_t* counter, uint64_t* lsn) {
    if (!is_tuple_of(object, words.position, 2)) return false;
    PyObject* epoch = PyTuple_GET_ITEM(object, 0);
    return is_tuple_of(epoch, words.epoch, 2) &&
           as_number(PyTuple_GET_ITEM(epoch, 0), U64, incarnation) &&
           as_number(PyTuple_GET_ITEM(epoch, 1), U64, counter) &&
           as_number(PyTuple_GET_ITEM(object, 1), U64, lsn);
}

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

// A frame's head; gives where its meta begins.
inline char* put_head(
    char* at, int kind, int dtype, int64_t meta_bytes, uint64_t keys, int64_t value_bytes,
    uint64_t request) {
    memcpy(at, words.magic, 4);
    at = put<uint8_t>(at + 4, (uint8_t)words.version);
    at = put<uint8_t>(at, (uint8_t)kind);
    at = put<uint8_t>(at, (uint8_t)dtype);
    at = put<uint8_t>(at, 0);
    at = put<uint32_t>(at, (uint32_t)meta_bytes);
    at = put<uint32_t>(at, (uint32_t)keys);
    at = put<uint64_t>(at, (uint64_t)value_bytes);
    return put<uint64_t>(at, request);
}

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

struct Head {
    int kind, dtype;
    uint64_t meta_bytes, keys, value_bytes, request;
    const char* meta;
    const char* payload;

    // Does a frame of a common kind begin here, with all of its meta? Nothing is wrong with the
    // head that this accepts.
    bool read(
        const char* at, uint64_t have, uint64_t meta_limit, uint64_t payload_limit, bool of_logs) {
        if (have < (uint64_t)HEAD_BYTES || memcmp(at, words.magic, 4) != 0 ||
            (uint8_t)at[4] != words.version)
            return false;
        kind = (uint8_t)at[5], dtype = (uint8_t)at[6];
        meta_bytes = get<uint32_t>(at + 8), keys = get<uint32_t>(at + 12);
        value_bytes = get<uint64_t>(at + 16), request = get<uint64_t>(at + 24);
        if (of_logs ? kind != words.log_kinds[0] && kind != words.log_kinds[1]
                    : kind != words.answer_kind &&
                          (kind >= KINDS_MAX || words.kinds[kind] == nullptr))
            return false;
        if (dtype >= DTYPES_MAX || (dtype > 0 && words.dtypes[dtype] == nullptr)) return false;
        if (value_bytes > payload_limit || 8 * keys + value_bytes > payload_limit ||
            meta_bytes > meta_limit)
            return false;
        if (value_bytes && (dtype == 0 || value_bytes % (uint64_t)words.itemsizes[dtype]))
            return false;
        meta = at + HEAD_BYTES;
        payload = meta + meta_bytes;
        return HEAD_BYTES + meta_bytes <= have;
    }

    uint64_t payload_bytes() const { return 8 * keys + value_bytes; }
    uint64_t frame_bytes() const { return HEAD_BYTES + meta_bytes + payload_bytes(); }

    uint64_t elements() const {
        return dtype == 0 ? 0 : value_bytes / (uint64_t)words.itemsizes[dtype];
    }
};

// A tuple of a NamedTuple's type; takes the references over, also when it fails.
template <class... Items>
inline PyObject* new_tuple(PyObject* type, Items... items) {
    PyObject* all[] = {items...};
    const Py_ssize_t n = (Py_ssize_t)(sizeof(all) / sizeof(all[0]));
    bool complete = true;
    for (PyObject* item : all) complete = complete && item != nullptr;
    PyObject* tuple = complete ? ((PyTypeObject*)type)->tp_alloc((PyTypeObject*)type, n) : nullptr;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (tuple != nullptr)
            PyTuple_SET_ITEM(tuple, i, all[i]);
        else
            Py_XDECREF(all[i]);
    }
    return tuple;
}

inline PyObject* number(uint64_t value) { return PyLong_FromUnsignedLongLong(value); }

// Positions of neighbouring parts mostly share their epoch.
class Positions {
   public:
    Positions() : epoch_(Py_NewRef(words.no_epoch)), incarnation_(0), counter_(0) {}
    PyObject* make(uint64_t incarnation, uint64_t counter, uint64_t lsn) {
        if (incarnation != incarnation_ || counter != counter_) {
            epoch_.reset(new_tuple(words.epoch, number(incarnation), number(counter)));
            incarnation_ = incarnation, counter_ = counter;
        }
        return new_tuple(words.position, Py_XNewRef(epoch_.get()), number(lsn));
    }

   private:
    Owned epoch_;
    uint64_t incarnation_, counter_;
};

// The arguments that `take` and `begin` have in common. False: an error of Python's is set.
struct Received {
    Head head = {};
    uint64_t lo, hi;
    bool begins;  // see Head::read
    bool of_logs = false;

    bool open(PyObject* const* args) {
        if (!PyMemoryView_Check(args[0])) {
            PyErr_SetString(PyExc_TypeError, "the scratch must be a memoryview");
            return false;
        }
        const Py_buffer* scratch = PyMemoryView_GET_BUFFER(args[0]);
        uint64_t meta_limit, payload_limit;
        if (!as_number(args[1], U64, &lo) || !as_number(args[2], U64, &hi) ||
            !as_number(args[3], U64, &meta_limit) || !as_number(args[4], U64, &payload_limit) ||
            lo > hi || hi > (uint64_t)scratch->len || !PyBuffer_IsContiguous(scratch, 'C')) {
            PyErr_SetString(PyExc_ValueError, "lo and hi must lie within the scratch");
            return false;
        }
        const char* at = (const char*)scratch->buf + lo;
        begins = words.complete && head.read(at, hi - lo, meta_limit, payload_limit, of_logs);
        return true;
    }
};

}  // namespace resilient_ps

#endif
