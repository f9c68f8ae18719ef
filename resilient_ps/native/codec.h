// The frames of requests and answers, encoded and decoded: see codec.cpp.

#ifndef RESILIENT_PS_CODEC_H
#define RESILIENT_PS_CODEC_H

#include "buffers.h"

namespace resilient_ps {

bool add_codec(PyObject* module);

}  // namespace resilient_ps

#endif
