/* A barrier of two levels: the threads of a node meet on its own cache lines, and only the
 * last of them meets the last of the other nodes. */
#ifndef UN_BARRIER_H
#define UN_BARRIER_H

#include "wait.h"

typedef struct un_barrier un_barrier;

/* For at most `nodes` nodes. `cpus[n]` is a CPU of node n, on which its memory is touched
 * first, or -1. NULL without memory. */
un_barrier *un_barrier_new(int nodes, const int *cpus);
void un_barrier_free(un_barrier *barrier);

/* Says who meets: `sizes[n]` threads, at least one, on each of the first `nodes` nodes. Only
 * while nobody is inside. */
void un_barrier_shape(un_barrier *barrier, int nodes, const int *sizes);

/* Returns when every thread of the shape has called it; what they wrote before is then seen.
 * `spin` is the calling thread's own. */
void un_barrier_wait(un_barrier *barrier, int node, un_spin *spin);

/* Nanoseconds per call, of `rounds` calls one after the other. `flat`: all threads meet at
 * one place, as if they were of one node. Negative: -errno. */
UN_API double un_barrier_time(int threads, const int *cpus, const int *nodes, int flat,
                              int rounds);

#ifdef UN_COUNT
/* The read-modify-writes of the word where the nodes meet, since the last shape. */
typedef struct {
    int64_t arrivals, naps;
} un_crossings;
un_crossings un_barrier_crossings(un_barrier *barrier);
#endif

#endif
