// Plain pushes through the logs of a primary and its backups: see replicating.cpp.

#ifndef RESILIENT_PS_REPLICATING_H
#define RESILIENT_PS_REPLICATING_H

#include "buffers.h"

namespace resilient_ps {

bool add_replicating(PyObject* module);

}  // namespace resilient_ps

#endif
