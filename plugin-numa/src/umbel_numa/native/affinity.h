/* Putting a thread on one CPU, and the calling thread back where it was. */
#ifndef UN_AFFINITY_H
#define UN_AFFINITY_H

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#ifdef __linux__
#include <sched.h>

/* As many CPUs as a kernel may have: one cpu_set_t ends at 1024. */
typedef struct {
    cpu_set_t sets[8];
} un_cpus;

/* 0 or -errno: a CPU that is offline or not granted to the process is refused. */
static inline int un_pin(pthread_t thread, int cpu)
{
    un_cpus one;
    if (cpu < 0 || cpu >= (int)(8 * sizeof one))
        return -EINVAL;
    CPU_ZERO_S(sizeof one, one.sets);
    CPU_SET_S((size_t)cpu, sizeof one, one.sets);
    return -pthread_setaffinity_np(thread, sizeof one, one.sets);
}

static inline int un_where_pinned(un_cpus *before)
{
    return -pthread_getaffinity_np(pthread_self(), sizeof *before, before->sets);
}

static inline void un_unpin(const un_cpus *before)
{
    pthread_setaffinity_np(pthread_self(), sizeof *before, before->sets);
}

#else  /* macOS takes no such wishes */

typedef struct {
    int none;
} un_cpus;

static inline int un_pin(pthread_t thread, int cpu)
{
    (void)thread, (void)cpu;
    return -ENOSYS;
}

static inline int un_where_pinned(un_cpus *before)
{
    (void)before;
    return -ENOSYS;
}

static inline void un_unpin(const un_cpus *before)
{
    (void)before;
}

#endif
#endif
