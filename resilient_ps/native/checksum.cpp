// CRC-32C (Castagnoli), which object stores compare with what they receive.

#include "checksum.h"

#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace resilient_ps {

#if defined(__x86_64__)
namespace {

const int64_t WORTH_RELEASING = 64 * 1024;

__attribute__((target("sse4.2"))) uint32_t continued(
    uint32_t before, const uint8_t* bytes, int64_t size) {
    uint64_t crc = ~before;
    int64_t at = 0;
    for (; at + 8 <= size; at += 8) {
        uint64_t word;
        memcpy(&word, bytes + at, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; at < size; at++) crc = _mm_crc32_u8((uint32_t)crc, bytes[at]);
    return ~(uint32_t)crc;
}

// crc32c(data, before) -> int; `before`: of the bytes in front of these, 0 where there are none
PyObject* crc32c(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
    Buffer data;
    if (nargs != 2) {
        PyErr_Format(PyExc_TypeError, "crc32c takes 2 arguments, not %zd", nargs);
        return nullptr;
    }
    const unsigned long before = PyLong_AsUnsignedLong(args[1]);
    if (before == (unsigned long)-1 && PyErr_Occurred()) return nullptr;
    if (before > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a CRC has 32 bits");
        return nullptr;
    }
    if (!data.open(args[0], "data", "")) return nullptr;
    uint32_t crc;
    {
        WithoutInterpreter released(data.bytes() >= WORTH_RELEASING);
        crc = continued((uint32_t)before, data.as<uint8_t>(), data.bytes());
    }
    return PyLong_FromUnsignedLong(crc);
}

PyMethodDef methods[] = {
    {"crc32c", (PyCFunction)(void (*)(void))crc32c, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_checksum(PyObject* module) {
    __builtin_cpu_init();
    return !__builtin_cpu_supports("sse4.2") || PyModule_AddFunctions(module, methods) == 0;
}
#else
bool add_checksum(PyObject*) { return true; }
#endif

}  // namespace resilient_ps
