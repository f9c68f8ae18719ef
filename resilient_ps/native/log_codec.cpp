// Small frames between replicas as bytes, and back: entries that are appended, and the answers. What
// they look like stands in resilient_ps/log_frames.py; as in codec.cpp, whatever is not common is
// left to the Python code by answering None: large arrays, pieces of copies, everything wrong.

#include "log_codec.h"

#include "frames.h"

#include <new>

namespace resilient_ps {
namespace {

const int64_t APPEND_BYTES = 8, APPEND_PART_BYTES = 64, ENTRY_BYTES = 87;
const int64_t APPENDED_BYTES = 4, APPENDED_PART_BYTES = 37;
const int64_t SMALL_BYTES = 64 * 1024;  // of arrays: larger ones are not copied
const int ENTRIES_MAX = 256, HELDS_MAX = 64;

// Objects of Python that the messages are made of; set once by `set_up_log`.
struct {
    bool complete;
    int append_kind, appended_kind;
    PyObject *append, *append_part, *appended, *appended_part, *entry, *command;
    PyObject* commands[KINDS_MAX];
    PyObject* helds[HELDS_MAX];
    PyObject* empty[DTYPES_MAX];
} logs;

#define LOG_NAMES(X) \
    X(parts) X(kind) X(worker) X(clock) X(n) X(prev) X(table) X(rate) X(settled) X(text) X(keys) \
    X(values)
#define DECLARE(name) PyObject* name;
struct {
    LOG_NAMES(DECLARE)
} names;

bool number_of(PyObject* object, PyObject* name, uint64_t most, uint64_t* out) {
    Owned value(PyObject_GetAttr(object, name));
    return as_number(value.get(), most, out);
}

bool epoch_of(PyObject* object, uint64_t* incarnation, uint64_t* counter) {
    return is_tuple_of(object, words.epoch, 2) &&
           as_number(PyTuple_GET_ITEM(object, 0), U64, incarnation) &&
           as_number(PyTuple_GET_ITEM(object, 1), U64, counter);
}

// A frame without or with small arrays, whose meta is to be packed from `at` on.
struct Small {
    Owned bytes;
    char* at;

    bool start(int kind, int dtype, int64_t meta_bytes, int64_t keys, int64_t value_bytes) {
        if (meta_bytes > (int64_t)U32) return false;
        bytes.reset(PyBytes_FromStringAndSize(
            nullptr, HEAD_BYTES + meta_bytes + 8 * keys + value_bytes));
        if (!bytes) return false;
        at = PyBytes_AS_STRING(bytes.get());
        at = put_head(at, kind, dtype, meta_bytes, (uint64_t)keys, value_bytes, 0);
        return true;
    }
    PyObject* buffers() {
        PyObject* list = PyList_New(1);
        if (list != nullptr) PyList_SET_ITEM(list, 0, bytes.release());
        return list;
    }
};

// ------------------------------------------------------------------------------------ encode

struct EntryOut {
    Buffer keys, values;
    Owned text;
    int dtype;
    char fixed[ENTRY_BYTES];

