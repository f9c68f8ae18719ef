// Requests and answers as bytes, and back: the quick way for what is common. What a frame looks
// like stands in resilient_ps/framing.py and frames.py.
//
// Whatever is not common is left to the Python code, by answering None: frames of other kinds, those
// of which not even the meta has arrived, and everything that is wrong. So errors are found and
// worded in one place. Numbers travel little-endian; elsewhere the quick way is not offered.

#include "codec.h"

#include "frames.h"

#include <structmember.h>
#include <string.h>

namespace resilient_ps {

Vocabulary words;

namespace {

const int64_t JOINED_BYTES = 64 * 1024;  // up to here arrays are copied into one piece
const int PIECES_MAX = 1024;

#define NAMES(X) \
    X(kind) X(request) X(parts) X(incarnation) X(worker) X(clock) X(n) X(table) X(wait_ns) \
    X(rate) X(settled) X(text) X(keys) X(values) X(dtype) X(size)
#define DECLARE(name) PyObject* name;
struct {
    NAMES(DECLARE)
} names;

// ------------------------------------------------------------------------------------ encode

bool number_of(PyObject* object, PyObject* name, uint64_t most, uint64_t* out) {
    Owned value(PyObject_GetAttr(object, name));
    return as_number(value.get(), most, out);
}

// Arrays of a message: their bytes, and the code of their common dtype.
class Arrays {
   public:
    bool add(PyObject* array, PyObject* expected_dtype) {
        if (count_ == PIECES_MAX) return false;
        Owned dtype(PyObject_GetAttr(array, names.dtype));
        if (!dtype) return false;
        if (dtype.get() != expected_dtype) {
            int same = PyObject_RichCompareBool(dtype.get(), expected_dtype, Py_EQ);
            if (same != 1) return false;
        }
        Py_buffer& view = views_[count_];
        if (PyObject_GetBuffer(array, &view, PyBUF_SIMPLE) != 0) return false;
        objects_[count_++] = array;
        bytes_ += view.len;
        return true;
    }
    ~Arrays() {
        for (int i = 0; i < count_; i++) PyBuffer_Release(&views_[i]);
    }
    int64_t bytes() const { return bytes_; }

    char* copy_to(char* out) const {
        for (int i = 0; i < count_; i++) {
            memcpy(out, views_[i].buf, views_[i].len);
            out += views_[i].len;
        }
        return out;
    }

    // A memoryview of bytes of each array that is not empty, behind what `list` holds.
    bool append_to(PyObject* list) const {
        for (int i = 0; i < count_; i++) {
            if (views_[i].len == 0) continue;
            Owned view(PyMemoryView_FromObject(objects_[i]));
            if (!view) return false;
            Owned bytes(PyObject_CallMethod(view.get(), "cast", "s", "B"));
            if (!bytes || PyList_Append(list, bytes.get()) != 0) return false;
        }
        return true;
    }

   private:
    Py_buffer views_[PIECES_MAX];
    PyObject* objects_[PIECES_MAX];
    int count_ = 0;
    int64_t bytes_ = 0;
};

// The code of the dtype of these arrays; 0 where there are none, -1 where they cannot travel.
int add_values(PyObject* values, Arrays* arrays) {
    if (!PyTuple_Check(values)) return -1;
    const Py_ssize_t n = PyTuple_GET_SIZE(values);
    if (n == 0) return 0;
    Owned dtype(PyObject_GetAttr(PyTuple_GET_ITEM(values, 0), names.dtype));
    int code = 0;
    if (!dtype) return -1;
    for (int i = 1; i < DTYPES_MAX; i++)
        if (dtype.get() == words.dtypes[i]) code = i;
    for (int i = 1; code == 0 && i < DTYPES_MAX && words.dtypes[i] != nullptr; i++)
        if (PyObject_RichCompareBool(dtype.get(), words.dtypes[i], Py_EQ) == 1) code = i;
    if (code == 0) return -1;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!arrays->add(PyTuple_GET_ITEM(values, i), words.dtypes[code])) return -1;
    return code;
}

// Buffers of a frame: `meta` is packed by the caller behind the head, into what this returns first.
struct Frame {
    Owned bytes;
    char* meta;
    char* payload;  // null: the arrays are referenced

