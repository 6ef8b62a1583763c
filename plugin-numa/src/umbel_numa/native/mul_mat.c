/* Products with packed weights: mul_mat, and the quantisation of activations before it.
 *
 * quantise: in[0] x (..., N, n) float; i[0] where in the wdata of each node, i[1] which form
 * (UN_ACT_*). Each node's threads make a copy of their own.
 * mul_mat: in[0] packed weight (..., out, n), in[1] x (..., N, n) float (its values are read
 * only for UN_ACT_F32), in[2] what is added to each result: (out) or (N, out), or none; i[0],
 * i[1] as above; i[2] the first of the weight's rows, of all that are packed together. */
#include "products.h"

/* 32 values as 8-bit integers times a scale; zeros where all are next to nothing. */
static void quantise_block(const float *x, int8_t *q, float *d)
{
    enum { V = 32 / UN_XL };
    xf v[V], size = xf_zero();
    for (int i = 0; i < V; i++) {
        v[i] = xf_load(x + i * UN_XL);
        size = xf_max(xf_max(v[i], xf_sub(xf_zero(), v[i])), size);
    }
    float most = xf_most(size), inverse = most > 0x1p-100f ? 127.0f / most : 0;
    for (int i = 0; i < V; i++)
        xi_store_s8(q + i * UN_XL, xi_round(xf_mul(v[i], xf_set1(inverse))));
    *d = most / 127.0f;
}

static void quantise_i8(const float *x, int64_t n, const un_act *a, int64_t t)
{
    int8_t *q = (int8_t *)a->q + t * a->n;
    float *d = (float *)a->d + t * a->blocks, *s = (float *)a->s + t * a->blocks;
    int16_t *sum = (int16_t *)a->sum + 2 * t * a->blocks;
    int64_t whole = n / 32;
    for (int64_t b = 0; b < whole; b++)
        quantise_block(x + 32 * b, q + 32 * b, d + b);
    if (n > 32 * whole) {
        float last[32] = {0};
        memcpy(last, x + 32 * whole, (size_t)(n - 32 * whole) * 4);
        quantise_block(last, q + 32 * whole, d + whole);
    }
    for (int64_t b = 0; b < a->blocks; b++) {
        sum[2 * b] = (int16_t)un_sum_s8(q + 32 * b);
        sum[2 * b + 1] = (int16_t)un_sum_s8(q + 32 * b + 16);
        s[b] = d[b] * (float)(sum[2 * b] + sum[2 * b + 1]);
    }
}

void UN_(quantise)(const un_task *task)
{
    const un_tensor *x = un_in(task, 0);
    int form = (int)task->step->i[1];
    int64_t rows = un_rows(x), n = x->n[3], from, to;
    un_act a = un_act_at(task->wdata[task->node] + task->step->i[0], form, rows, n);
    un_share(rows, task->rank, task->size, &from, &to);
    float *line = x->s[3] == 4 || from == to ? NULL : un_scratch_get(task, (size_t)n * 4);
    for (int64_t t = from; t < to; t++) {
        const char *row = un_row(x, t);
        for (int64_t k = 0; line && k < n; k++)
            memcpy(&line[k], row + k * x->s[3], 4);
        quantise_i8(line ? line : (const float *)row, n, &a, t);
    }
}

/* A product of some rows of one packed matrix with tokens that lie together. */
typedef struct {
    const un_weight *w;
    un_act x;
    int64_t tokens;
    int64_t row, rows;      /* of the matrix */
    int64_t matrix;
    char *out;              /* (tokens, rows) */
    int64_t out_stride;
    const char *add;        /* likewise; or NULL */
    int64_t add_stride;
} product;

/* The rows of group g that are wanted, of one token. */
static void store(const product *p, int64_t g, int64_t t, const float *acc)
{
    int64_t first = g * UN_LANES, from = p->row > first ? p->row - first : 0;
    int64_t end = p->row + p->rows - first, to = end < UN_LANES ? end : UN_LANES;
    float *out = (float *)(p->out + t * p->out_stride) + first - p->row;
    if (!p->add) {
        memcpy(out + from, acc + from, (size_t)(to - from) * 4);
        return;
    }
    const float *add = (const float *)(p->add + t * p->add_stride) + first - p->row;
    for (int64_t i = from; i < to; i++)
        out[i] = acc[i] + add[i];
}

