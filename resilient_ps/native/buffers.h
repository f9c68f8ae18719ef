// Arrays of Python as pointers, for the length of a call.

#ifndef RESILIENT_PS_BUFFERS_H
#define RESILIENT_PS_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

namespace resilient_ps {

// A contiguous buffer, released at the end of the scope.
class Buffer {
   public:
    Buffer() { view_.obj = nullptr; }
    ~Buffer() {
        if (view_.obj != nullptr) PyBuffer_Release(&view_);
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    // `letters`: the permitted struct formats of its elements ("" for any).
    bool open(PyObject* object, const char* name, const char* letters, int writable = 0) {
        int flags = PyBUF_ND | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(object, &view_, flags) != 0) {
            view_.obj = nullptr;
            return false;
        }
        if (*letters && (letter() == 0 || strchr(letters, letter()) == nullptr)) {
            PyErr_Format(PyExc_TypeError, "%s: wrong type of elements", name);
            return false;
        }
        if ((uintptr_t)view_.buf % (uintptr_t)view_.itemsize) {
            PyErr_Format(PyExc_ValueError, "%s: not aligned", name);
            return false;
        }
        return true;
    }

    template <class T>
    T* as() const {
        return (T*)view_.buf;
    }
    int64_t size() const { return view_.itemsize ? view_.len / view_.itemsize : 0; }
    int64_t bytes() const { return view_.len; }
    int64_t itemsize() const { return view_.itemsize; }
    int dimensions() const { return view_.ndim; }
    int64_t length(int axis) const { return view_.shape[axis]; }

    // The struct letter of its elements; 0 if they are not single numbers of this machine.
    char letter() const {
        const char* format = view_.format ? view_.format : "B";
        if (*format == '@' || *format == '=' || *format == '<') format++;
        return format[0] && !format[1] ? format[0] : 0;
    }

   private:
    Py_buffer view_;
};

const char UINT64_LETTERS[] = "LQ";
const char INT64_LETTERS[] = "lq";
const char UINT32_LETTERS[] = "I";
const char INT32_LETTERS[] = "i";
const char FLOAT64_LETTERS[] = "d";

// Lets other threads run while it is in scope, where the work is worth it.
class WithoutInterpreter {
   public:
    explicit WithoutInterpreter(bool worth_it) : state_(worth_it ? PyEval_SaveThread() : nullptr) {}
    ~WithoutInterpreter() {
        if (state_ != nullptr) PyEval_RestoreThread(state_);
    }

   private:
    PyThreadState* state_;
};

}  // namespace resilient_ps

#endif