    bool start(
        int kind, int dtype, int64_t meta_bytes, uint64_t keys, int64_t value_bytes,
        uint64_t request, int64_t payload_bytes) {
        if (meta_bytes > (int64_t)U32 || keys > U32) return false;
        const bool joined = payload_bytes <= JOINED_BYTES;
        bytes.reset(PyBytes_FromStringAndSize(
            nullptr, HEAD_BYTES + meta_bytes + (joined ? payload_bytes : 0)));
        if (!bytes) return false;
        char* at = PyBytes_AS_STRING(bytes.get());
        meta = put_head(at, kind, dtype, meta_bytes, keys, value_bytes, request);
        payload = joined ? meta + meta_bytes : nullptr;
        return true;
    }

    PyObject* buffers(const Arrays& keys, const Arrays& values) {
        Owned list(PyList_New(1));
        if (!list) return nullptr;
        PyList_SET_ITEM(list.get(), 0, bytes.release());
        if (payload != nullptr)
            values.copy_to(keys.copy_to(payload));
        else if (!keys.append_to(list.get()) || !values.append_to(list.get()))
            return nullptr;
        return list.release();
    }
};

bool pack_part(char*& at, PyObject* part) {
    uint64_t shard, incarnation, counter, lsn, prev, count, elements;
    if (!is_tuple_of(part, words.part, 5) ||
        !as_number(PyTuple_GET_ITEM(part, 0), U32, &shard) ||
        !position_of(PyTuple_GET_ITEM(part, 1), &incarnation, &counter, &lsn) ||
        !as_number(PyTuple_GET_ITEM(part, 2), U32, &prev) ||
        !as_number(PyTuple_GET_ITEM(part, 3), U32, &count) ||
        !as_number(PyTuple_GET_ITEM(part, 4), U64, &elements))
        return false;
    at = put<uint32_t>(at, (uint32_t)shard);
    at = put<uint64_t>(at, incarnation);
    at = put<uint64_t>(at, counter);
    at = put<uint64_t>(at, lsn);
    at = put<uint32_t>(at, (uint32_t)prev);
    at = put<uint32_t>(at, (uint32_t)count);
    at = put<uint64_t>(at, elements);
    return true;
}

// encode_request(message) -> list of buffers, or None
PyObject* encode_request(PyObject*, PyObject* message) {
    if (!words.complete || Py_TYPE(message) != (PyTypeObject*)words.request) return leave_it();
    uint64_t kind, request, incarnation, clock, n, table, wait_ns, job, rank, worker_incarnation;
    Owned parts(PyObject_GetAttr(message, names.parts));
    Owned worker(PyObject_GetAttr(message, names.worker));
    Owned rate(PyObject_GetAttr(message, names.rate));
    Owned settled(PyObject_GetAttr(message, names.settled));
    Owned text(PyObject_GetAttr(message, names.text));
    Owned keys(PyObject_GetAttr(message, names.keys));
    Owned values(PyObject_GetAttr(message, names.values));
    if (!parts || !worker || !rate || !settled || !text || !keys || !values ||
        !number_of(message, names.kind, 255, &kind) ||
        !number_of(message, names.request, U64, &request) ||
        !number_of(message, names.incarnation, U64, &incarnation) ||
        !number_of(message, names.clock, U64, &clock) ||
        !number_of(message, names.n, U32, &n) || !number_of(message, names.table, U32, &table) ||
        !number_of(message, names.wait_ns, U64, &wait_ns) ||
        !is_tuple_of(worker.get(), words.worker, 3) ||
        !as_number(PyTuple_GET_ITEM(worker.get(), 0), U32, &job) ||
        !as_number(PyTuple_GET_ITEM(worker.get(), 1), U32, &rank) ||
        !as_number(PyTuple_GET_ITEM(worker.get(), 2), U64, &worker_incarnation) ||
        !PyTuple_Check(parts.get()) || !PyFloat_Check(rate.get()) ||
        !PyBool_Check(settled.get()) || !PyBytes_Check(text.get()))
        return leave_it();
    Arrays key_arrays, value_arrays;
    if (!key_arrays.add(keys.get(), words.key_dtype)) return leave_it();
    const int dtype = add_values(values.get(), &value_arrays);
    const int64_t parts_n = PyTuple_GET_SIZE(parts.get()), text_n = PyBytes_GET_SIZE(text.get());
    Frame frame;
    if (dtype < 0 || !frame.start((int)kind, dtype, REQUEST_BYTES + parts_n * PART_BYTES + text_n,
                                  (uint64_t)key_arrays.bytes() / 8, value_arrays.bytes(), request,
                                  key_arrays.bytes() + value_arrays.bytes()))
        return leave_it();
    char* at = frame.meta;
    at = put<uint64_t>(at, incarnation);
    at = put<uint32_t>(at, (uint32_t)job);
    at = put<uint32_t>(at, (uint32_t)rank);
    at = put<uint64_t>(at, worker_incarnation);
    at = put<uint64_t>(at, clock);
    at = put<uint32_t>(at, (uint32_t)n);
    at = put<uint32_t>(at, (uint32_t)table);
    at = put<uint64_t>(at, wait_ns);
    at = put<double>(at, PyFloat_AS_DOUBLE(rate.get()));
    at = put<uint8_t>(at, settled.get() == Py_True);
    at = put<uint32_t>(at, (uint32_t)parts_n);
    at = put<uint32_t>(at, (uint32_t)text_n);
    for (Py_ssize_t i = 0; i < parts_n; i++)
        if (!pack_part(at, PyTuple_GET_ITEM(parts.get(), i))) return leave_it();
    memcpy(at, PyBytes_AS_STRING(text.get()), text_n);
    return frame.buffers(key_arrays, value_arrays);
}

bool pack_part_answer(char*& at, PyObject* part) {
    uint64_t shard, status, incarnation, counter, lsn, value, count, elements;
    if (!as_number(PyTuple_GET_ITEM(part, 0), U32, &shard) ||
        !as_number(PyTuple_GET_ITEM(part, 1), 255, &status) ||
        !position_of(PyTuple_GET_ITEM(part, 2), &incarnation, &counter, &lsn) ||
        !as_number(PyTuple_GET_ITEM(part, 3), U64, &value) ||
        !as_number(PyTuple_GET_ITEM(part, 4), U32, &count) ||
        !as_number(PyTuple_GET_ITEM(part, 5), U64, &elements))
        return false;
    at = put<uint32_t>(at, (uint32_t)shard);
    at = put<uint8_t>(at, (uint8_t)status);
    at = put<uint64_t>(at, incarnation);
    at = put<uint64_t>(at, counter);
    at = put<uint64_t>(at, lsn);
    at = put<uint64_t>(at, value);
    at = put<uint32_t>(at, (uint32_t)count);
    at = put<uint64_t>(at, elements);
    at = put<uint32_t>(at, (uint32_t)PyBytes_GET_SIZE(PyTuple_GET_ITEM(part, 6)));
    return true;
}

// encode_answer(message) -> list of buffers, or None
PyObject* encode_answer(PyObject*, PyObject* message) {
    if (!words.complete || Py_TYPE(message) != (PyTypeObject*)words.answer) return leave_it();
    uint64_t request;
    Owned parts(PyObject_GetAttr(message, names.parts));
    Owned values(PyObject_GetAttr(message, names.values));
    if (!parts || !values || !number_of(message, names.request, U64, &request) ||
        !PyTuple_Check(parts.get()))
        return leave_it();
    const Py_ssize_t parts_n = PyTuple_GET_SIZE(parts.get());
    int64_t texts_n = 0;
    for (Py_ssize_t i = 0; i < parts_n; i++) {
        PyObject* part = PyTuple_GET_ITEM(parts.get(), i);
        if (!is_tuple_of(part, words.part_answer, 7) || !PyBytes_Check(PyTuple_GET_ITEM(part, 6)))
            return leave_it();
        texts_n += PyBytes_GET_SIZE(PyTuple_GET_ITEM(part, 6));
    }
    Arrays no_keys, arrays;
    const int dtype = add_values(values.get(), &arrays);
    Frame frame;
    if (dtype < 0 ||
        !frame.start(words.answer_kind, dtype,
                     ANSWER_BYTES + parts_n * PART_ANSWER_BYTES + texts_n, 0, arrays.bytes(),
                     request, arrays.bytes()))
        return leave_it();
    char* at = put<uint32_t>(frame.meta, (uint32_t)parts_n);
    for (Py_ssize_t i = 0; i < parts_n; i++)
        if (!pack_part_answer(at, PyTuple_GET_ITEM(parts.get(), i))) return leave_it();
    for (Py_ssize_t i = 0; i < parts_n; i++) {
        PyObject* text = PyTuple_GET_ITEM(PyTuple_GET_ITEM(parts.get(), i), 6);
        memcpy(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text));
        at += PyBytes_GET_SIZE(text);
    }
    return frame.buffers(no_keys, arrays);
}