    bool open(PyObject* object) {
        if (!is_tuple_of(object, logs.entry, 2)) return false;
        PyObject* command = PyTuple_GET_ITEM(object, 1);
        if (Py_TYPE(command) != (PyTypeObject*)logs.command) return false;
        uint64_t kind, incarnation, counter, lsn, job, rank, worker_incarnation, clock, n, prev;
        uint64_t table;
        Owned worker(PyObject_GetAttr(command, names.worker));
        Owned rate(PyObject_GetAttr(command, names.rate));
        Owned settled(PyObject_GetAttr(command, names.settled));
        Owned keys_of(PyObject_GetAttr(command, names.keys));
        Owned values_of(PyObject_GetAttr(command, names.values));
        text.reset(PyObject_GetAttr(command, names.text));
        if (!worker || !rate || !settled || !keys_of || !values_of || !text ||
            !position_of(PyTuple_GET_ITEM(object, 0), &incarnation, &counter, &lsn) ||
            !number_of(command, names.kind, 255, &kind) ||
            !is_tuple_of(worker.get(), words.worker, 3) ||
            !as_number(PyTuple_GET_ITEM(worker.get(), 0), U32, &job) ||
            !as_number(PyTuple_GET_ITEM(worker.get(), 1), U32, &rank) ||
            !as_number(PyTuple_GET_ITEM(worker.get(), 2), U64, &worker_incarnation) ||
            !number_of(command, names.clock, U64, &clock) ||
            !number_of(command, names.n, U32, &n) || !number_of(command, names.prev, U32, &prev) ||
            !number_of(command, names.table, U32, &table) || !PyFloat_Check(rate.get()) ||
            !PyBool_Check(settled.get()) || !PyBytes_Check(text.get()) ||
            !keys.open(keys_of.get(), "keys", UINT64_LETTERS) ||
            !values.open(values_of.get(), "values", ""))
            return false;
        dtype = 0;
        for (int i = 1; i < DTYPES_MAX; i++)
            if (words.dtypes[i] != nullptr && words.letters[i] == values.letter() &&
                words.itemsizes[i] == values.itemsize())
                dtype = i;
        if (dtype == 0 || keys.size() > (int64_t)U32) return false;
        char* at = fixed;
        at = put<uint8_t>(at, (uint8_t)kind);
        at = put<uint8_t>(at, settled.get() == Py_True);
        at = put<uint8_t>(at, (uint8_t)dtype);
        at = put<uint64_t>(at, incarnation);
        at = put<uint64_t>(at, counter);
        at = put<uint64_t>(at, lsn);
        at = put<uint32_t>(at, (uint32_t)job);
        at = put<uint32_t>(at, (uint32_t)rank);
        at = put<uint64_t>(at, worker_incarnation);
        at = put<uint64_t>(at, clock);
        at = put<uint32_t>(at, (uint32_t)n);
        at = put<uint32_t>(at, (uint32_t)prev);
        at = put<uint32_t>(at, (uint32_t)table);
        at = put<double>(at, PyFloat_AS_DOUBLE(rate.get()));
        at = put<uint32_t>(at, (uint32_t)PyBytes_GET_SIZE(text.get()));
        at = put<uint32_t>(at, (uint32_t)keys.size());
        at = put<uint64_t>(at, (uint64_t)values.size());
        return true;
    }
};

bool pack_append_part(char*& at, PyObject* part) {
    uint64_t shard, incarnation, counter, attempt, prev[3], commit;
    if (!as_number(PyTuple_GET_ITEM(part, 0), U32, &shard) ||
        !epoch_of(PyTuple_GET_ITEM(part, 1), &incarnation, &counter) ||
        !as_number(PyTuple_GET_ITEM(part, 2), U64, &attempt) ||
        !position_of(PyTuple_GET_ITEM(part, 3), &prev[0], &prev[1], &prev[2]) ||
        !as_number(PyTuple_GET_ITEM(part, 4), U64, &commit))
        return false;
    at = put<uint32_t>(at, (uint32_t)shard);
    at = put<uint64_t>(at, incarnation);
    at = put<uint64_t>(at, counter);
    at = put<uint64_t>(at, attempt);
    for (uint64_t each : prev) at = put<uint64_t>(at, each);
    at = put<uint64_t>(at, commit);
    at = put<uint32_t>(at, (uint32_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(part, 5)));
    return true;
}

PyObject* encode_entries(PyObject* parts, EntryOut* entries) {
    const Py_ssize_t parts_n = PyTuple_GET_SIZE(parts);
    int64_t texts = 0, keys = 0, value_bytes = 0;
    int n = 0, dtype = 0;
    for (Py_ssize_t i = 0; i < parts_n; i++) {
        PyObject* own = PyTuple_GET_ITEM(PyTuple_GET_ITEM(parts, i), 5);
        for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(own); j++) {
            EntryOut& entry = entries[n];
            if (!entry.open(PyTuple_GET_ITEM(own, j))) return leave_it();
            n++;
            texts += PyBytes_GET_SIZE(entry.text.get());
            keys += entry.keys.size();
            value_bytes += entry.values.bytes();
            if (8 * keys + value_bytes > SMALL_BYTES) return leave_it();
            if (entry.values.size() == 0) continue;
            if (dtype != 0 && dtype != entry.dtype) return leave_it();
            dtype = entry.dtype;
        }
    }
    Small frame;
    if (!frame.start(logs.append_kind, dtype,
                     APPEND_BYTES + parts_n * APPEND_PART_BYTES + n * ENTRY_BYTES + texts, keys,
                     value_bytes))
        return leave_it();
    char* at = put<uint32_t>(frame.at, (uint32_t)parts_n);
    at = put<uint32_t>(at, (uint32_t)n);
    for (Py_ssize_t i = 0; i < parts_n; i++)
        if (!pack_append_part(at, PyTuple_GET_ITEM(parts, i))) return leave_it();
    const auto add = [&at](const void* bytes, int64_t size) {
        if (size) memcpy(at, bytes, (size_t)size);
        at += size;
    };
    for (int i = 0; i < n; i++) add(entries[i].fixed, ENTRY_BYTES);
    for (int i = 0; i < n; i++)
        add(PyBytes_AS_STRING(entries[i].text.get()), PyBytes_GET_SIZE(entries[i].text.get()));
    for (int i = 0; i < n; i++) add(entries[i].keys.as<char>(), entries[i].keys.bytes());
    for (int i = 0; i < n; i++) add(entries[i].values.as<char>(), entries[i].values.bytes());
    return frame.buffers();
}

// encode_append(message) -> list of buffers, or None
PyObject* encode_append(PyObject*, PyObject* message) {
    if (!logs.complete || Py_TYPE(message) != (PyTypeObject*)logs.append) return leave_it();
    Owned parts(PyObject_GetAttr(message, names.parts));
    if (!parts || !PyTuple_Check(parts.get())) return leave_it();
    Py_ssize_t n = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts.get()); i++) {
        PyObject* part = PyTuple_GET_ITEM(parts.get(), i);
        if (!is_tuple_of(part, logs.append_part, 6) || !PyTuple_Check(PyTuple_GET_ITEM(part, 5)))
            return leave_it();
        n += PyTuple_GET_SIZE(PyTuple_GET_ITEM(part, 5));
    }
    if (n > ENTRIES_MAX) return leave_it();
    EntryOut* entries = new (std::nothrow) EntryOut[n];
    if (entries == nullptr) return PyErr_NoMemory();
    PyObject* buffers = encode_entries(parts.get(), entries);
    delete[] entries;
    return buffers;
}

