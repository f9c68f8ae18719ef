// The parts of one request, several shards' tables in one call: see parts.cpp.

#ifndef RESILIENT_PS_PARTS_H
#define RESILIENT_PS_PARTS_H

#include "buffers.h"

namespace resilient_ps {

bool add_parts(PyObject* module);

}  // namespace resilient_ps

#endif