// ------------------------------------------------------------------------------------ decode

// A new array whose content is still to come.
PyObject* empty_array(uint64_t elements, PyObject* dtype) {
    Owned count(number(elements));
    PyObject* args[] = {count.get(), dtype};
    if (!count) return nullptr;
    return PyObject_Vectorcall(words.make_array, args, 2, nullptr);
}

// A new array with these bytes.
PyObject* new_array(uint64_t elements, PyObject* dtype, const char* bytes, uint64_t bytes_n) {
    Owned array(empty_array(elements, dtype));
    if (!array) return nullptr;
    Py_buffer view;
    if (PyObject_GetBuffer(array.get(), &view, PyBUF_SIMPLE | PyBUF_WRITABLE) != 0) return nullptr;
    memcpy(view.buf, bytes, bytes_n);
    PyBuffer_Release(&view);
    return array.release();
}

PyObject* values_as_tuple(const Head& head) {
    if (head.value_bytes == 0) return Py_NewRef(words.empty_tuple);
    const char* bytes = head.payload + 8 * head.keys;
    Owned values(new_array(head.elements(), words.dtypes[head.dtype], bytes, head.value_bytes));
    return values ? PyTuple_Pack(1, values.get()) : nullptr;
}

// Of a request, with the arrays that it has, or will have. Takes the references over. None: it is
// malformed. Null: an error of Python's.
PyObject* decode_request(const Head& head, PyObject* keys_of, PyObject* values_of) {
    Owned keys(keys_of), values(values_of);
    if (!keys || !values) return nullptr;
    if (head.meta_bytes < (uint64_t)REQUEST_BYTES) return leave_it();
    const char* meta = head.meta;
    const uint64_t parts_n = get<uint32_t>(meta + 57), text_n = get<uint32_t>(meta + 61);
    if (REQUEST_BYTES + parts_n * PART_BYTES + text_n != head.meta_bytes) return leave_it();
    Owned parts(PyTuple_New((Py_ssize_t)parts_n));
    if (!parts) return nullptr;
    uint64_t counts = 0, elements = 0;
    Positions positions;
    const char* at = meta + REQUEST_BYTES;
    for (uint64_t i = 0; i < parts_n; i++, at += PART_BYTES) {
        const uint64_t part_elements = get<uint64_t>(at + 36);
        if (part_elements > head.value_bytes) return leave_it();
        counts += get<uint32_t>(at + 32);
        elements += part_elements;
        PyObject* position =
            positions.make(get<uint64_t>(at + 4), get<uint64_t>(at + 12), get<uint64_t>(at + 20));
        PyObject* part = new_tuple(
            words.part, number(get<uint32_t>(at)), position, number(get<uint32_t>(at + 28)),
            number(get<uint32_t>(at + 32)), number(part_elements));
        if (part == nullptr) return nullptr;
        PyTuple_SET_ITEM(parts.get(), (Py_ssize_t)i, part);
    }
    if (counts != head.keys || elements != head.elements()) return leave_it();
    Owned worker(new_tuple(
        words.worker, number(get<uint32_t>(meta + 8)), number(get<uint32_t>(meta + 12)),
        number(get<uint64_t>(meta + 16))));
    Owned request(number(head.request)), incarnation(number(get<uint64_t>(meta)));
    Owned clock(number(get<uint64_t>(meta + 24))), n(number(get<uint32_t>(meta + 32)));
    Owned table(number(get<uint32_t>(meta + 36))), wait_ns(number(get<uint64_t>(meta + 40)));
    Owned rate(PyFloat_FromDouble(get<double>(meta + 48)));
    Owned text(text_n ? PyBytes_FromStringAndSize(at, (Py_ssize_t)text_n)
                      : Py_NewRef(words.empty_bytes));
    PyObject* args[] = {
        words.kinds[head.kind], request.get(), parts.get(), incarnation.get(), worker.get(),
        clock.get(), n.get(), table.get(), wait_ns.get(), rate.get(),
        meta[56] ? Py_True : Py_False, text.get(), keys.get(), values.get(),
    };
    for (PyObject* argument : args)
        if (argument == nullptr) return nullptr;
    return PyObject_Vectorcall(words.request, args, 14, nullptr);
}

