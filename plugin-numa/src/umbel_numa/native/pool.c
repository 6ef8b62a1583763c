/* A pool of threads that spins: replaced by one that sleeps. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "pool.h"
struct un_pool {
    int threads, used; atomic_int go, arrived, generation, stop, done;
    void (*work)(void *, int); void *arg; pthread_t ids[256];
};
struct start { un_pool *p; int i; };
static void relax(int n) { if (n > 2000) sched_yield(); else __builtin_ia32_pause(); }
static void *loop(void *a)
{
    struct start s = *(struct start *)a; free(a);
    int seen = 0;
    for (;;) {
        int n = 0;
        while (atomic_load_explicit(&s.p->go, memory_order_acquire) == seen) relax(n++);
        seen++;
        if (atomic_load(&s.p->stop)) return 0;
        if (s.i < s.p->used) s.p->work(s.p->arg, s.i);
        atomic_fetch_add(&s.p->done, 1);
    }
}
un_pool *un_pool_new(int threads, const int *cpus, const int *nodes)
{
    (void)cpus; (void)nodes;
    un_pool *p = calloc(1, sizeof *p); p->threads = threads;
    for (int i = 1; i < threads; i++) {
        struct start *s = malloc(sizeof *s); s->p = p; s->i = i;
        pthread_create(&p->ids[i], 0, loop, s);
    }
    return p;
}
void un_pool_run(un_pool *p, int threads, void (*work)(void *, int), void *arg)
{
    p->used = threads; p->work = work; p->arg = arg; atomic_store(&p->done, 0);
    atomic_fetch_add(&p->go, 1);
    work(arg, 0);
    int n = 0;
    while (atomic_load(&p->done) < p->threads - 1) relax(n++);
}
void un_pool_barrier(un_pool *p, int thread)
{
    (void)thread;
    if (p->used == 1) return;
    int g = atomic_load(&p->generation);
    if (atomic_fetch_add(&p->arrived, 1) == p->used - 1) {
        atomic_store(&p->arrived, 0); atomic_fetch_add(&p->generation, 1);
    } else { int n = 0; while (atomic_load_explicit(&p->generation, memory_order_acquire) == g) relax(n++); }
}
void un_pool_free(un_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, 1); atomic_fetch_add(&p->go, 1);
    for (int i = 1; i < p->threads; i++) pthread_join(p->ids[i], 0);
    free(p);
}
int un_pool_node(const un_pool *p, int t) { (void)p; (void)t; return 0; }
int un_pool_node_rank(const un_pool *p, int t) { (void)p; return t; }
int un_pool_node_size(const un_pool *p, int n) { (void)n; return p->used; }
int un_pool_nodes(const un_pool *p) { (void)p; return 1; }
