/* RmsNorm, AddRmsNorm, LayerNorm, GroupNorm, Softmax: float32 within, rounded once. */
#include <stdlib.h>
#include <string.h>

#include "op.h"

/* Absent ones leave their array as it is. */
static float *load_or(const nnop_call *call, int slot, int64_t n, float value)
{
    if (call->slot[slot].handle != NULL)
        return op_load_f32(call, slot);
    float *same = op_buffer((size_t)n, sizeof *same);
    for (int64_t i = 0; i < n; i++)
        same[i] = value;
    return same;
}

static void store_if(const nnop_call *call, int slot, const float *values)
{
    if (call->slot[slot].handle != NULL)
        op_store_f32(call, slot, values);
}

/* x, rows of n, by its root mean square; the reciprocal of each row's goes to `rstd`. */
static void rms(float *x, int64_t rows, int64_t n, const float *gamma, double epsilon,
                float *rstd)
{
    for (int64_t r = 0; r < rows; r++) {
        float *row = x + r * n, sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += row[i] * row[i];
        rstd[r] = 1 / sqrtf(sum / (float)n + (float)epsilon);
        for (int64_t i = 0; i < n; i++)
            row[i] = row[i] * rstd[r] * gamma[i];
    }
}

/* integer[0]: the slot of x; y and rstd follow gamma, which follows x. */
static void rms_of(const nnop_call *call, float *x, int gamma)
{
    int64_t n = nnop_elements(&call->slot[gamma].view);
    int64_t rows = n > 0 ? nnop_elements(&call->slot[gamma + 1].view) / n : 0;
    float *by = op_load_f32(call, gamma), *rstd = op_buffer((size_t)rows, sizeof *rstd);
    if (x != NULL && by != NULL) {
        rms(x, rows, n, by, call->number[0], rstd);
        op_store_f32(call, gamma + 1, x);
        op_store_f32(call, gamma + 2, rstd);
    }
    free(x);
    free(by);
    free(rstd);
}

static void run_rms(const nnop_call *call)
{
    rms_of(call, op_load_f32(call, 0), 1);
}

/* The sum is rounded to its dtype before it is normed. */
static void run_add_rms(const nnop_call *call)
{
    float *x = op_load_f32(call, 0), *more = op_load_f32(call, 1);
    for (int64_t i = 0; x && more && i < nnop_elements(&call->slot[0].view); i++)
        x[i] += more[i];
    if (x != NULL && more != NULL) {
        op_store_f32(call, 5, x);
        rms_of(call, op_load_f32(call, 5), 2);
    }
    free(x);
    free(more);
}

/* gamma has the last dims of x, rstd x's with 1 in the place of those. */
static void check_rms(op *o, const nnop_view *x, const nnop_view *gamma, const nnop_view *y,
                      const nnop_view *rstd)
{
    op_need(o, op_floats(x), "x of %s", op_dtype(x->dtype));
    op_need(o, gamma->dtype == x->dtype || gamma->dtype == ACL_FLOAT,
            "gamma of %s with x of %s", op_dtype(gamma->dtype), op_dtype(x->dtype));
    op_same_dtype(o, x, y);
    op_same_shape(o, x, y);
    op_need(o, gamma->axes >= 1 && gamma->axes <= x->axes, "gamma has %d dims", gamma->axes);
    for (int i = 1; i <= gamma->axes && o->code == 0; i++)
        op_need(o, op_dim(gamma, -i) == op_dim(x, -i), "gamma has not the last dims of x");
    op_need(o, rstd->dtype == ACL_FLOAT, "rstd of %s", op_dtype(rstd->dtype));
    op_need(o, rstd->axes == x->axes, "rstd has %d dims, x %d", rstd->axes, x->axes);
    for (int i = 0; i < x->axes && o->code == 0; i++)
        op_need(o, op_dim(rstd, i) == (i < x->axes - gamma->axes ? op_dim(x, i) : 1),
                "dim %d of rstd", i);
    op_workspace(o, nnop_elements(rstd));
}

