/* Activations as products with packed weights want them, normed before where a norm is fused.
 *
 * prepare: in[0] x (..., N, n) float, in[1] the weight of an rms_norm before it, when i[2];
 * i[0] where in the wdata of each node, i[1] the form (UN_ACT_*), f[0] eps. Each node's threads
 * make a copy of their own. */
#include "floats.h"
#include "functions.h"
#include "packed.h"

/* 32 values as 8-bit integers times a scale; zeros where all are next to nothing. Of a block
 * that holds an infinity or a NaN the scale is NaN, as in floats.h. Sizes are compared as
 * integers: they have the same order, and NaN is the largest. */
static void quantise_block(const float *x, int8_t *q, float *d)
{
    enum { V = 32 / UN_XL };
    xf v[V];
    xi size = xi_zero();
    for (int i = 0; i < V; i++) {
        v[i] = xf_load(x + i * UN_XL);
        size = xi_max(size, xi_bits_of(xf_abs(v[i])));
    }
    float most = un_bits((uint32_t)xi_most(size));
    float inverse = most > 0x1p-100f ? 127.0f / most : 0;
    for (int i = 0; i < V; i++)
        xi_store_s8(q + i * UN_XL, xi_round(xf_mul(v[i], xf_set1(inverse))));
    *d = most < INFINITY ? most / 127.0f : NAN;
}

static void quantise_i8(const float *x, int64_t n, const un_act *a)
{
    int8_t *q = (int8_t *)a->q;
    float *d = (float *)a->d, *s = (float *)a->s;
    int16_t *sum = (int16_t *)a->sum;
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

/* One row of x, normed when there is a weight; `room` for n floats then. */
void UN_(prepare_row)(un_act to, int form, const float *x, const float *norm, float eps,
                      int64_t n, float *room)
{
    if (norm) {
        UN_(rms_norm_row)(room, x, norm, n, eps);
        x = room;
    }
    if (form == UN_ACT_F32)
        un_copy_f32(x, n, (float *)to.q);
    else if (form == UN_ACT_I16)
        un_quantise_i16(x, n, (int16_t *)to.q, (float *)to.d, (float *)to.s);
    else
        quantise_i8(x, n, &to);
}

void UN_(prepare)(const un_task *task)
{
    const un_step *step = task->step;
    const un_tensor *x = un_in(task, 0);
    const float *norm = step->i[2] ? (const float *)un_in(task, 1)->data : NULL;
    int form = (int)step->i[1];
    int64_t rows = un_rows(x), n = x->n[3], from, to;
    un_act a = un_act_at(task->wdata[task->node] + step->i[0], form, rows, n);
    un_share(rows, task->rank, task->size, &from, &to);
    if (from == to)
        return;
    float *line = un_scratch_get(task, (size_t)(2 * n + UN_LANES) * 4), *room = line + n;
    if (!line)
        return;
    for (int64_t t = from; t < to; t++) {
        const char *at = un_row(x, t);
        const float *row = x->s[3] == 4 ? (const float *)at : line;
        for (int64_t k = 0; row == line && k < n; k++)
            memcpy(&line[k], at + k * x->s[3], 4);
        UN_(prepare_row)(un_act_from(a, form, t), form, row, norm, step->f[0], n, room);
    }
}
