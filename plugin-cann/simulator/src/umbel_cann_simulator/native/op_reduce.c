/* Amax, Mean, ReduceSum, Norm over any axes; ArgMax and Cumsum along one. */
#include <stdlib.h>
#include <string.h>

#include "op.h"

/* integer[0]: a bit for each axis that goes; number[0]: the p of a Norm */
enum { SUM, MEAN, MAXIMUM, NORM };

/* self's shape with the strides of a packed result: 0 along what goes. */
static nnop_view kept(const nnop_view *self, int64_t gone, int64_t *count)
{
    nnop_view view = *self;
    int64_t step = 1;
    for (int i = self->axes - 1; i >= 0; i--) {
        view.strides[i] = gone >> i & 1 ? 0 : step;
        step *= gone >> i & 1 ? 1 : self->shape[i];
    }
    *count = step;
    return view;
}

static void add(double *to, const double *x, const op_rows *r, int kind, double p)
{
    for (int64_t i = 0; i < r->n; i++) {
        double *at = &to[r->first[0] + i * r->step[0]];
        if (kind == MAXIMUM)
            *at = isnan(x[i]) || x[i] > *at ? x[i] : *at;
        else if (kind == NORM && isinf(p))
            *at = fmax(*at, fabs(x[i]));
        else if (kind == NORM)
            *at += p == 2 ? x[i] * x[i] : p == 1 ? fabs(x[i]) : pow(fabs(x[i]), p);
        else
            *at += x[i];
    }
}

