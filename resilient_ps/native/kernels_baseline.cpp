// The kernels for every processor of the architecture.

#define KERNELS_NAME baseline_kernels
#include "kernels_body.h"
