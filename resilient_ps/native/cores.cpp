// See cores.h. The threads begin with the first call that is worth them, and sleep between calls.
// One call at a time has them; another one at the same time works alone, as a forked child does.

#include "cores.h"

#include <pthread.h>
#include <unistd.h>

namespace resilient_ps {
namespace {

const long HELPERS_MAX = 7;

struct Batch {
    Task task;
    void* context;
    int64_t tasks;
    int64_t next;  // the first task that nobody has taken

    void work() {
        for (;;) {
            const int64_t number = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (number >= tasks) return;
            task(context, number);
        }
    }
};

pthread_mutex_t one_call = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t begun = PTHREAD_COND_INITIALIZER;
pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
Batch* current = nullptr;  // under `lock`, as the rest
int64_t working = 0;       // helpers that are busy with it
uint64_t turn = 0;
long helpers = -1;  // -1: none have been started yet
pid_t home = 0;     // the process that has them

void* help(void*) {
    uint64_t seen = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (current == nullptr || turn == seen) pthread_cond_wait(&begun, &lock);
        Batch* batch = current;
        seen = turn;
        working++;
        pthread_mutex_unlock(&lock);
        batch->work();
        pthread_mutex_lock(&lock);
        if (--working == 0) pthread_cond_signal(&ended);
    }
    return nullptr;
}

void start_helpers() {
    const long wanted = sysconf(_SC_NPROCESSORS_ONLN) - 1;
    home = getpid();
    helpers = 0;
    while (helpers < wanted && helpers < HELPERS_MAX) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, help, nullptr) != 0) return;
        pthread_detach(thread);
        helpers++;
    }
}

}  // namespace

void run_tasks(Task task, void* context, int64_t tasks, bool worth_it) {
    Batch batch = {task, context, tasks, 0};
    if (!worth_it || tasks < 2 || (helpers >= 0 && getpid() != home) ||
        pthread_mutex_trylock(&one_call) != 0)
        return batch.work();
    if (helpers < 0) start_helpers();
    pthread_mutex_lock(&lock);
    current = &batch;
    turn++;
    pthread_mutex_unlock(&lock);
    if (tasks > helpers)
        pthread_cond_broadcast(&begun);
    else
        for (int64_t i = 1; i < tasks; i++) pthread_cond_signal(&begun);
    batch.work();
    pthread_mutex_lock(&lock);
    current = nullptr;
    while (working > 0) pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&one_call);
}

}  // namespace resilient_ps