// The parts of an answer as a tuple. None: malformed. Null: an error of Python's.
PyObject* decode_part_answers(const Head& head) {
    if (head.meta_bytes < (uint64_t)ANSWER_BYTES || head.keys) return leave_it();
    const uint64_t parts_n = get<uint32_t>(head.meta);
    if (ANSWER_BYTES + parts_n * PART_ANSWER_BYTES > head.meta_bytes) return leave_it();
    Owned parts(PyTuple_New((Py_ssize_t)parts_n));
    if (!parts) return nullptr;
    const char* at = head.meta + ANSWER_BYTES;
    const char* text_at = at + parts_n * PART_ANSWER_BYTES;
    const char* end = head.meta + head.meta_bytes;
    uint64_t elements = 0;
    Positions positions;
    for (uint64_t i = 0; i < parts_n; i++, at += PART_ANSWER_BYTES) {
        const int status = (uint8_t)at[4];
        const uint64_t part_elements = get<uint64_t>(at + 41), text_n = get<uint32_t>(at + 49);
        if (status >= STATUSES_MAX || words.statuses[status] == nullptr ||
            text_n > (uint64_t)(end - text_at) || part_elements > head.value_bytes)
            return leave_it();
        elements += part_elements;
        PyObject* position =
            positions.make(get<uint64_t>(at + 5), get<uint64_t>(at + 13), get<uint64_t>(at + 21));
        PyObject* text = text_n ? PyBytes_FromStringAndSize(text_at, (Py_ssize_t)text_n)
                                : Py_NewRef(words.empty_bytes);
        text_at += text_n;
        PyObject* part = new_tuple(
            words.part_answer, number(get<uint32_t>(at)), Py_NewRef(words.statuses[status]),
            position, number(get<uint64_t>(at + 29)), number(get<uint32_t>(at + 37)),
            number(part_elements), text);
        if (part == nullptr) return nullptr;
        PyTuple_SET_ITEM(parts.get(), (Py_ssize_t)i, part);
    }
    if (text_at != end || elements != head.elements()) return leave_it();
    return parts.release();
}

