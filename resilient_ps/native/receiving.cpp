// The values of a large push, whose keys are there: they are received, and each table's part is
// pushed as soon as it is complete, while the client prepares and sends the next one. What is left
// when everything has come is done on all processors.
//
// Whether the push is accepted has been found out before: see quick_requests.py.

#include "receiving.h"

#include "arrays.h"
#include "parts.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

namespace resilient_ps {
namespace {

const int64_t HEAVY_BYTES = 128 * 1024;  // as in parts.cpp
// Received at a time: while a call receives, its socket is locked, and what arrives has to wait.
const int64_t TURN_BYTES = 256 * 1024;
// How long the whole process waits for the next bytes, and in all: others wait meanwhile.
const int64_t GAP_NS = 300 * 1000, WAITS_NS = 2000 * 1000;
const long NOT_MADE = -1;

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

struct ArrivingPush {
    int fd;
    Buffer keys, values;
    PushPart parts[PARTS_MAX];
    int64_t ends[PARTS_MAX];  // of each part's values, in bytes
    int64_t n = 0, made = 0;
    int64_t had = 0, filled = 0;  // bytes of the keys and the values behind them

    // args: fd, keys, values, left, counts, tables
    bool open(PyObject* const* args) {
        fd = (int)PyLong_AsLong(args[0]);
        const int64_t left = PyLong_AsLongLong(args[3]);
        if (PyErr_Occurred() || !keys.open(args[1], "keys", UINT64_LETTERS) ||
            !values.open(args[2], "values", "", 1) || !PyList_Check(args[4]) ||
            !PyList_Check(args[5]) || left < 0 || left > bytes())
            return false;
        had = filled = bytes() - left;
        const int dtype = dtype_of(values);
        const Py_ssize_t size = PyList_GET_SIZE(args[4]);
        int64_t first = 0, start = 0;
        if (dtype < 0 || size > PARTS_MAX || PyList_GET_SIZE(args[5]) != size) return false;
        for (; n < size; n++) {
            PushPart& part = parts[n];
            const int64_t count = PyLong_AsLongLong(PyList_GET_ITEM(args[4], n));
            if (count < 0 || !part.open(PyList_GET_ITEM(args[5], n), count, dtype)) return false;
            part.keys = keys.as<uint64_t>() + first;
            part.grads = values.as<char>() + start * values.itemsize();
            part.full = NOT_MADE;
            first += count, start += count * part.arrays.table.meta[DIM];
            if (first > keys.size() || start > values.size()) return false;
            ends[n] = keys.bytes() + start * values.itemsize();
        }
        return first == keys.size() && start == values.size();
    }

    int64_t bytes() const { return keys.bytes() + values.bytes(); }
    bool is_complete(int64_t i) const { return ends[i] <= filled; }

    void make(int64_t upto) {
        PushPart* next[PARTS_MAX];
        const int64_t count = upto - made;
        const int64_t size = ends[upto - 1] - (made > 0 ? ends[made - 1] : keys.bytes());
        for (int64_t i = 0; i < count; i++) next[i] = &parts[made + i];
        run_pushes(next, count, size >= HEAVY_BYTES);
        made = upto;
    }

    // What is there. False: the connection is at an end, which whoever receives next will see.
    bool receive() {
        while (filled < bytes()) {
            const int64_t keys_left = keys.bytes() - filled;
            const int64_t left = keys_left > 0 ? keys_left : bytes() - filled;
            char* to = keys_left > 0 ? keys.as<char>() + filled : values.as<char>() - keys_left;
            const ssize_t count =
                recv(fd, to, (size_t)(left < TURN_BYTES ? left : TURN_BYTES), MSG_DONTWAIT);
            if (count == 0) return false;
            if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
            filled += count;
        }
        return true;
    }

    // Until the next part is complete, or much of it is there. False: not in so many nanoseconds.
    bool wait(int64_t patience_ns) {
        const int64_t left = ends[made] - filled;
        const int low_water = (int)(left < TURN_BYTES ? left : TURN_BYTES);
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof(low_water));
        const timespec patience = {0, (long)patience_ns};
        pollfd one = {fd, POLLIN, 0};
        return ppoll(&one, 1, &patience, nullptr) > 0;
    }

    void run() {
        int64_t left_ns = WAITS_NS;
        for (;;) {
            if (!receive()) break;
            if (filled == bytes()) {
                make(n);
                break;
            }
            if (is_complete(made)) {
                make(made + 1);
                continue;
            }
            const int64_t begun_ns = now_ns();
            if (left_ns <= 0 || !wait(left_ns < GAP_NS ? left_ns : GAP_NS)) break;
            left_ns -= now_ns() - begun_ns;
        }
        const int one = 1;
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
    }
};

// receive_push(fd, keys, values, left, counts, tables) -> (how many of the `left` bytes of keys and
// values have been received, what each part lacks, or -1 where it was not made), or None. For
// `tables` see push_parts.
PyObject* receive_push(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    if (!takes(nargs, 6, "receive_push")) return nullptr;
    ArrivingPush push;
    if (!push.open(args) || push.n == 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    {
        WithoutInterpreter released(true);
        push.run();
    }
    PyObject* lacks = PyTuple_New((Py_ssize_t)push.n);
    for (int64_t i = 0; lacks != nullptr && i < push.n; i++)  // small numbers: they exist
        PyTuple_SET_ITEM(lacks, (Py_ssize_t)i, PyLong_FromLong(push.parts[i].full));
    const long long count = push.filled - push.had;
    return lacks == nullptr ? nullptr : Py_BuildValue("(LN)", count, lacks);
}

PyMethodDef methods[] = {
    {"receive_push", (PyCFunction)(void (*)(void))receive_push, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_receiving(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace resilient_ps
