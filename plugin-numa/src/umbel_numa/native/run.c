/* Engines and programs: what Python calls. An engine is a pool of threads with the kernels of
 * one instruction set; a program is a split of a graph as steps. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "pages.h"
#include "placed.h"
#include "pool.h"

enum { UN_OK, UN_CANCELLED, UN_NO_MEMORY };

struct un_scratch {
    char *data;
    size_t bytes;
    _Atomic int *failed;
};

typedef struct un_program {
    un_step *steps;
    un_tensor *tensors;
    int32_t count;
    char *wdata[UN_NODES]; /* in memory of the node */
    int64_t wdata_bytes;
    uint64_t *times; /* of each step: ns at work, ns waiting (thread 0); NULL: not asked for */
} un_program;

typedef struct un_engine {
    un_pool *pool;
    const un_kernels *kernels;
    int threads, nodes;
    int first[UN_NODES];  /* thread of each node */
    int numbers[UN_NODES]; /* what the system calls the nodes; -1: memory may lie anywhere */
    struct un_scratch *scratch; /* of each thread there is, in their order */
    _Atomic int failed;
    atomic_bool cancelled;
    atomic_int stop_at;   /* the step at which all threads stop */
} un_engine;

void *un_scratch_get(const un_task *task, size_t bytes)
{
    struct un_scratch *s = task->scratch;
    if (bytes > s->bytes) {
        free(s->data);
        s->bytes = (bytes + 4095) & ~(size_t)4095;
        s->data = aligned_alloc(64, s->bytes);
        if (!s->data) {
            s->bytes = 0;
            atomic_store(s->failed, UN_NO_MEMORY);
        }
    }
    return s->data;
}

UN_API const char *un_op_names(void)
{
#define UN_NAME(name) #name " "
    return UN_OPS(UN_NAME);
#undef UN_NAME
}

/* Bytes of the structures that Python lays out as well, so that it can check its own. */
UN_API void un_sizes(int32_t *out)
{
    out[0] = sizeof(un_tensor), out[1] = sizeof(un_step), out[2] = sizeof(un_weight);
}

UN_API const un_kernels *un_variant(const char *name)
{
    for (int i = 0; un_variants[i]; i++)
        if (!strcmp(un_variants[i]->name, name))
            return un_variants[i];
    return NULL;
}

UN_API const un_format *un_format_of(const un_kernels *kernels, int type)
{
    for (int i = 0; kernels->formats[i]; i++)
        if (kernels->formats[i]->type == type)
            return kernels->formats[i];
    return NULL;
}

UN_API void un_engine_free(un_engine *e)
{
    if (!e)
        return;
    un_pool_free(e->pool);
    for (int i = 0; e->scratch && i < e->threads; i++)
        free(e->scratch[i].data);
    free(e->scratch);
    free(e);
}

/* Threads as un_pool_new has them; numbers[n] is what the system calls node n, or -1. */
UN_API un_engine *un_engine_new(const un_kernels *kernels, int threads, const int *cpus,
                                const int *nodes, const int *numbers)
{
    un_engine *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->kernels = kernels;
    e->threads = threads;
    e->scratch = calloc((size_t)threads, sizeof *e->scratch);
    e->pool = un_pool_new(threads, cpus, nodes);
    if (!e->pool || !e->scratch || nodes[threads - 1] >= UN_NODES) {
        un_engine_free(e);
        return NULL;
    }
    e->nodes = nodes[threads - 1] + 1;
    memcpy(e->numbers, numbers, (size_t)e->nodes * sizeof *numbers);
    for (int i = threads - 1; i >= 0; i--) {
        e->scratch[i].failed = &e->failed;
        e->first[nodes[i]] = i;
    }
    return e;
}

/* How many threads sit where they shall. */
UN_API int un_engine_pinned(const un_engine *e) { return un_pool_pinned(e->pool); }

/* sizes[n]: how many of the threads that take part in a run are on node n. */
UN_API void un_engine_shares(const un_engine *e, int threads, int *sizes)
{
    un_pool_shares(e->pool, threads, sizes);
}

UN_API void un_program_free(un_program *p)
{
    if (!p)
        return;
    for (int k = 0; k < UN_NODES; k++)
        un_pages_free(p->wdata[k], p->wdata_bytes);
    free(p->steps);
    free(p->tensors);
    free(p->times);
    free(p);
}

UN_API un_program *un_program_new(const un_engine *e, const un_step *steps, int32_t count,
                                  const un_tensor *tensors, int32_t tensor_count,
                                  int64_t wdata_bytes)
{
    un_program *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->count = count;
    p->steps = malloc((size_t)count * sizeof *steps + 1);
    p->tensors = malloc((size_t)tensor_count * sizeof *tensors + 1);
    int whole = p->steps && p->tensors;
    p->wdata_bytes = wdata_bytes + 64;
    for (int k = 0; k < e->nodes && whole; k++) {
        p->wdata[k] = un_pages_alloc(p->wdata_bytes, 1);
        whole = p->wdata[k] != NULL;
        if (whole && e->nodes > 1) /* refused: it will lie where it is touched first */
            un_pages_bind(p->wdata[k], p->wdata_bytes, e->numbers[k]);
    }
    if (!whole) {
        un_program_free(p);
        return NULL;
    }
    memcpy(p->steps, steps, (size_t)count * sizeof *steps);
    memcpy(p->tensors, tensors, (size_t)tensor_count * sizeof *tensors);
    return p;
}

/* Room for the times of each step (two numbers each, see un_program), which runs then add
 * to. */