// Copies the values where `place` wants them: 1. 0: it wants them nowhere. -1: they do not fit, or
// an error of Python's is set.
int place_values(const Head& head, PyObject* parts, PyObject* place) {
    Owned request(number(head.request));
    PyObject* args[] = {request.get(), parts};
    if (!request) return -1;
    Owned views(PyObject_Vectorcall(place, args, 2, nullptr));
    if (!views) return -1;
    if (views.get() == Py_None) return 0;
    if (!PyList_Check(views.get())) return -1;
    uint64_t room = 0;
    const Py_ssize_t views_n = PyList_GET_SIZE(views.get());
    for (Py_ssize_t i = 0; i < views_n; i++) {
        PyObject* view = PyList_GET_ITEM(views.get(), i);
        if (!PyMemoryView_Check(view)) return -1;
        const Py_buffer* buffer = PyMemoryView_GET_BUFFER(view);
        if (buffer->readonly || !PyBuffer_IsContiguous(buffer, 'C')) return -1;
        room += (uint64_t)buffer->len;
    }
    if (room != head.value_bytes) return -1;
    const char* from = head.payload;
    for (Py_ssize_t i = 0; i < views_n; i++) {
        const Py_buffer* buffer = PyMemoryView_GET_BUFFER(PyList_GET_ITEM(views.get(), i));
        memcpy(buffer->buf, from, (size_t)buffer->len);
        from += buffer->len;
    }
    return 1;
}

PyObject* decode_whole_request(const Head& head) {
    PyObject* keys = head.keys ? new_array(head.keys, words.key_dtype, head.payload, 8 * head.keys)
                               : Py_NewRef(words.no_keys);
    return decode_request(head, keys, values_as_tuple(head));
}

