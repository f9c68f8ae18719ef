// The frames of appended entries and of what answers them: see log_codec.cpp.

#ifndef RESILIENT_PS_LOG_CODEC_H
#define RESILIENT_PS_LOG_CODEC_H

#include "buffers.h"

namespace resilient_ps {

bool add_log_codec(PyObject* module);

}  // namespace resilient_ps

#endif