static void reduce(const nnop_call *call, int kind)
{
    const nnop_view *self = &call->slot[0].view;
    const void *from = op_at(call, 0);
    int64_t count, all = nnop_elements(self);
    double p = call->number[0];
    nnop_view packed = kept(self, call->integer[0], &count);
    if (from == NULL)
        return;
    op_rows r = op_rows_of(self, 2, (const nnop_view *[]){&packed, self});
    double *to = op_buffer((size_t)count, sizeof *to), *x = op_buffer((size_t)r.n, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        to[i] = kind == MAXIMUM ? -INFINITY : 0;
    for (; !r.done; op_rows_next(&r)) {
        op_read(self->dtype, from, r.first[1], r.step[1], r.n, x);
        add(to, x, &r, kind, p);
    }
    for (int64_t i = 0; i < count; i++)
        to[i] = kind == MEAN ? to[i] / (double)(all / count)
                : kind == NORM && !isinf(p) && p != 1 ? pow(to[i], 1 / p) : to[i];
    op_store(call, 1, to);
    free(to);
    free(x);
}

static void run_sum(const nnop_call *call) { reduce(call, SUM); }
static void run_mean(const nnop_call *call) { reduce(call, MEAN); }
static void run_maximum(const nnop_call *call) { reduce(call, MAXIMUM); }
static void run_norm(const nnop_call *call) { reduce(call, NORM); }

/* out is self without the axes that go, or with 1 in their place. */
static void check_out(op *o, const nnop_view *self, int64_t gone, bool keep,
                      const nnop_view *out)
{
    int at = 0;
    for (int i = 0; i < self->axes && o->code == 0; i++) {
        bool goes = gone >> i & 1;
        if (goes && !keep)
            continue;
        op_need(o, at < out->axes && out->shape[at] == (goes ? 1 : self->shape[i]),
                "dim %d of out", at);
        at++;
    }
    op_need(o, at == out->axes, "out has %d dims, not %d", out->axes, at);
    if (o->code == 0)
        o->call->integer[0] = gone;
}

static aclnnStatus over(op *o, const nnop_view *self, const aclIntArray *dims, bool keep,
                        const aclTensor *out)
{
    int count = op_ints(o, dims, 0, "dim");
    const nnop_view *to = op_out(o, out, "out");
    int64_t gone = count == 0 ? ((int64_t)1 << self->axes) - 1 : 0;
    for (int i = 0; i < count && o->code == 0; i++)
        gone |= (int64_t)1 << op_axis(o, self, o->call->array[i]);
    check_out(o, self, gone, keep, to);
    return op_end(o);
}

static void check_dtype(op *o, const aclTensor *out, aclDataType dtype)
{
    op_need(o, out == NULL || nnop_tensor(out)->dtype == dtype, "dtype is not that of out");
}

OP(Amax, const aclTensor *self, const aclIntArray *dim, bool keepDim, aclTensor *out)
{
    BEGIN(Amax, run_maximum);
    return over(&o, op_in(&o, self, "self"), dim, keepDim, out);
}

OP(Mean, const aclTensor *self, const aclIntArray *dim, bool keepDim, aclDataType dtype,
   aclTensor *out)
{
    BEGIN(Mean, run_mean);
    check_dtype(&o, out, dtype);
    return over(&o, op_in(&o, self, "self"), dim, keepDim, out);
}

OP(ReduceSum, const aclTensor *self, const aclIntArray *dims, bool keepDims, aclDataType dtype,
   aclTensor *out)
{
    BEGIN(ReduceSum, run_sum);
    check_dtype(&o, out, dtype);
    return over(&o, op_in(&o, self, "self"), dims, keepDims, out);
}

OP(Norm, const aclTensor *self, const aclScalar *pScalar, const aclIntArray *dim, bool keepdim,
   aclTensor *out)
{
    BEGIN(Norm, run_norm);
    const nnop_view *from = op_in(&o, self, "self");
    double p = op_scalar(&o, pScalar, "pScalar");
    op_need(&o, p > 0, "a norm of %g", p);
    if (o.code == 0)
        o.call->number[0] = p;
    op_workspace(&o, 1);
    return over(&o, from, dim, keepdim, out);
}

/* The first of several largest ones. integer[1]: the axis */
static void argmax(const nnop_call *call)
{
    const nnop_view *self = &call->slot[0].view;
    op_split s = op_split_at(self, (int)call->integer[1]);
    double *x = op_load(call, 0), *best = op_buffer((size_t)(s.outer * s.inner), sizeof *best);
    for (int64_t i = 0; x != NULL && i < s.outer * s.inner; i++) {
        const double *line = x + i / s.inner * s.n * s.inner + i % s.inner;
        int64_t found = 0;
        for (int64_t j = 1; j < s.n; j++)
            if (line[j * s.inner] > line[found * s.inner])
                found = j;
        best[i] = (double)found;
    }
    if (x != NULL)
        op_store(call, 1, best);
    free(x);
    free(best);
}

OP(ArgMax, const aclTensor *self, int64_t dim, bool keepdim, aclTensor *out)
{
    BEGIN(ArgMax, argmax);
    const nnop_view *from = op_in(&o, self, "self"), *to = op_side(&o, out, true, "out");
    int axis = op_axis(&o, from, dim);
    op_need(&o, op_index(to), "indices of %s", op_dtype(to->dtype));
    check_out(&o, from, (int64_t)1 << axis, keepdim, to);
    if (o.code == 0)
        o.call->integer[1] = axis;
    return op_end(&o);
}

static void cumsum(const nnop_call *call)
{
    op_split s = op_split_at(&call->slot[0].view, (int)call->integer[1]);
    double *x = op_load(call, 0);
    for (int64_t i = 0; x != NULL && i < s.outer * s.inner; i++) {
        double *line = x + i / s.inner * s.n * s.inner + i % s.inner;
        for (int64_t j = 1; j < s.n; j++)
            line[j * s.inner] += line[(j - 1) * s.inner];
    }
    if (x != NULL)
        op_store(call, 1, x);
    free(x);
}

OP(Cumsum, const aclTensor *self, int64_t dim, aclDataType dtype, aclTensor *out)
{
    BEGIN(Cumsum, cumsum);
    const nnop_view *from = op_in(&o, self, "self"), *to = op_out(&o, out, "out");
    int axis = op_axis(&o, from, dim);
    check_dtype(&o, out, dtype);
    op_same_shape(&o, from, to);
    if (o.code == 0)
        o.call->integer[1] = axis;
    return op_end(&o);
}