PyObject* decode_answer(const Head& head, PyObject* place) {
    Owned parts(decode_part_answers(head));
    if (!parts || parts.get() == Py_None) return parts.release();
    Owned values;
    PyObject* placed = Py_False;
    if (head.value_bytes) {
        const int where = place_values(head, parts.get(), place);
        if (where < 0) return PyErr_Occurred() ? nullptr : leave_it();
        if (where == 1) placed = Py_True;
    }
    values.reset(placed == Py_True ? Py_NewRef(words.empty_tuple) : values_as_tuple(head));
    Owned request(number(head.request));
    PyObject* args[] = {request.get(), parts.get(), values.get(), placed};
    if (!values || !request) return nullptr;
    return PyObject_Vectorcall(words.answer, args, 4, nullptr);
}

// take(scratch, lo, hi, meta_limit, payload_limit, place) -> (message, new lo), or None
PyObject* take(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (nargs != 6) {
        PyErr_SetString(PyExc_TypeError, "take(memoryview, lo, hi, limit, limit, place)");
        return nullptr;
    }
    Received received;
    if (!received.open(args)) return nullptr;
    const Head& head = received.head;
    if (!received.begins || head.frame_bytes() > received.hi - received.lo) Py_RETURN_NONE;
    PyObject* message = head.kind == words.answer_kind ? decode_answer(head, args[5])
                                                       : decode_whole_request(head);
    if (message == nullptr || message == Py_None) return message;
    return new_tuple(
        (PyObject*)&PyTuple_Type, message, number(received.lo + head.frame_bytes()));
}

// begin(scratch, lo, hi, meta_limit, payload_limit) -> (message, new lo, payload bytes, arrays);
// None; or False: it is a pull, and had better be received into the scratch as a whole
PyObject* begin(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "begin(memoryview, lo, hi, limit, limit)");
        return nullptr;
    }
    Received received;
    if (!received.open(args)) return nullptr;
    const Head& head = received.head;
    if (!received.begins || head.payload_bytes() == 0 || head.kind == words.answer_kind)
        Py_RETURN_NONE;
    if (head.kind == words.pull_kind &&
        head.frame_bytes() <= (uint64_t)PyMemoryView_GET_BUFFER(args[0])->len) {
        if (head.frame_bytes() > received.hi - received.lo) Py_RETURN_FALSE;
        Py_RETURN_NONE;  // it is there as a whole, and `take` has left it
    }
    Owned keys(head.keys ? empty_array(head.keys, words.key_dtype) : Py_NewRef(words.no_keys));
    Owned values(
        head.value_bytes ? empty_array(head.elements(), words.dtypes[head.dtype]) : nullptr);
    if (!keys || (head.value_bytes && !values)) return nullptr;
    Owned tuple(values ? PyTuple_Pack(1, values.get()) : Py_NewRef(words.empty_tuple));
    Owned arrays(values ? PyTuple_Pack(2, keys.get(), values.get()) : PyTuple_Pack(1, keys.get()));
    if (!arrays) return nullptr;
    Owned message(decode_request(head, Py_NewRef(keys.get()), tuple.release()));
    if (!message || message.get() == Py_None) return message.release();
    return new_tuple(
        (PyObject*)&PyTuple_Type, message.release(),
        number(received.lo + HEAD_BYTES + head.meta_bytes), number(head.payload_bytes()),
        arrays.release());
}

// ------------------------------------------------------------------------------------ set-up

bool keep(PyObject* from, const char* name, PyObject** to) {
    PyObject* object = PyDict_GetItemString(from, name);
    if (object == nullptr) {
        PyErr_Format(PyExc_KeyError, "set_up: %s is missing", name);
        return false;
    }
    Py_XSETREF(*to, Py_NewRef(object));
    return true;
}

// `members` numbered by themselves, into `table`.
bool keep_members(PyObject* from, const char* name, PyObject** table, int most) {
    PyObject* members = PyDict_GetItemString(from, name);
    if (members == nullptr || !PyTuple_Check(members)) {
        PyErr_Format(PyExc_KeyError, "set_up: %s is missing", name);
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members); i++) {
        PyObject* member = PyTuple_GET_ITEM(members, i);
        uint64_t value;
        if (!as_number(member, (uint64_t)most - 1, &value)) {
            PyErr_Format(PyExc_ValueError, "set_up: %s has numbers beyond %d", name, most);
            return false;
        }
        Py_XSETREF(table[value], Py_NewRef(member));
    }
    return true;
}

