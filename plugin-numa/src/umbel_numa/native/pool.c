#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "affinity.h"
#include "pages.h"

/* A starting thread starts this many others: a run reaches 128 threads in four hops, and no
 * thread pays for waking them all. */
enum { FAN = 4, STACK = 2 << 20 };

/* What belongs to one thread, on lines of its own. */
typedef struct {
    un_word go;         /* counts the runs it took part in */
    un_spin at_go;      /* a wait for the next run and a wait inside one are learnt apart */
    un_spin at_barrier;
    un_pool *pool;
    pthread_t thread;
    int cpu, node;
    bool pinned;
    int number;         /* in the run at hand */
} seat;

struct un_pool {
    int made, nodes;    /* threads and nodes there are */
    pid_t pid;          /* of the process that has the threads */
    bool stop;
    un_barrier *barrier;
    seat *seats;        /* contiguous per node */
    int *rooms;         /* seats of each node */

    int threads, used;  /* of the run at hand: threads that take part, nodes they are on, */
    int *sizes;         /* how many on each, */
    int *firsts;        /* the number of the first of them, */
    seat **taking;      /* and their seats, by number */
    void (*work)(void *arg, int thread);
    void *arg;
    uint32_t expected;  /* what `finished` comes to */
    un_word finished;   /* counts workers that are done, over all runs */
};

static void send(seat *to)
{
    uint32_t runs = atomic_load_explicit(&to->go.value, memory_order_relaxed) & ~UN_ASLEEP;
    un_word_arrive(&to->go, runs + UN_STEP);
}

static void start_children(un_pool *pool, int number)
{
    for (int child = FAN * number + 1; child <= FAN * number + FAN; child++) {
        if (child >= pool->threads)
            return;
        send(pool->taking[child]);
    }
}

static void *worker(void *arg)
{
    seat *own = arg;
    un_pool *pool = own->pool;
    for (uint32_t runs = UN_STEP;; runs += UN_STEP) {
        un_word_await(&own->go, runs, &own->at_go);
        if (pool->stop)
            return NULL;
        start_children(pool, own->number);
        pool->work(pool->arg, own->number);
        un_word_arrive(&pool->finished, pool->expected);
    }
}

/* Signals go to the threads that Python knows; but a fault hits the thread that made it. */
static void block_signals(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_BLOCK, &all, before);
}

static void dismiss(un_pool *pool, int workers)
{
    pool->stop = true;
    for (int i = 1; i <= workers; i++)
        send(&pool->seats[i]);
    for (int i = 1; i <= workers; i++)
        pthread_join(pool->seats[i].thread, NULL);
}

/* A fresh barrier, each node's part touched on the node. */
static un_barrier *new_barrier(const un_pool *pool)
{
    int *cpus = calloc((size_t)pool->nodes, sizeof *cpus);
    if (cpus == NULL)
        return NULL;
    for (int i = pool->made - 1; i >= 0; i--)
        cpus[pool->seats[i].node] = pool->seats[i].cpu;
    un_barrier *barrier = un_barrier_new(pool->nodes, cpus);
    free(cpus);
    return barrier;
}

