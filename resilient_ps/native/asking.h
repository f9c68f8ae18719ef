// The plain requests of a client, in one call each: see asking.cpp.

#ifndef RESILIENT_PS_ASKING_H
#define RESILIENT_PS_ASKING_H

#include "buffers.h"

namespace resilient_ps {

bool add_asking(PyObject* module);

}  // namespace resilient_ps

#endif