// encode_appended(message) -> list of buffers, or None
PyObject* encode_appended(PyObject*, PyObject* message) {
    if (!logs.complete || Py_TYPE(message) != (PyTypeObject*)logs.appended) return leave_it();
    Owned parts(PyObject_GetAttr(message, names.parts));
    if (!parts || !PyTuple_Check(parts.get())) return leave_it();
    const Py_ssize_t parts_n = PyTuple_GET_SIZE(parts.get());
    Small frame;
    if (!frame.start(logs.appended_kind, 0, APPENDED_BYTES + parts_n * APPENDED_PART_BYTES, 0, 0))
        return leave_it();
    char* at = put<uint32_t>(frame.at, (uint32_t)parts_n);
    for (Py_ssize_t i = 0; i < parts_n; i++) {
        PyObject* part = PyTuple_GET_ITEM(parts.get(), i);
        uint64_t shard, incarnation, counter, attempt, held, lsn;
        if (!is_tuple_of(part, logs.appended_part, 5) ||
            !as_number(PyTuple_GET_ITEM(part, 0), U32, &shard) ||
            !epoch_of(PyTuple_GET_ITEM(part, 1), &incarnation, &counter) ||
            !as_number(PyTuple_GET_ITEM(part, 2), U64, &attempt) ||
            !as_number(PyTuple_GET_ITEM(part, 3), 255, &held) ||
            !as_number(PyTuple_GET_ITEM(part, 4), U64, &lsn))
            return leave_it();
        at = put<uint32_t>(at, (uint32_t)shard);
        at = put<uint64_t>(at, incarnation);
        at = put<uint64_t>(at, counter);
        at = put<uint64_t>(at, attempt);
        at = put<uint8_t>(at, (uint8_t)held);
        at = put<uint64_t>(at, lsn);
    }
    return frame.buffers();
}

// ------------------------------------------------------------------------------------ decode

