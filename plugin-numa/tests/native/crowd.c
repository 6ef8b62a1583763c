/* Processor time of short pieces of work with barriers between, over that of the same work
 * without threads. crowd THREADS */
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { PIECES = 2000, LENGTH = 5000, MOST = 64 };

static un_pool *pool;
static volatile double sinks[MOST * 16];

static void piece(int thread)
{
    double x = thread;
    for (int i = 0; i < LENGTH; i++)
        x = x * 1.0000001 + 1e-9;
    sinks[thread * 16] = x;
}

static void work(void *arg, int thread)
{
    (void)arg;
    for (int i = 0; i < PIECES; i++) {
        piece(thread);
        un_pool_barrier(pool, thread);
    }
}

static double used(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec)
           + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

int main(int count, char **words)
{
    int cpus[MOST], nodes[MOST] = {0};
    int threads = count > 1 ? atoi(words[1]) : 2;
    for (int i = 0; i < threads; i++)
        cpus[i] = -1;
    pool = un_pool_new(threads, cpus, nodes);
    double start = used();
    for (int i = 0; i < PIECES * threads; i++)
        piece(0);
    double alone = used();
    un_pool_run(pool, threads, work, NULL);
    double together = used();
    printf("%f\n", (together - alone) / (alone - start));
    un_pool_free(pool);
    return 0;
}
