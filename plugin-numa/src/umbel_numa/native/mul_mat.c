/* Products with packed weights: mul_mat, and the quantisation of activations before it.
 *
 * quantise: in[0] x (..., N, n) float, contiguous rows; i[0] where in the wdata of each node, i[1]
 * which form (UN_ACT_*). Each node's threads make a copy of their own.
 * mul_mat: in[0] packed weight, in[1] x (N, n) float (its values are read only for UN_ACT_F32),
 * in[2] what is added to each result: (out) or (N, out), or none; i[0], i[1] as above. */
#include "blocks.h"

static void quantise_i8(const float *x, int64_t n, int8_t *q, float *d, float *s, int32_t *sum)
{
    float v[32];
    for (int64_t b = 0; 32 * b < n; b++, q += 32) {
        int64_t left = n - 32 * b;
        const float *from = x + 32 * b;
        if (left < 32) {
            memset(v, 0, sizeof v);
            memcpy(v, from, (size_t)left * 4);
            from = v;
        }
        float most = 0;
        for (int k = 0; k < 32; k++)
            most = fabsf(from[k]) > most ? fabsf(from[k]) : most;
        float scale = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0;
        int32_t total = 0;
        for (int k = 0; k < 32; k++) {
            int32_t value = (int32_t)lrintf(from[k] * inverse);
            q[k] = (int8_t)value;
            total += value;
        }
        d[b] = scale;
        s[b] = scale * (float)total;
        sum[b] = total;
    }
}

/* Where the parts of quantised activations lie, from `at` in a node's wdata. */
static un_act act_at(char *at, int form, int64_t rows, int64_t n)
{
    int64_t blocks = (n + 31) / 32, width = form == UN_ACT_I16 ? 2 : 1;
    un_act a = {.n = 32 * blocks, .blocks = blocks};
    a.q = at;
    at += rows * a.n * width;
    a.d = (float *)at;
    a.s = a.d + rows * blocks;
    a.sum = (int32_t *)(a.s + rows * blocks);
    return a;
}

static int64_t rows_of(const un_tensor *x) { return x->n[0] * x->n[1] * x->n[2]; }

void UN_(quantise)(const un_task *task)
{
    const un_tensor *x = un_in(task, 0);
    int form = (int)task->step->i[1];
    int64_t rows = rows_of(x), n = x->n[3], from, to;
    un_act a = act_at(task->wdata[task->node] + task->step->i[0], form, rows, n);
    un_share(rows, task->rank, task->size, &from, &to);
    for (int64_t t = from; t < to; t++) {
        const float *row = (const float *)(x->data + t * x->s[2]);
        quantise_i8(row, n, (int8_t *)a.q + t * a.n, (float *)a.d + t * a.blocks,
                    (float *)a.s + t * a.blocks, (int32_t *)a.sum + t * a.blocks);
    }
}

/* One group of rows against all tokens, a tile at a time. */
typedef struct {
    const un_weight *w;
    un_act x;
    int64_t tokens;
    const un_tensor *out, *add;
} product;

static void store(const product *p, int64_t row, int64_t t, const float *acc)
{
    int64_t n = p->w->rows - row < UN_LANES ? p->w->rows - row : UN_LANES;
    float *out = (float *)(p->out->data + t * p->out->s[2]) + row;
    if (!p->add) {
        memcpy(out, acc, (size_t)n * 4);
        return;
    }
    const char *base = p->add->data + (p->add->n[2] > 1 ? t * p->add->s[2] : 0);
    const float *add = (const float *)base + row;
    for (int64_t i = 0; i < n; i++)
        out[i] = acc[i] + add[i];
}

static void group_tile(const product *p, const uint8_t *group, int64_t row, int64_t t, int n)
{
    float acc[UN_TILE * UN_LANES];
    un_dot d = {.group = group, .from = 0, .to = p->x.blocks, .tokens = n, .acc = acc};
    d.x = p->x;
    d.x.q = (const int8_t *)p->x.q + t * p->x.n;
    d.x.d += t * p->x.blocks;
    d.x.s += t * p->x.blocks;
    d.x.sum += t * p->x.blocks;
    p->w->format->dot(&d);
    for (int i = 0; i < n; i++)
        store(p, row, t + i, acc + i * UN_LANES);
}

enum { CACHED = 256 << 10 }; /* bytes of weights that stay in the second level of the cache */

void UN_(mul_mat)(const un_task *task)
{
    const un_tensor *x = un_in(task, 1), *weight = un_in(task, 0);
    const un_weight *w = weight->weight;
    int form = (int)task->step->i[1], node = w->nodes > 1 ? task->node : 0;
    product p = {.w = w, .tokens = rows_of(x), .out = un_out(task), .add = un_in(task, 2)};
    p.x = act_at(task->wdata[task->node] + task->step->i[0], form, p.tokens, x->n[3]);
    int64_t from, to, first = w->first[node], part = task->thread, parts = task->threads;
    if (w->nodes > 1)
        part = task->rank, parts = task->size;
    un_share(w->first[node + 1] - first, part, parts, &from, &to);
    int64_t step = CACHED / w->group_bytes > 1 ? CACHED / w->group_bytes : 1;
    for (int64_t block = from; block < to; block += step)
        for (int64_t t = 0; t < p.tokens; t += UN_TILE) {
            int n = (int)(p.tokens - t < UN_TILE ? p.tokens - t : UN_TILE);
            for (int64_t g = block; g < to && g < block + step; g++) {
                const uint8_t *group = (const uint8_t *)w->data[node] + g * w->group_bytes;
                group_tile(&p, group, (first + g) * UN_LANES, t, n);
            }
        }
}