UN_API uint64_t *un_program_times(un_program *p)
{
    if (!p->times)
        p->times = calloc((size_t)p->count * 2 + 2, sizeof *p->times);
    return p->times;
}

typedef struct {
    un_engine *engine;
    un_program *program;
    int threads;
} run;

static un_task task_of(const run *r, int thread)
{
    const un_pool *pool = r->engine->pool;
    int node = un_pool_node(pool, thread), rank = un_pool_node_rank(pool, thread);
    return (un_task){
        .tensors = r->program ? r->program->tensors : NULL,
        .thread = thread,
        .threads = r->threads,
        .node = node,
        .nodes = un_pool_nodes(pool),
        .rank = rank,
        .size = un_pool_node_size(pool, node),
        .wdata = r->program ? r->program->wdata : NULL,
        .scratch = &r->engine->scratch[r->engine->first[node] + rank],
    };
}

/* Whether all threads stop before step i. Only thread 0 decides, before the barrier, so that no
 * thread waits for one that has left. */
static int stops(run *r, int thread, int i)
{
    un_engine *e = r->engine;
    if (thread == 0 && (atomic_load_explicit(&e->cancelled, memory_order_relaxed) ||
                        atomic_load_explicit(&e->failed, memory_order_relaxed)))
        atomic_store_explicit(&e->stop_at, i, memory_order_relaxed);
    un_pool_barrier(e->pool, thread);
    return atomic_load_explicit(&e->stop_at, memory_order_relaxed) <= i;
}

static void work(void *arg, int thread)
{
    run *r = arg;
    un_program *p = r->program;
    un_task task = task_of(r, thread);
    int64_t start = p->times && thread == 0 ? un_now() : 0;
    for (int i = 0; i < p->count; i++) {
        const un_step *step = &p->steps[i];
        if (step->barrier && stops(r, thread, i))
            return;
        task.step = step;
        int64_t begun = start ? un_now() : 0;
        r->engine->kernels->ops[step->op](&task);
        if (start) {
            int64_t end = un_now();
            p->times[2 * i] += (uint64_t)(end - begun);
            p->times[2 * i + 1] += (uint64_t)(begun - start);
            start = end;
        }
    }
}

/* UN_OK, why it ended before its end, or -errno: in the child of a fork threads are started
 * anew, and could not be. */
UN_API int un_run(un_engine *e, un_program *p, int threads)
{
    run r = {e, p, threads};
    atomic_store(&e->failed, UN_OK);
    atomic_store(&e->stop_at, p->count);
    int failed = un_pool_run(e->pool, threads, work, &r);
    if (failed < 0)
        return failed;
    if (atomic_load(&e->failed))
        return atomic_load(&e->failed);
    return atomic_load(&e->stop_at) < p->count ? UN_CANCELLED : UN_OK;
}

/* Sets or takes back the wish that the steps of this engine end; from any thread. */
UN_API void un_cancel(un_engine *e, int wanted) { atomic_store(&e->cancelled, wanted != 0); }

typedef struct {
    run run;
    const un_weight *weight;
    const char *rows;
    int64_t stride;
    atomic_int refused;
} packing;

/* Each node's threads pack what lies there, so that fresh pages are its own. */
static void pack(void *arg, int thread)
{
    packing *p = arg;
    const un_weight *w = p->weight;
    un_task task = task_of(&p->run, thread);
    int from_node = 0, to_node = (int)w->nodes, part = thread, parts = p->run.threads;
    if (w->nodes > 1 && w->nodes == task.nodes)
        from_node = task.node, to_node = task.node + 1, part = task.rank, parts = task.size;
    for (int k = from_node; k < to_node; k++) {
        int64_t from, to, matrix, g;
        un_share(un_held(w, k), part, parts, &from, &to);
        for (int64_t i = from; i < to; i++) {
            if (atomic_load_explicit(&p->refused, memory_order_relaxed))
                return;
            un_held_at(w, k, i, &matrix, &g);
            int64_t row = g * UN_LANES, n = w->rows - row < UN_LANES ? w->rows - row : UN_LANES;
            uint8_t *group = (uint8_t *)w->data[k] + i * w->group_bytes;
            const char *rows = p->rows + (matrix * w->rows + row) * p->stride;
            if (w->format->fits && !w->format->fits(rows, p->stride, (int)n, w->cols)) {
                atomic_store_explicit(&p->refused, 1, memory_order_relaxed);
                return;
            }
            memset(group, 0, (size_t)w->group_bytes);
            w->format->pack(rows, p->stride, (int)n, w->cols, group);
        }
    }
}

/* Packs the rows of a file, `stride` bytes apart, into a weight whose memory is there. 1: they
 * cannot be packed; -errno as of un_run. */
UN_API int un_pack(un_engine *e, const un_weight *weight, const char *rows, int64_t stride)
{
    packing p = {{e, NULL, e->threads}, weight, rows, stride, 0};
    int failed = un_pool_run(e->pool, e->threads, pack, &p);
    return failed < 0 ? failed : atomic_load(&p.refused);
}

/* The values of one row (counted through all matrices): out[cols, whole blocks]. */
UN_API void un_unpack_row(const un_weight *w, int64_t row, float *out)
{
    int64_t matrix = row / w->rows, g = row % w->rows / UN_LANES;
    const uint8_t *group = un_group_of(w, un_holder(w, 0, matrix, g), matrix, g);
    w->format->row(group, (int)(row % w->rows % UN_LANES), w->cols, out);
}
