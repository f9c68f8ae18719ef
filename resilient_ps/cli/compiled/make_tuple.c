// make(kind, a, b, ...): a named tuple of these values. See named_tuples.py.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject* make(PyObject* module, PyObject* const* given, Py_ssize_t n) {
    if (n < 1 || !PyType_Check(given[0]) ||
        !PyType_IsSubtype((PyTypeObject*)given[0], &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "make(kind, a, b, ...): kind must be a kind of tuple");
        return NULL;
    }
    PyTypeObject* kind = (PyTypeObject*)given[0];
    PyObject* made = kind->tp_alloc(kind, n - 1);
    if (made == NULL) return NULL;
    for (Py_ssize_t i = 1; i < n; i++) PyTuple_SET_ITEM(made, i - 1, Py_NewRef(given[i]));
    return made;
}

static PyMethodDef methods[] = {
    {"make", (PyCFunction)(void (*)(void))make, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_make_tuple", NULL, -1, methods};

PyMODINIT_FUNC PyInit__make_tuple(void) { return PyModule_Create(&module); }
