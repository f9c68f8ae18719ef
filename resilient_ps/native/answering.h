// Plain pulls of a server, from bytes to bytes: see answering.cpp.

#ifndef RESILIENT_PS_ANSWERING_H
#define RESILIENT_PS_ANSWERING_H

#include "buffers.h"

namespace resilient_ps {

bool add_answering(PyObject* module);

}  // namespace resilient_ps

#endif
