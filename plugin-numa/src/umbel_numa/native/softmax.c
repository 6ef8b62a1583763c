/* soft_max: in[0] x (..., heads, n, L), in[1] mask (broadcasts), or none; f[0] max_bias.
 *
 * The sum of a row is made of 16 partial sums, so that it depends on the row alone. */
#include "rows.h"
#include "softmax.h"

static inline xf part(const float *row, int64_t k, int64_t n)
{
    int64_t left = n - k;
    return left >= UN_XL ? xf_load(row + k) : left > 0 ? xf_load_n(row + k, left) : xf_zero();
}

static inline void put(float *row, int64_t k, int64_t n, xf v)
{
    int64_t left = n - k;
    if (left >= UN_XL)
        xf_store(row + k, v);
    else if (left > 0)
        xf_store_n(row + k, v, left);
}

/* out = x + slope * mask, minus infinity where it hides; the largest of it. */
static float masked(const float *x, const float *mask, float slope, int64_t n, float *out)
{
    xf most[UN_PARTS];
    for (int p = 0; p < UN_PARTS; p++)
        most[p] = xf_set1(UN_LOWEST);
    for (int64_t k = 0; k < n; k += UN_XL) {
        xf v = part(x, k, n), *top = &most[k / UN_XL % UN_PARTS];
        if (mask) {
            xf m = part(mask, k, n);
            v = un_hide(xf_add(v, xf_mul(m, xf_set1(slope))), m);
        }
        put(out, k, n, v);
        if (n - k >= UN_XL) {
            *top = xf_max(v, *top);
            continue;
        }
        for (; k < n; k++) /* what is beyond the row does not count */
            *top = xf_max(xf_set1(out[k]), *top);
    }
    return un_most(most);
}

static void row(const float *x, const float *mask, float slope, int64_t n, float *out)
{
    float top = masked(x, mask, slope, n, out);
    xf sum[UN_PARTS];
    for (int p = 0; p < UN_PARTS; p++)
        sum[p] = xf_zero();
    for (int64_t k = 0; k < n; k += UN_XL) {
        xf e = xf_exp(xf_sub(part(out, k, n), xf_set1(top)));
        put(out, k, n, e);
        xf *s = &sum[k / UN_XL % UN_PARTS];
        *s = xf_add(*s, part(out, k, n));
    }
    float total = un_total(sum);
    for (int64_t k = 0; total != 0 && k < n; k += UN_XL)
        put(out, k, n, xf_div(part(out, k, n), xf_set1(total)));
}

void UN_(soft_max)(const un_task *task)
{
    const un_tensor *x = un_in(task, 0), *mask = un_in(task, 1), *out = un_out(task);
    int64_t heads = x->n[1], rows = x->n[0] * heads * x->n[2], n = x->n[3], from, to;
    float *room = un_scratch_get(task, (size_t)n * 8 + 8);
    un_share(rows, task->thread, task->threads, &from, &to);
    for (int64_t i = from; room && i < to; i++) {
        int64_t at[3] = {i / x->n[2] / heads, i / x->n[2] % heads, i % x->n[2]};
        const char *source = x->data, *bias = mask ? mask->data : NULL;
        char *target = out->data;
        for (int a = 0; a < 3; a++) {
            source += at[a] * x->s[a];
            target += at[a] * out->s[a];
            if (mask && mask->n[a] > 1)
                bias += at[a] * mask->s[a];
        }
        const float *m = NULL;
        if (mask && mask->n[3] == n)
            m = un_floats(mask, bias, room + n);
        else if (mask) {
            un_values(bias, mask->type, mask->s[3], 0, 1, room + n);
            for (int64_t k = 1; k < n; k++)
                room[n + k] = room[n];
            m = room + n;
        }
        float slope = un_slope(at[1], heads, task->step->f[0]);
        row(un_floats(x, source, room), m, slope, n, (float *)target);
    }
}
