/* Normalisation over the last axis.
 *
 * rms_norm: x / sqrt(mean(x^2) + eps) * weight; norm: the same of x less its mean, and the bias
 * added. in[0] x (..., n), in[1] weight, in[2] bias, which broadcast to x or are left out; f[0]
 * eps. */
#include "functions.h"
#include "strided.h"

enum { ROOM = 16 }; /* floats between rows that are gathered */

UN_INLINE void scaled(float *out, const float *x, float mean, float by, const float *weight,
                      const float *bias, int64_t n)
{
    xf less = xf_set1(mean), factor = xf_set1(by);
    int64_t j = 0;
    for (; j + UN_XL <= n; j += UN_XL) {
        xf y = xf_mul(xf_sub(xf_load(x + j), less), factor);
        if (weight)
            y = xf_mul(y, xf_load(weight + j));
        if (bias)
            y = xf_add(y, xf_load(bias + j));
        xf_store(out + j, y);
    }
    for (; j < n; j++) {
        float y = (x[j] - mean) * by;
        y = weight ? y * weight[j] : y;
        out[j] = bias ? y + bias[j] : y;
    }
}

static void norm_row(float *out, const float *x, const float *weight, const float *bias,
                     int64_t n, float eps, int centred)
{
    float mean = centred ? un_row_sum(x, n, 0, 0) / (float)n : 0;
    float power = centred ? un_row_sum(x, n, mean, 1) : un_row_sum(x, n, 0, 1);
    float by = 1 / sqrtf(power / (float)n + eps);
    if (bias)
        scaled(out, x, mean, by, weight, bias, n);
    else if (centred)
        scaled(out, x, mean, by, weight, NULL, n);
    else if (weight)
        scaled(out, x, 0, by, weight, NULL, n);
    else
        scaled(out, x, 0, by, NULL, NULL, n);
}

static void norms(const un_task *task, int centred)
{
    const un_tensor *out = un_out(task), *x = un_in(task, 0);
    const un_tensor *weight = un_in(task, 1), *bias = un_in(task, 2);
    int64_t n = x->n[3], from, to;
    un_share_rows(task, n ? un_rows(x) : 0, &from, &to);
    if (from == to)
        return;
    float *room = un_scratch_get(task, (size_t)(3 * (n + ROOM)) * 4);
    for (int64_t r = from; room && r < to; r++) {
        const float *row = un_row_of(x, x, r, room);
        const float *w = weight ? un_row_of(weight, x, r, room + n + ROOM) : NULL;
        const float *b = bias ? un_row_of(bias, x, r, room + 2 * (n + ROOM)) : NULL;
        norm_row((float *)un_row_at(out, x, r), row, w, b, n, task->step->f[0], centred);
    }
}

void UN_(rms_norm)(const un_task *task) { norms(task, 0); }
void UN_(norm)(const un_task *task) { norms(task, 1); }

void UN_(rms_norm_row)(float *out, const float *x, const float *weight, int64_t n, float eps)
{
    norm_row(out, x, weight, NULL, n, eps, 0);
}
