/* Rows that are written into a state.
 *
 * set_rows: in[0] the state (R, C), float32, float16 or q8_0, in[1] rows (n, C), in[2] ids (n).
 * kv_store: in[0] k (S, T, Hkv, hd), in[1] v (S, T, Hkv, hv), in[2] cells (S*T), in[3] and
 * in[4] their caches (cells, Hkv*hd) and (cells, Hkv*hv), or as kv_attention has them. Where
 * i[0] is not 0, k is (S*T, Hkv, hd) and is turned first, by i[0] to i[2] as rope has them.
 *
 * A thread writes the rows whose number is its own modulo the threads: of two values for one
 * row the later stays, as in the reference, and no two threads write to one place. */
#include "functions.h"
#include "rows.h"

static int32_t id_of(const un_tensor *ids, int64_t i)
{
    return *(const int32_t *)(ids->data + i * ids->s[3]);
}

void UN_(set_rows)(const un_task *task)
{
    const un_tensor *state = un_in(task, 0), *rows = un_in(task, 1), *ids = un_in(task, 2);
    float *room = un_scratch_get(task, (size_t)rows->n[3] * 4 + 4);
    if (!room)
        return;
    for (int64_t i = 0; i < ids->n[3]; i++) {
        int64_t id = id_of(ids, i);
        if (id % task->threads != task->thread)
            continue;
        const float *row = un_floats(rows, rows->data + i * rows->s[2], room);
        un_put(state->data + id * state->s[2], state->type, row, rows->n[3]);
    }
}

/* One token's keys or values, all heads side by side: where they lie, or in `room`. */
static const float *heads_of(const un_tensor *x, int64_t token, float *room)
{
    const char *from = x->data + token / x->n[1] * x->s[0] + token % x->n[1] * x->s[1];
    int64_t size = x->n[3];
    if (x->s[3] == 4 && x->s[2] == size * 4)
        return (const float *)from;
    for (int64_t h = 0; h < x->n[2]; h++)
        un_values(from + h * x->s[2], x->type, x->s[3], 0, size, room + h * size);
    return room;
}

/* Those of x into a row of its cache, or into that of each head. */
static void put_heads(const un_tensor *x, const float *row, const un_tensor *cache,
                      int64_t cell)
{
    int64_t size = x->n[3];
    for (int64_t h = 0; cache->axes == 3 && h < x->n[2]; h++)
        un_put(cache->data + h * cache->s[1] + cell * cache->s[2], cache->type, row + h * size,
               size);
    if (cache->axes == 2)
        un_put(cache->data + cell * cache->s[2], cache->type, row, x->n[2] * size);
}

void UN_(kv_store)(const un_task *task)
{
    const un_tensor *cells = un_in(task, 2);
    const un_tensor *keys = un_in(task, 0), *values = un_in(task, 1);
    int64_t k = keys->n[2] * keys->n[3], v = values->n[2] * values->n[3], n = cells->n[3];
    int64_t dims = task->step->i[0], size = keys->n[3];
    const float *table = (const float *)(task->wdata[task->node] + task->step->i[1]);
    float *room = un_scratch_get(task, (size_t)(k > v ? k : v) * 4 + 4);
    if (!room)
        return;
    for (int64_t i = 0; i < n; i++) {
        int64_t cell = id_of(cells, i);
        if (cell % task->threads != task->thread)
            continue;
        const float *row = heads_of(keys, i, room), *cosine = table + i * dims / 2;
        for (int64_t at = 0; dims && at < k; at += size)
            UN_(turn_head)(room + at, row + at, cosine, cosine + n * dims / 2, dims, size,
                           task->step->i[2] != 0);
        put_heads(keys, dims ? room : row, un_in(task, 3), cell);
        put_heads(values, heads_of(values, i, room), un_in(task, 4), cell);
    }
}