// Epochs of neighbouring entries are mostly the same.
class Epochs {
   public:
    PyObject* make(const char* at) {
        const uint64_t incarnation = get<uint64_t>(at), counter = get<uint64_t>(at + 8);
        if (!epoch_ || incarnation != incarnation_ || counter != counter_) {
            epoch_.reset(new_tuple(words.epoch, number(incarnation), number(counter)));
            incarnation_ = incarnation, counter_ = counter;
        }
        return Py_XNewRef(epoch_.get());
    }
    PyObject* position(const char* at) {
        return new_tuple(words.position, make(at), number(get<uint64_t>(at + 16)));
    }

   private:
    Owned epoch_;
    uint64_t incarnation_ = 0, counter_ = 0;
};

// A slice of an array of all entries.
PyObject* own_of(PyObject* array, uint64_t from, uint64_t count) {
    return PySequence_GetSlice(array, (Py_ssize_t)from, (Py_ssize_t)(from + count));
}

// An array of all entries' keys or values, with these bytes; `none` if there are none.
PyObject* array_of(uint64_t elements, PyObject* dtype, const char* from, PyObject* none) {
    if (elements == 0) return Py_NewRef(none);
    Owned count(number(elements));
    PyObject* args[] = {count.get(), dtype};
    Owned array(count ? PyObject_Vectorcall(words.make_array, args, 2, nullptr) : nullptr);
    Py_buffer view;
    if (!array || PyObject_GetBuffer(array.get(), &view, PyBUF_SIMPLE | PyBUF_WRITABLE) != 0)
        return nullptr;
    memcpy(view.buf, from, (size_t)view.len);
    PyBuffer_Release(&view);
    return array.release();
}

struct EntriesIn {
    const Head& head;
    const char *at, *text_at, *end;
    uint64_t keys_at = 0, values_at = 0;
    Owned keys, values;
    Epochs epochs;

    explicit EntriesIn(const Head& of) : head(of) {}

    // The next entry. False: it is malformed, or an error of Python's is set.
    bool next(PyObject** entry) {
        const int kind = (uint8_t)at[0], code = (uint8_t)at[2];
        const uint64_t text_n = get<uint32_t>(at + 71), keys_n = get<uint32_t>(at + 75);
        const uint64_t values_n = get<uint64_t>(at + 79);
        if (kind >= KINDS_MAX || logs.commands[kind] == nullptr || code == 0 ||
            code >= DTYPES_MAX || logs.empty[code] == nullptr || text_n > (uint64_t)(end - text_at) ||
            keys_n > head.keys - keys_at || values_n > head.elements() - values_at ||
            (values_n && code != head.dtype))
            return false;
        Owned place(epochs.position(at + 3));
        Owned who(new_tuple(
            words.worker, number(get<uint32_t>(at + 27)), number(get<uint32_t>(at + 31)),
            number(get<uint64_t>(at + 35))));
        Owned clock(number(get<uint64_t>(at + 43))), n(number(get<uint32_t>(at + 51)));
        Owned prev(number(get<uint32_t>(at + 55))), table(number(get<uint32_t>(at + 59)));
        Owned rate(PyFloat_FromDouble(get<double>(at + 63)));
        Owned text(text_n ? PyBytes_FromStringAndSize(text_at, (Py_ssize_t)text_n)
                          : Py_NewRef(words.empty_bytes));
        Owned own_keys(keys_n ? own_of(keys.get(), keys_at, keys_n) : Py_NewRef(words.no_keys));
        Owned own_values(
            values_n ? own_of(values.get(), values_at, values_n) : Py_NewRef(logs.empty[code]));
        PyObject* args[] = {
            logs.commands[kind], who.get(), clock.get(), n.get(), prev.get(), table.get(),
            rate.get(), at[1] ? Py_True : Py_False, text.get(), own_keys.get(), own_values.get(),
        };
        for (PyObject* argument : args)
            if (argument == nullptr) return false;
        PyObject* command = PyObject_Vectorcall(logs.command, args, 11, nullptr);
        *entry = new_tuple(logs.entry, place.release(), command);
        at += ENTRY_BYTES, text_at += text_n, keys_at += keys_n, values_at += values_n;
        return *entry != nullptr;
    }
};