OP(RmsNorm, const aclTensor *x, const aclTensor *gamma, double epsilon, const aclTensor *yOut,
   const aclTensor *rstdOut)
{
    BEGIN(RmsNorm, run_rms);
    const nnop_view *vx = op_in(&o, x, "x"), *vg = op_side(&o, gamma, false, "gamma");
    const nnop_view *vy = op_out(&o, yOut, "yOut");
    check_rms(&o, vx, vg, vy, op_side(&o, rstdOut, true, "rstdOut"));
    if (o.code == 0)
        o.call->number[0] = epsilon;
    return op_end(&o);
}

OP(AddRmsNorm, const aclTensor *x1, const aclTensor *x2, const aclTensor *gamma, double epsilon,
   const aclTensor *yOut, const aclTensor *rstdOut, const aclTensor *xOut)
{
    BEGIN(AddRmsNorm, run_add_rms);
    const nnop_view *a = op_in(&o, x1, "x1"), *b = op_in(&o, x2, "x2");
    const nnop_view *vg = op_side(&o, gamma, false, "gamma"), *vy = op_out(&o, yOut, "yOut");
    check_rms(&o, a, vg, vy, op_side(&o, rstdOut, true, "rstdOut"));
    const nnop_view *sum = op_out(&o, xOut, "xOut");
    op_same_shape(&o, a, b);
    op_same_shape(&o, a, sum);
    op_same_dtype(&o, a, b);
    op_same_dtype(&o, a, sum);
    op_need(&o, op_same(a, vy), "yOut has not x1's shape");
    if (o.code == 0)
        o.call->number[0] = epsilon;
    return op_end(&o);
}

/* Mean 0 and variance 1 for n values in a row. */
static void normalise(float *x, int64_t n, double epsilon, float *mean, float *rstd)
{
    float sum = 0, square = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    *mean = sum / (float)n;
    for (int64_t i = 0; i < n; i++) {
        x[i] -= *mean;
        square += x[i] * x[i];
    }
    *rstd = 1 / sqrtf(square / (float)n + (float)epsilon);
    for (int64_t i = 0; i < n; i++)
        x[i] *= *rstd;
}

/* Slots: x, weight, bias, out, mean, rstd. integer: values in a group; how many of them share a
   weight; weights in all, which groups go through */
static void run_norm(const nnop_call *call)
{
    int64_t n = call->integer[0], share = call->integer[1], weights = call->integer[2];
    int64_t all = nnop_elements(&call->slot[0].view), groups = n > 0 ? all / n : 0;
    float *x = op_load_f32(call, 0), *weight = load_or(call, 1, weights, 1);
    float *bias = load_or(call, 2, weights, 0);
    float *mean = op_buffer((size_t)groups, sizeof *mean), *rstd = op_buffer((size_t)groups, 4);
    if (x != NULL && weight != NULL && bias != NULL) {
        for (int64_t g = 0; g < groups; g++)
            normalise(x + g * n, n, call->number[0], mean + g, rstd + g);
        for (int64_t i = 0; i < all; i++)
            x[i] = x[i] * weight[i / share % weights] + bias[i / share % weights];
        op_store_f32(call, 3, x);
        store_if(call, 4, mean);
        store_if(call, 5, rstd);
    }
    free(x);
    free(weight);
    free(bias);
    free(mean);
    free(rstd);
}

static void check_norm(op *o, const nnop_view *x, const nnop_view *out, double epsilon,
                       int64_t n, int64_t share, int64_t weights)
{
    op_need(o, op_floats(x), "an input of %s", op_dtype(x->dtype));
    op_same_shape(o, x, out);
    op_same_dtype(o, x, out);
    if (o->code == 0) {
        memcpy(o->call->integer, (int64_t[]){n, share, weights}, 3 * sizeof(int64_t));
        o->call->number[0] = epsilon;
    }
    op_workspace(o, n > 0 ? nnop_elements(x) / n : 0);
}

