// Large pushes of a server, made while they are received: see receiving.cpp.

#ifndef RESILIENT_PS_RECEIVING_H
#define RESILIENT_PS_RECEIVING_H

#include "buffers.h"

namespace resilient_ps {

bool add_receiving(PyObject* module);

}  // namespace resilient_ps

#endif
