/* Engines and programs: what Python calls. An engine is a pool of threads with the kernels of one
 * instruction set; a program is a split of a graph as steps. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pool.h"
#include "un.h"

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
    char *wdata[UN_NODES];
    uint64_t *times; /* of each step: ns at work, ns waiting (thread 0); NULL: not asked for */
} un_program;

typedef struct un_engine {
    un_pool *pool;
    const un_kernels *kernels;
    int threads, nodes;
    struct un_scratch *scratch;
    _Atomic int failed;
    atomic_bool cancelled;
    atomic_int stop_at;   /* the step at which all threads stop */
} un_engine;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

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

UN_API int un_has_op(const un_kernels *kernels, int op) { return kernels->ops[op] != NULL; }

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

UN_API un_engine *un_engine_new(const un_kernels *kernels, int threads, const int *cpus,
                                const int *nodes)
{
    un_engine *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->kernels = kernels;
    e->threads = threads;
    e->scratch = calloc((size_t)threads, sizeof *e->scratch);
    e->pool = un_pool_new(threads, cpus, nodes);
    e->nodes = 1;
    for (int i = 0; i < threads; i++)
        e->nodes = nodes[i] + 1 > e->nodes ? nodes[i] + 1 : e->nodes;
    if (!e->pool || !e->scratch) {
        un_engine_free(e);
        return NULL;
    }
    for (int i = 0; i < threads; i++)
        e->scratch[i].failed = &e->failed;
    return e;
}

UN_API void un_program_free(un_program *p)
{
    if (!p)
        return;
    for (int k = 0; k < UN_NODES; k++)
        free(p->wdata[k]);
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
    for (int k = 0; k < e->nodes && whole; k++) {
        p->wdata[k] = aligned_alloc(64, ((size_t)wdata_bytes + 127) & ~(size_t)63);
        whole = p->wdata[k] != NULL;
    }
    if (!whole) {
        un_program_free(p);
        return NULL;
    }
    memcpy(p->steps, steps, (size_t)count * sizeof *steps);
    memcpy(p->tensors, tensors, (size_t)tensor_count * sizeof *tensors);
    return p;
}

/* Room for the times of each step (two numbers each, see un_program), which runs then add to. */
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
    int node = un_pool_node(pool, thread);
    return (un_task){
        .tensors = r->program ? r->program->tensors : NULL,
        .thread = thread,
        .threads = r->threads,
        .node = node,
        .nodes = un_pool_nodes(pool),
        .rank = un_pool_node_rank(pool, thread),
        .size = un_pool_node_size(pool, node),
        .wdata = r->program ? r->program->wdata : NULL,
        .scratch = &r->engine->scratch[thread],
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
    uint64_t start = p->times && thread == 0 ? now() : 0;
    for (int i = 0; i < p->count; i++) {
        const un_step *step = &p->steps[i];
        if (step->barrier && stops(r, thread, i))
            return;
        task.step = step;
        uint64_t begun = start ? now() : 0;
        r->engine->kernels->ops[step->op](&task);
        if (start) {
            uint64_t end = now();
            p->times[2 * i] += end - begun;
            p->times[2 * i + 1] += begun - start;
            start = end;
        }
    }
}

UN_API int un_run(un_engine *e, un_program *p, int threads)
{
    run r = {e, p, threads};
    atomic_store(&e->failed, UN_OK);
    atomic_store(&e->stop_at, p->count);
    if (un_pool_run(e->pool, threads, work, &r) < 0)
        return UN_NO_MEMORY; /* the child of a fork cannot start threads */
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
        int64_t here = w->first[k + 1] - w->first[k], from, to;
        un_share(here * w->count, part, parts, &from, &to);
        for (int64_t i = from; i < to; i++) {
            int64_t matrix = i / here, row = (w->first[k] + i % here) * UN_LANES;
            int64_t n = w->rows - row < UN_LANES ? w->rows - row : UN_LANES;
            uint8_t *group = (uint8_t *)w->data[k] + i * w->group_bytes;
            const char *rows = p->rows + (matrix * w->rows + row) * p->stride;
            if (w->format->fits && !w->format->fits(rows, p->stride, (int)n, w->cols))
                atomic_store(&p->refused, 1);
            memset(group, 0, (size_t)w->group_bytes);
            w->format->pack(rows, p->stride, (int)n, w->cols, group);
        }
    }
}

/* Packs the rows of a file, `stride` bytes apart, into a weight whose memory is there; 0 if they
 * cannot be packed. */
UN_API int un_pack(un_engine *e, const un_weight *weight, const char *rows, int64_t stride)
{
    packing p = {{e, NULL, e->threads}, weight, rows, stride, 0};
    if (un_pool_run(e->pool, e->threads, pack, &p) < 0)
        return 0;
    return !atomic_load(&p.refused);
}

/* The group of a row, wherever it lies. */
static const uint8_t *group_of(const un_weight *w, int64_t matrix, int64_t row)
{
    int64_t g = row / UN_LANES;
    int k = 0;
    while (g >= w->first[k + 1])
        k++;
    int64_t here = w->first[k + 1] - w->first[k];
    return (const uint8_t *)w->data[k] + (matrix * here + g - w->first[k]) * w->group_bytes;
}

/* The values of one row (counted through all matrices): out[cols, whole blocks]. */
UN_API void un_unpack_row(const un_weight *w, int64_t row, float *out)
{
    const uint8_t *group = group_of(w, row / w->rows, row % w->rows);
    w->format->row(group, (int)(row % w->rows % UN_LANES), w->cols, out);
}