static int start_workers(un_pool *pool)
{
    pthread_attr_t attributes;
    sigset_t before;
    int failed = 0;
    if (pthread_attr_init(&attributes) != 0)
        return -ENOMEM;
    pthread_attr_setstacksize(&attributes, STACK);
    block_signals(&before);
    for (int i = 1; i < pool->made && failed == 0; i++) {
        seat *next = &pool->seats[i];
        failed = -pthread_create(&next->thread, &attributes, worker, next);
        if (failed < 0)
            dismiss(pool, i - 1);
        else
            next->pinned = next->cpu >= 0 && un_pin(next->thread, next->cpu) == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed;
}

/* Makes the workers, and all that their runs leave behind, anew: for this process. */
static int hire(un_pool *pool)
{
    un_barrier_free(pool->barrier);
    pool->barrier = new_barrier(pool);
    if (pool->barrier == NULL)
        return -ENOMEM;
    pool->stop = false;
    pool->threads = 0;
    pool->expected = 0;
    un_word_init(&pool->finished);
    for (int i = 0; i < pool->made; i++) {
        un_word_init(&pool->seats[i].go);
        pool->seats[i].at_go = pool->seats[i].at_barrier = (un_spin){0};
    }
    int failed = start_workers(pool);
    if (failed == 0)
        pool->pid = getpid();
    return failed;
}

int un_pool_shares(const un_pool *pool, int threads, int *sizes)
{
    int used = 0;
    for (int n = 0; n < pool->nodes; n++)
        sizes[n] = 0;
    for (int round = 0, dealt = 0; dealt < threads && round < pool->made; round++) {
        for (int n = 0; n < pool->nodes && dealt < threads; n++) {
            if (pool->rooms[n] <= round)
                continue;
            sizes[n]++;
            dealt++;
            used = n >= used ? n + 1 : used;
        }
    }
    return used;
}

/* Chooses who takes part. Nobody is inside a run. */
static void shape(un_pool *pool, int threads)
{
    int number = 0;
    seat *first = pool->seats;
    pool->threads = threads;
    pool->used = un_pool_shares(pool, threads, pool->sizes);
    for (int n = 0; n < pool->used; first += pool->rooms[n++]) {
        pool->firsts[n] = number;
        for (int rank = 0; rank < pool->sizes[n]; rank++) {
            first[rank].number = number;
            pool->taking[number++] = &first[rank];
        }
    }
    un_barrier_shape(pool->barrier, pool->used, pool->sizes);
}

int un_pool_run(un_pool *pool, int threads, void (*work)(void *arg, int thread), void *arg)
{
    seat *own = pool->seats;
    un_cpus before;
    if (threads < 1 || threads > pool->made)
        return -EINVAL;
    int failed = pool->pid == getpid() ? 0 : hire(pool);
    if (failed < 0)
        return failed;
    if (threads != pool->threads)
        shape(pool, threads);
    pool->work = work;
    pool->arg = arg;
    pool->expected += UN_STEP * (uint32_t)(threads - 1);
    own->pinned = own->cpu >= 0 && un_where_pinned(&before) == 0
                  && un_pin(pthread_self(), own->cpu) == 0;
    start_children(pool, 0);
    work(arg, 0);
    un_word_await(&pool->finished, pool->expected, &own->at_go);
    if (own->pinned)
        un_unpin(&before);
    return 0;
}

void un_pool_barrier(un_pool *pool, int thread)
{
    seat *own = pool->taking[thread];
    un_barrier_wait(pool->barrier, own->node, &own->at_barrier);
}

int un_pool_nodes(const un_pool *pool)
{
    return pool->used;
}

int un_pool_node(const un_pool *pool, int thread)
{
    return pool->taking[thread]->node;
}

int un_pool_node_rank(const un_pool *pool, int thread)
{
    return thread - pool->firsts[pool->taking[thread]->node];
}

int un_pool_node_size(const un_pool *pool, int node)
{
    return pool->sizes[node];
}

int un_pool_pinned(const un_pool *pool)
{
    int pinned = 0;
    for (int i = 0; i < pool->made; i++)
        pinned += pool->seats[i].pinned;
    return pinned;
}

/* The number of nodes, or -EINVAL: see un_pool_new. */
static int count_nodes(int threads, const int *nodes)
{
    if (threads < 1 || nodes[0] != 0)
        return -EINVAL;
    for (int i = 1; i < threads; i++)
        if (nodes[i] != nodes[i - 1] && nodes[i] != nodes[i - 1] + 1)
            return -EINVAL;
    return nodes[threads - 1] + 1;
}

static int furnish(un_pool *pool, const int *cpus, const int *nodes)
{
    pool->seats = un_pages_alloc((int64_t)sizeof(seat) * pool->made, 0);
    pool->rooms = calloc((size_t)pool->nodes, sizeof(int));
    pool->sizes = calloc((size_t)pool->nodes, sizeof(int));
    pool->firsts = calloc((size_t)pool->nodes, sizeof(int));
    pool->taking = calloc((size_t)pool->made, sizeof(seat *));
    if (!pool->seats || !pool->rooms || !pool->sizes || !pool->firsts || !pool->taking)
        return -ENOMEM;
    for (int i = 0; i < pool->made; i++) {
        pool->seats[i].pool = pool;
        pool->seats[i].cpu = cpus[i];
        pool->seats[i].node = nodes[i];
        pool->rooms[nodes[i]]++;
    }
    return hire(pool);
}

un_pool *un_pool_new(int threads, const int *cpus, const int *nodes)
{
    int count = count_nodes(threads, nodes);
    un_pool *pool = count < 0 ? NULL : un_pages_alloc(sizeof *pool, 0);
    int failed = count;
    if (pool != NULL) {
        pool->made = threads;
        pool->nodes = count;
        failed = furnish(pool, cpus, nodes);
    } else if (count > 0) {
        failed = -ENOMEM;
    }
    if (failed < 0) {
        un_pool_free(pool);
        errno = -failed;
        return NULL;
    }
    return pool;
}

void un_pool_free(un_pool *pool)
{
    if (pool == NULL)
        return;
    if (pool->pid == getpid())  /* else they are another process's */
        dismiss(pool, pool->made - 1);
    un_barrier_free(pool->barrier);
    un_pages_free(pool->seats, (int64_t)sizeof(seat) * pool->made);
    free(pool->rooms);
    free(pool->sizes);
    free(pool->firsts);
    free(pool->taking);
    un_pages_free(pool, sizeof *pool);
}