OP(LayerNorm, const aclTensor *input, const aclIntArray *normalizedShape,
   const aclTensor *weightOptional, const aclTensor *biasOptional, double eps, aclTensor *out,
   aclTensor *meanOutOptional, aclTensor *rstdOutOptional)
{
    BEGIN(LayerNorm, run_norm);
    const nnop_view *x = op_in(&o, input, "input");
    int count = op_ints(&o, normalizedShape, 0, "normalizedShape");
    const nnop_view *w = op_maybe(&o, weightOptional, false, "weight");
    const nnop_view *b = op_maybe(&o, biasOptional, false, "bias");
    const nnop_view *y = op_out(&o, out, "out");
    op_maybe(&o, meanOutOptional, true, "meanOut");
    op_maybe(&o, rstdOutOptional, true, "rstdOut");
    int64_t n = 1;
    op_need(&o, count >= 1 && count <= x->axes, "normalizedShape has %d dims", count);
    for (int i = 1; i <= count && o.code == 0; i++) {
        op_need(&o, o.call->array[count - i] == op_dim(x, -i),
                "normalizedShape is no end of x's");
        n *= op_dim(x, -i);
    }
    op_need(&o, (w == NULL || nnop_elements(w) == n) && (b == NULL || nnop_elements(b) == n),
            "weight or bias has not %lld values", (long long)n);
    check_norm(&o, x, y, eps, n, 1, n);
    return op_end(&o);
}

OP(GroupNorm, const aclTensor *self, const aclTensor *gamma, const aclTensor *beta, int64_t N,
   int64_t C, int64_t HxW, int64_t group, double eps, aclTensor *out, aclTensor *meanOut,
   aclTensor *rstdOut)
{
    BEGIN(GroupNorm, run_norm);
    const nnop_view *x = op_in(&o, self, "self");
    const nnop_view *w = op_maybe(&o, gamma, false, "gamma");
    const nnop_view *b = op_maybe(&o, beta, false, "beta");
    const nnop_view *y = op_out(&o, out, "out");
    op_side(&o, meanOut, true, "meanOut");
    op_side(&o, rstdOut, true, "rstdOut");
    op_need(&o, N > 0 && C > 0 && HxW > 0 && N * C * HxW == nnop_elements(x),
            "N, C and HxW do not make self");
    op_need(&o, group > 0 && C % group == 0, "%lld groups of %lld channels", (long long)group,
            (long long)C);
    op_need(&o, (w == NULL || nnop_elements(w) == C) && (b == NULL || nnop_elements(b) == C),
            "gamma or beta has not %lld values", (long long)C);
    check_norm(&o, x, y, eps, group > 0 ? C / group * HxW : 0, HxW, C);
    return op_end(&o);
}

static void softmax(const nnop_call *call)
{
    op_split s = op_split_at(&call->slot[0].view, (int)call->integer[0]);
    float *x = op_load_f32(call, 0);
    for (int64_t i = 0; x != NULL && i < s.outer * s.inner; i++) {
        float *line = x + i / s.inner * s.n * s.inner + i % s.inner, most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < s.n; j++)
            most = fmaxf(most, line[j * s.inner]);
        for (int64_t j = 0; j < s.n; j++)
            sum += line[j * s.inner] = expf(line[j * s.inner] - most);
        for (int64_t j = 0; j < s.n; j++)
            line[j * s.inner] /= sum;
    }
    if (x != NULL)
        op_store_f32(call, 1, x);
    free(x);
}

OP(Softmax, const aclTensor *self, int64_t dim, aclTensor *out)
{
    BEGIN(Softmax, softmax);
    const nnop_view *x = op_in(&o, self, "self"), *y = op_out(&o, out, "out");
    int axis = op_axis(&o, x, dim);
    op_need(&o, op_floats(x), "a softmax of %s", op_dtype(x->dtype));
    op_same_shape(&o, x, y);
    if (o.code == 0)
        o.call->integer[0] = axis;
    op_workspace(&o, nnop_elements(x) / 1024);
    return op_end(&o);
}