/* One or two groups against up to UN_MANY tokens. */
static void tile(const product *p, const uint8_t *group, int64_t g, int groups, int64_t t,
                 int n)
{
    _Alignas(64) float acc[2 * UN_MANY * UN_LANES];
    int64_t width = p->w->format->act == UN_ACT_I16 ? 2 : 1;
    un_dot d = {.group = group, .groups = groups, .group_bytes = p->w->group_bytes, .from = 0,
                .to = p->x.blocks, .tokens = n, .acc = acc, .x = p->x};
    d.x.q = (const int8_t *)p->x.q + t * p->x.n * width;
    d.x.d += t * p->x.blocks;
    d.x.s += t * p->x.blocks;
    d.x.sum += 2 * t * p->x.blocks;
    p->w->format->dot(&d);
    for (int i = 0; i < groups; i++)
        for (int k = 0; k < n; k++)
            store(p, g + i, t + k, acc + (i * UN_MANY + k) * UN_LANES);
}

/* The groups that fall to this thread, of those that its node holds. */
static void multiply(const un_task *task, const product *p)
{
    const un_weight *w = p->w;
    int node = w->nodes > 1 ? task->node : 0;
    int64_t first = w->first[node], end = w->first[node + 1], share_from, share_to;
    int64_t from = p->row / UN_LANES, to = (p->row + p->rows + UN_LANES - 1) / UN_LANES;
    from = from > first ? from : first;
    to = to > end ? end : to > from ? to : from;
    if (w->nodes > 1)
        un_share(to - from, task->rank, task->size, &share_from, &share_to);
    else
        un_share(to - from, task->thread, task->threads, &share_from, &share_to);
    const uint8_t *data = (const uint8_t *)w->data[node];
    int64_t skip = p->matrix * (end - first) - first;
    int whole = w->format->act == UN_ACT_I8, most = whole ? UN_MANY : UN_TILE;
    for (int64_t t = 0; t < p->tokens; t += most) {
        int n = (int)(p->tokens - t < most ? p->tokens - t : most), groups;
        for (int64_t g = from + share_from; g < from + share_to; g += groups) {
            groups = whole && g + 2 <= from + share_to ? 2 : 1;
            tile(p, data + (skip + g) * w->group_bytes, g, groups, t, n);
        }
    }
}

/* Rows of x from `t` on times `rows` packed rows from `row` on, across packed matrices. */
static void multiply_rows(const un_task *task, product p, int64_t t, int64_t row, int64_t rows)
{
    const un_tensor *out = un_out(task), *add = un_in(task, 2);
    char *to = out->data + t * out->s[2];
    for (int64_t done = 0; done < rows; done += p.rows) {
        p.matrix = (row + done) / p.w->rows;
        p.row = (row + done) % p.w->rows;
        p.rows = rows - done < p.w->rows - p.row ? rows - done : p.w->rows - p.row;
        p.out = to + 4 * done;
        if (add) {
            p.add_stride = add->n[2] > 1 ? add->s[2] : 0;
            p.add = add->data + t * p.add_stride + 4 * done;
        }
        multiply(task, &p);
    }
}

void UN_(mul_mat)(const un_task *task)
{
    const un_tensor *x = un_in(task, 1), *weight = un_in(task, 0), *out = un_out(task);
    const un_weight *w = weight->weight;
    int64_t row = task->step->i[2], rows = weight->n[2], all = un_rows(x);
    product p = {.w = w, .out_stride = out->s[2], .tokens = all};
    char *at = task->wdata[task->node] + task->step->i[0];
    p.x = un_act_at(at, (int)task->step->i[1], all, x->n[3]);
    if (weight->n[0] * weight->n[1] <= 1) {
        multiply_rows(task, p, 0, row, rows);
        return;
    }
    un_act every = p.x;
    p.tokens = x->n[2];
    for (int64_t i = 0; i < x->n[0] * x->n[1]; i++) { /* batch i of x meets one matrix */
        int64_t outer = i / x->n[1] * weight->n[0] / x->n[0];
        int64_t inner = i % x->n[1] * weight->n[1] / x->n[1], t = i * p.tokens;
        p.x.q = (const int8_t *)every.q + t * every.n * (w->format->act == UN_ACT_I16 ? 2 : 1);
        p.x.d = every.d + t * every.blocks;
        p.x.s = every.s + t * every.blocks;
        p.x.sum = every.sum + 2 * t * every.blocks;
        int64_t away = outer * weight->s[0] + inner * weight->s[1];
        multiply_rows(task, p, t, row + away / weight->s[2], rows);
    }
}