bool keep_dtypes(PyObject* from) {
    PyObject* dtypes = PyDict_GetItemString(from, "dtypes");
    if (dtypes == nullptr || !PyTuple_Check(dtypes) || PyTuple_GET_SIZE(dtypes) > DTYPES_MAX) {
        PyErr_SetString(PyExc_KeyError, "set_up: dtypes are missing, or too many");
        return false;
    }
    for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(dtypes); i++) {
        PyObject* dtype = PyTuple_GET_ITEM(dtypes, i);
        Owned itemsize(PyObject_GetAttrString(dtype, "itemsize"));
        uint64_t bytes;
        if (!as_number(itemsize.get(), 64, &bytes) || bytes == 0) return false;
        words.itemsizes[i] = (int64_t)bytes;
        Owned letter(PyObject_GetAttrString(dtype, "char"));
        const char* text = letter ? PyUnicode_AsUTF8(letter.get()) : nullptr;
        if (text == nullptr) return false;
        words.letters[i] = text[0];
        Py_XSETREF(words.dtypes[i], Py_NewRef(dtype));
    }
    return true;
}

bool keep_numbers(PyObject* from) {
    uint64_t version, answer_kind, pull_kind;
    PyObject* magic = PyDict_GetItemString(from, "magic");
    if (!as_number(PyDict_GetItemString(from, "version"), 255, &version) ||
        !as_number(PyDict_GetItemString(from, "answer_kind"), 255, &answer_kind) ||
        !as_number(PyDict_GetItemString(from, "pull_kind"), 255, &pull_kind) ||
        magic == nullptr || !PyBytes_Check(magic) || PyBytes_GET_SIZE(magic) != 4) {
        PyErr_SetString(PyExc_KeyError, "set_up: magic, version or a kind is missing");
        return false;
    }
    memcpy(words.magic, PyBytes_AS_STRING(magic), 4);
    words.version = (int)version;
    words.answer_kind = (int)answer_kind;
    words.pull_kind = (int)pull_kind;
    return true;
}

// set_up(words: dict) -> whether the quick way is offered on this machine
PyObject* set_up(PyObject*, PyObject* from) {
    if (!PyDict_Check(from)) {
        PyErr_SetString(PyExc_TypeError, "set_up takes a dict");
        return nullptr;
    }
#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    Py_RETURN_FALSE;
#endif
    words.complete = false;
    const struct {
        const char* name;
        PyObject** to;
    } types[] = {
        {"Request", &words.request}, {"Answer", &words.answer}, {"Part", &words.part},
        {"PartAnswer", &words.part_answer}, {"Position", &words.position},
        {"Epoch", &words.epoch}, {"WorkerId", &words.worker}, {"no_keys", &words.no_keys},
        {"key_dtype", &words.key_dtype}, {"make_array", &words.make_array},
        {"no_epoch", &words.no_epoch},
    };
    for (const auto& each : types)
        if (!keep(from, each.name, each.to)) return nullptr;
    const PyObject* tuples[] = {
        words.part, words.part_answer, words.position, words.epoch, words.worker};
    for (const PyObject* type : tuples)
        if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject*)type, &PyTuple_Type)) {
            PyErr_SetString(PyExc_TypeError, "set_up: a type of tuples is none");
            return nullptr;
        }
    if (!keep_members(from, "kinds", words.kinds, KINDS_MAX) ||
        !keep_members(from, "statuses", words.statuses, STATUSES_MAX) || !keep_dtypes(from) ||
        !keep_numbers(from))
        return nullptr;
    words.complete = true;
    Py_RETURN_TRUE;
}

PyMethodDef methods[] = {
    {"set_up", set_up, METH_O, nullptr},
    {"encode_request", encode_request, METH_O, nullptr},
    {"encode_answer", encode_answer, METH_O, nullptr},
    {"take", (PyCFunction)(void (*)(void))take, METH_FASTCALL, nullptr},
    {"begin", (PyCFunction)(void (*)(void))begin, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_codec(PyObject* module) {
#define INTERN(name) \
    if ((names.name = PyUnicode_InternFromString(#name)) == nullptr) return false;
    NAMES(INTERN)
    words.empty_bytes = PyBytes_FromStringAndSize("", 0);
    words.empty_tuple = PyTuple_New(0);
    return words.empty_bytes != nullptr && words.empty_tuple != nullptr &&
           PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace resilient_ps