// `count` entries as a tuple. Null: malformed, or an error of Python's.
PyObject* entries_as_tuple(EntriesIn* entries, uint64_t count) {
    Owned tuple(PyTuple_New((Py_ssize_t)count));
    for (uint64_t i = 0; tuple && i < count; i++) {
        PyObject* entry;
        if (!entries->next(&entry)) return nullptr;
        PyTuple_SET_ITEM(tuple.get(), (Py_ssize_t)i, entry);
    }
    return tuple.release();
}

PyObject* failed() { return PyErr_Occurred() ? nullptr : leave_it(); }

PyObject* decode_append(const Head& head) {
    if (head.meta_bytes < (uint64_t)APPEND_BYTES) return leave_it();
    const uint64_t parts_n = get<uint32_t>(head.meta);
    uint64_t left = get<uint32_t>(head.meta + 4);
    const uint64_t texts = APPEND_BYTES + parts_n * APPEND_PART_BYTES + left * ENTRY_BYTES;
    if (texts > head.meta_bytes) return leave_it();
    const char* at = head.meta + APPEND_BYTES;
    EntriesIn entries(head);
    entries.at = at + parts_n * APPEND_PART_BYTES;
    entries.text_at = head.meta + texts;
    entries.end = head.meta + head.meta_bytes;
    entries.keys.reset(array_of(head.keys, words.key_dtype, head.payload, words.no_keys));
    entries.values.reset(array_of(
        head.elements(), words.dtypes[head.dtype], head.payload + 8 * head.keys, words.no_keys));
    Owned parts(PyTuple_New((Py_ssize_t)parts_n));
    if (!parts || !entries.keys || !entries.values) return nullptr;
    Epochs epochs;
    for (uint64_t i = 0; i < parts_n; i++, at += APPEND_PART_BYTES) {
        const uint64_t count = get<uint32_t>(at + 60);
        if (count > left) return leave_it();
        left -= count;
        Owned own(entries_as_tuple(&entries, count));
        if (!own) return failed();
        PyObject* epoch = epochs.make(at + 4);
        PyObject* part = new_tuple(
            logs.append_part, number(get<uint32_t>(at)), epoch, number(get<uint64_t>(at + 20)),
            epochs.position(at + 28), number(get<uint64_t>(at + 52)), own.release());
        if (part == nullptr) return nullptr;
        PyTuple_SET_ITEM(parts.get(), (Py_ssize_t)i, part);
    }
    if (left || entries.text_at != entries.end || entries.keys_at != head.keys ||
        entries.values_at != head.elements())
        return leave_it();
    PyObject* args[] = {parts.get()};
    return PyObject_Vectorcall(logs.append, args, 1, nullptr);
}

PyObject* decode_appended(const Head& head) {
    if (head.payload_bytes() || head.meta_bytes < (uint64_t)APPENDED_BYTES) return leave_it();
    const uint64_t parts_n = get<uint32_t>(head.meta);
    if (APPENDED_BYTES + parts_n * APPENDED_PART_BYTES != head.meta_bytes) return leave_it();
    Owned parts(PyTuple_New((Py_ssize_t)parts_n));
    if (!parts) return nullptr;
    Epochs epochs;
    const char* at = head.meta + APPENDED_BYTES;
    for (uint64_t i = 0; i < parts_n; i++, at += APPENDED_PART_BYTES) {
        const int held = (uint8_t)at[28];
        if (held >= HELDS_MAX || logs.helds[held] == nullptr) return leave_it();
        PyObject* part = new_tuple(
            logs.appended_part, number(get<uint32_t>(at)), epochs.make(at + 4),
            number(get<uint64_t>(at + 20)), Py_NewRef(logs.helds[held]),
            number(get<uint64_t>(at + 29)));
        if (part == nullptr) return nullptr;
        PyTuple_SET_ITEM(parts.get(), (Py_ssize_t)i, part);
    }
    PyObject* args[] = {parts.get()};
    return PyObject_Vectorcall(logs.appended, args, 1, nullptr);
}

