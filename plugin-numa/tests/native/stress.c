/* Threads meet again and again, and look at what all others wrote in plain memory before.
 * stress THREADS NODES ROUNDS [PASSED]: PASSED barriers are taken to have been passed. */
#include "barrier.c"  /* its counters are set to a start of our own */

#include <stdio.h>

enum { MOST = 16 };

typedef struct {
    _Alignas(UN_LINE) long wrote;
} line;

static line lines[MOST];
static un_barrier *barrier;
static int threads, nodes, rounds;
static _Atomic int failures;

static int node_of(int thread)
{
    return thread * nodes / threads;
}

static void *meet(void *arg)
{
    int me = (int)(intptr_t)arg;
    un_spin spin = {0};
    unsigned random = 7u * (unsigned)me + 1;
    for (int round = 1; round <= rounds; round++) {
        random = random * 1664525u + 1013904223u;
        if (random >> 24 == 0)  /* now and then somebody is so late that the others sleep */
            nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
        lines[me].wrote = round;
        un_barrier_wait(barrier, node_of(me), &spin);
        for (int i = 0; i < threads; i++)
            failures += lines[i].wrote != round;
        un_barrier_wait(barrier, node_of(me), &spin);
    }
    return NULL;
}

static void start_at(uint32_t passed, const int *sizes)
{
    un_barrier_shape(barrier, nodes, sizes);
    atomic_store(&barrier->met.value, passed * UN_STEP * (uint32_t)nodes);
    for (int n = 0; n < nodes; n++) {
        atomic_store(&barrier->node[n]->released.value, passed * UN_STEP);
        atomic_store(&barrier->node[n]->arrived.value, passed * UN_STEP * (uint32_t)sizes[n]);
    }
}

int main(int count, char **words)
{
    int cpus[MOST], sizes[MOST] = {0};
    pthread_t others[MOST];
    threads = atoi(words[1]), nodes = atoi(words[2]), rounds = atoi(words[3]);
    for (int i = 0; i < threads; i++) {
        cpus[i] = -1;
        sizes[node_of(i)]++;
    }
    barrier = un_barrier_new(nodes, cpus);
    start_at(count > 4 ? (uint32_t)strtoul(words[4], NULL, 10) : 0, sizes);
    for (int i = 1; i < threads; i++)
        pthread_create(&others[i], NULL, meet, (void *)(intptr_t)i);
    meet(NULL);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
#ifdef UN_COUNT
    un_crossings seen = un_barrier_crossings(barrier);
    printf("%d %d\n", (int)seen.arrivals, (int)seen.naps);
#endif
    un_barrier_free(barrier);
    return failures != 0;
}
