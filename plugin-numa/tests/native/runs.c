/* Many runs of a pool, with other numbers of threads each time and all in plain memory:
 * runs THREADS NODES RUNS */
#include "pool.h"

#include <stdlib.h>

enum { MOST = 64 };

typedef struct {
    _Alignas(UN_LINE) long wrote;
} line;

static line lines[MOST];
static un_pool *pool;
static int taking;
static _Atomic int failures;

static void work(void *arg, int thread)
{
    long run = *(long *)arg;
    lines[thread].wrote = run;
    un_pool_barrier(pool, thread);
    for (int i = 0; i < taking; i++)
        failures += lines[i].wrote != run;
    un_pool_barrier(pool, thread);
    lines[thread].wrote = -run;
}

int main(int count, char **words)
{
    int cpus[MOST], nodes[MOST];
    if (count < 4)
        return 2;
    int threads = atoi(words[1]), runs = atoi(words[3]);
    for (int i = 0; i < threads; i++) {
        cpus[i] = -1;
        nodes[i] = i * atoi(words[2]) / threads;
    }
    pool = un_pool_new(threads, cpus, nodes);
    for (long run = 1; run <= runs; run++) {
        taking = 1 + (int)(run * 7 / 3 % threads);
        failures += un_pool_run(pool, taking, work, &run) != 0;
        for (int i = 0; i < taking; i++)
            failures += lines[i].wrote != -run;
    }
    un_pool_free(pool);
    return failures != 0;
}
