// CRC-32C by the processor's own instruction: see checksum.cpp.

#ifndef RESILIENT_PS_CHECKSUM_H
#define RESILIENT_PS_CHECKSUM_H

#include "buffers.h"

namespace resilient_ps {

// Adds `crc32c`, where the processor has an instruction for it.
bool add_checksum(PyObject* module);

}  // namespace resilient_ps

#endif
