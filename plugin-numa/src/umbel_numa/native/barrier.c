#include "barrier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "affinity.h"
#include "pages.h"
#include "pool.h"

/* A node's own share, in its memory. */
typedef struct {
    un_word arrived;   /* counts the node's threads, over all barriers since the shape */
    un_word released;  /* counts the barriers passed: here the node's threads wait */
    uint32_t size;     /* written while nobody is inside */
} un_meeting;

struct un_barrier {
    un_word met;     /* counts the nodes, over all barriers: the one line that nodes share */
    uint32_t nodes;  /* that meet */
    int room;        /* nodes there is memory for */
    un_meeting *node[];
};

/* On the node of `cpu`: memory lies where it is touched first. */
static un_meeting *meeting_new(int cpu)
{
    un_cpus before;
    bool pinned = cpu >= 0 && un_where_pinned(&before) == 0 && un_pin(pthread_self(), cpu) == 0;
    un_meeting *meeting = un_pages_alloc(sizeof *meeting, 0);
    if (meeting != NULL)
        memset(meeting, 0, sizeof *meeting);
    if (pinned)
        un_unpin(&before);
    return meeting;
}

un_barrier *un_barrier_new(int nodes, const int *cpus)
{
    size_t bytes = sizeof(un_barrier) + (size_t)nodes * sizeof(un_meeting *);
    un_barrier *barrier = un_pages_alloc((int64_t)bytes, 0);
    if (barrier == NULL)
        return NULL;
    barrier->room = nodes;
    for (int n = 0; n < nodes; n++) {
        barrier->node[n] = meeting_new(cpus[n]);
        if (barrier->node[n] == NULL) {
            un_barrier_free(barrier);
            return NULL;
        }
    }
    return barrier;
}

void un_barrier_free(un_barrier *barrier)
{
    if (barrier == NULL)
        return;
    int room = barrier->room;
    for (int n = 0; n < room; n++)
        un_pages_free(barrier->node[n], sizeof(un_meeting));
    un_pages_free(barrier,
                  (int64_t)(sizeof(un_barrier) + (size_t)room * sizeof(un_meeting *)));
}

void un_barrier_shape(un_barrier *barrier, int nodes, const int *sizes)
{
    un_word_init(&barrier->met);
    barrier->nodes = (uint32_t)nodes;
    for (int n = 0; n < nodes; n++) {
        un_word_init(&barrier->node[n]->arrived);
        un_word_init(&barrier->node[n]->released);
        barrier->node[n]->size = (uint32_t)sizes[n];
    }
}

/* All targets follow from the number of this barrier, which is read off `released`: it cannot
 * grow before this thread has arrived. So nothing is ever set back, and barriers may follow
 * each other at once. One read-modify-write of a node crosses to the others: that of `met`. */
void un_barrier_wait(un_barrier *barrier, int node, un_spin *spin)
{
    un_meeting *own = barrier->node[node];
    uint32_t passed = atomic_load_explicit(&own->released.value, memory_order_relaxed);
    uint32_t next = (passed & ~UN_ASLEEP) + UN_STEP;
    if (!un_word_arrive(&own->arrived, next * own->size)) {
        un_word_await(&own->released, next, spin);
        return;
    }
    if (barrier->nodes > 1 && !un_word_arrive(&barrier->met, next * barrier->nodes))
        un_word_await(&barrier->met, next * barrier->nodes, spin);
    un_word_arrive(&own->released, next);
}

#ifdef UN_COUNT
un_crossings un_barrier_crossings(un_barrier *barrier)
{
    return (un_crossings){atomic_load(&barrier->met.arrivals), atomic_load(&barrier->met.naps)};
}
#endif

typedef struct {
    un_pool *pool;
    int rounds;
    int64_t start, end;  /* of thread 0 */
} timing;

static void time_thread(void *arg, int thread)
{
    timing *t = arg;
    un_pool_barrier(t->pool, thread);  /* all are awake */
    if (thread == 0)
        t->start = un_now();
    for (int i = 0; i < t->rounds; i++)
        un_pool_barrier(t->pool, thread);
    if (thread == 0)
        t->end = un_now();
}

double un_barrier_time(int threads, const int *cpus, const int *nodes, int flat, int rounds)
{
    if (threads < 1 || rounds < 1)
        return -EINVAL;
    int *one = calloc((size_t)threads, sizeof *one);
    un_pool *pool = one == NULL ? NULL : un_pool_new(threads, cpus, flat ? one : nodes);
    timing t = {.pool = pool, .rounds = rounds};
    int failed = pool == NULL ? -ENOMEM : un_pool_run(pool, threads, time_thread, &t);
    un_pool_free(pool);
    free(one);
    return failed < 0 ? failed : (double)(t.end - t.start) / rounds;
}
