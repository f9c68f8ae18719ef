// The kernels for x86-64 processors from 2013 on (level v3): only run where they are supported.

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,fma,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi,bmi2,fma,lzcnt,popcnt")
#endif

#define KERNELS_NAME avx2_kernels
#include "kernels_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
