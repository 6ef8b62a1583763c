/* Products with packed weights: mul_mat, and the quantisation of activations before it.
 *
 * quantise: in[0] x (..., N, n) float, contiguous rows; i[0] where in the wdata of each node, i[1]
 * which form (UN_ACT_*). Each node's threads make a copy of their own.
 * mul_mat: in[0] packed weight, in[1] x (N, n) float (its values are read only for UN_ACT_F32),
 * in[2] what is added to each result: (out) or (N, out), or none; i[0], i[1] as above. */
#include "blocks.h"
#include "floats.h"
#include "packed.h"

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

void UN_(quantise)(const un_task *task)
{
    const un_tensor *x = un_in(task, 0);
    int form = (int)task->step->i[1];
    int64_t rows = un_rows(x), n = x->n[3], from, to;
    un_act all = un_act_at(task->wdata[task->node] + task->step->i[0], form, rows, n);
    un_share(rows, task->rank, task->size, &from, &to);
    for (int64_t t = from; t < to; t++) {
        un_act a = un_act_from(all, form, t);
        const float *row = (const float *)un_row(x, t);
        if (form == UN_ACT_F32)
            un_copy_f32(row, n, (float *)a.q);
        else if (form == UN_ACT_I16)
            un_quantise_i16(row, n, (int16_t *)a.q, (float *)a.d, (float *)a.s);
        else
            quantise_i8(row, n, (int8_t *)a.q, (float *)a.d, (float *)a.s, (int32_t *)a.sum);
    }
}

typedef struct {
    un_matrix m;
    un_act x;
    int64_t tokens;
    int form, node;
    const un_tensor *out;
    int64_t first; /* row of the result that token 0 has */
} product;

static void group_tile(const product *p, int64_t g, int64_t t, int n)
{
    float acc[UN_TILE * UN_LANES];
    un_dot d = {.groups = 1, .from = 0, .to = p->x.blocks, .tokens = n, .acc = acc};
    d.group = un_matrix_group(&p->m, p->node, g);
    d.x = un_act_from(p->x, p->form, t);
    if (p->form == UN_ACT_F32)
        UN_(dot_floats)(p->m.w->format, &d);
    else
        p->m.w->format->dot(&d);
    for (int i = 0; i < n; i++)
        un_matrix_store(&p->m, g, acc + i * UN_LANES, (float *)un_row(p->out, p->first + t + i));
}

enum { CACHED = 256 << 10 }; /* bytes of weights that stay in the second level of the cache */

static void matrix(const un_task *task, const product *p)
{
    const un_weight *w = p->m.w;
    int64_t from, to, part = task->thread, parts = task->threads;
    int64_t low = p->m.from > w->first[p->node] ? p->m.from : w->first[p->node];
    int64_t high = p->m.to < w->first[p->node + 1] ? p->m.to : w->first[p->node + 1];
    if (w->nodes > 1)
        part = task->rank, parts = task->size;
    un_share(high > low ? high - low : 0, part, parts, &from, &to);
    int64_t step = CACHED / w->group_bytes > 1 ? CACHED / w->group_bytes : 1;
    for (int64_t block = from; block < to; block += step)
        for (int64_t t = 0; t < p->tokens; t += UN_TILE) {
            int n = (int)(p->tokens - t < UN_TILE ? p->tokens - t : UN_TILE);
            for (int64_t g = block; g < to && g < block + step; g++)
                group_tile(p, low + g, t, n);
        }
}

void UN_(mul_mat)(const un_task *task)
{
    const un_tensor *x = un_in(task, 1), *w = un_in(task, 0);
    product p = {.form = (int)task->step->i[1], .out = un_out(task)};
    p.node = w->weight->nodes > 1 ? task->node : 0;
    int64_t all = un_rows(x), matrices = w->n[0] * w->n[1];
    un_act act = un_act_at(task->wdata[task->node] + task->step->i[0], p.form, all, x->n[3]);
    p.tokens = matrices ? all / matrices : 0;
    for (int64_t m = 0; m < matrices && p.tokens; m++) {
        p.m = un_matrix_of(w, task->step->i[2], m);
        p.first = m * p.tokens;
        p.x = un_act_from(act, p.form, p.first);
        matrix(task, &p);
    }
}
