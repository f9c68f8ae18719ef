// Standing threads that share the tasks of one call with whoever calls.

#ifndef RESILIENT_PS_CORES_H
#define RESILIENT_PS_CORES_H

#include <stdint.h>

namespace resilient_ps {

typedef void (*Task)(void* context, int64_t number);

// Runs `task` for 0 .. tasks - 1, on all processors where `worth_it`, and returns when all are done.
// Tasks must share nothing. To be called without the interpreter where it is worth it.
void run_tasks(Task task, void* context, int64_t tasks, bool worth_it);

}  // namespace resilient_ps

#endif