// take_log(scratch, lo, hi, meta_limit, payload_limit) -> (message, new lo), or None
PyObject* take_log(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "take_log(memoryview, lo, hi, limit, limit)");
        return nullptr;
    }
    Received received;
    received.of_logs = true;
    if (!received.open(args)) return nullptr;
    const Head& head = received.head;
    if (!logs.complete || !received.begins || head.frame_bytes() > received.hi - received.lo)
        Py_RETURN_NONE;
    PyObject* message;
    if (head.kind == logs.append_kind)
        message = decode_append(head);
    else if (head.kind == logs.appended_kind)
        message = decode_appended(head);
    else
        Py_RETURN_NONE;
    if (message == nullptr || message == Py_None) return message;
    return new_tuple((PyObject*)&PyTuple_Type, message, number(received.lo + head.frame_bytes()));
}

// ------------------------------------------------------------------------------------ set-up

bool keep(PyObject* from, const char* name, PyObject** to) {
    PyObject* object = PyDict_GetItemString(from, name);
    if (object == nullptr) {
        PyErr_Format(PyExc_KeyError, "set_up_log: %s is missing", name);
        return false;
    }
    Py_XSETREF(*to, Py_NewRef(object));
    return true;
}

// A tuple's objects, numbered by themselves or, without `by_value`, by their place.
bool keep_all(PyObject* from, const char* name, PyObject** table, int most, bool by_value) {
    PyObject* all = PyDict_GetItemString(from, name);
    if (all == nullptr || !PyTuple_Check(all)) {
        PyErr_Format(PyExc_KeyError, "set_up_log: %s is missing", name);
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); i++) {
        uint64_t place = (uint64_t)i;
        PyObject* object = PyTuple_GET_ITEM(all, i);
        if ((by_value && !as_number(object, U32, &place)) || place >= (uint64_t)most) {
            PyErr_Format(PyExc_ValueError, "set_up_log: %s are too many", name);
            return false;
        }
        Py_XSETREF(table[place], Py_NewRef(object));
    }
    return true;
}

// set_up_log(words: dict), after `set_up`
PyObject* set_up_log(PyObject*, PyObject* from) {
    if (!PyDict_Check(from)) {
        PyErr_SetString(PyExc_TypeError, "set_up_log takes a dict");
        return nullptr;
    }
    logs.complete = false;
    uint64_t append_kind, appended_kind;
    if (!keep(from, "Append", &logs.append) || !keep(from, "AppendPart", &logs.append_part) ||
        !keep(from, "Appended", &logs.appended) ||
        !keep(from, "AppendedPart", &logs.appended_part) || !keep(from, "Entry", &logs.entry) ||
        !keep(from, "Command", &logs.command) ||
        !keep_all(from, "commands", logs.commands, KINDS_MAX, true) ||
        !keep_all(from, "helds", logs.helds, HELDS_MAX, true) ||
        !keep_all(from, "empty", logs.empty, DTYPES_MAX, false))
        return nullptr;
    if (!as_number(PyDict_GetItemString(from, "append_kind"), 255, &append_kind) ||
        !as_number(PyDict_GetItemString(from, "appended_kind"), 255, &appended_kind)) {
        PyErr_SetString(PyExc_KeyError, "set_up_log: append_kind or appended_kind is missing");
        return nullptr;
    }
    const PyObject* tuples[] = {logs.append_part, logs.appended_part, logs.entry};
    for (const PyObject* type : tuples)
        if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject*)type, &PyTuple_Type)) {
            PyErr_SetString(PyExc_TypeError, "set_up_log: a type of tuples is none");
            return nullptr;
        }
    logs.append_kind = (int)append_kind;
    logs.appended_kind = (int)appended_kind;
    words.log_kinds[0] = logs.append_kind, words.log_kinds[1] = logs.appended_kind;
    logs.complete = words.complete;
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"set_up_log", set_up_log, METH_O, nullptr},
    {"encode_append", encode_append, METH_O, nullptr},
    {"encode_appended", encode_appended, METH_O, nullptr},
    {"take_log", (PyCFunction)(void (*)(void))take_log, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_log_codec(PyObject* module) {
#define INTERN(name) \
    if ((names.name = PyUnicode_InternFromString(#name)) == nullptr) return false;
    LOG_NAMES(INTERN)
    return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace resilient_ps
