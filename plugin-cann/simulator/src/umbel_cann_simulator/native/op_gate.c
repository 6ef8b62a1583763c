/* Gates that split an axis in two halves: SwiGlu, GeGluV3. */
#include <stdlib.h>

#include "op.h"

/* Halves a and b of x's axis (integer[0]), as (outer, half); returned in one array. */
static double *halves(const nnop_call *call, op_split *s)
{
    *s = op_split_at(&call->slot[0].view, (int)call->integer[0]);
    s->inner *= s->n / 2;
    return op_load(call, 0);
}

static void swiglu(const nnop_call *call)
{
    op_split s;
    double *x = halves(call, &s), *y = op_buffer((size_t)(s.outer * s.inner), sizeof *y);
    for (int64_t i = 0; x != NULL && i < s.outer * s.inner; i++) {
        const double *a = x + i / s.inner * 2 * s.inner + i % s.inner;
        y[i] = a[0] / (1 + exp(-a[0])) * a[s.inner];
    }
    if (x != NULL)
        op_store(call, 1, y);
    free(x);
    free(y);
}

static void check(op *o, const nnop_view *x, int64_t dim, const nnop_view *y)
{
    int axis = op_axis(o, x, dim);
    nnop_view due = *x;
    op_need(o, op_floats(x), "an input of %s", op_dtype(x->dtype));
    op_need(o, op_dim(x, axis) % 2 == 0, "dim %d is odd", axis);
    op_need(o, op_contiguous(x) && op_contiguous(y), "a view that is not contiguous");
    due.shape[axis] /= 2;
    op_same_shape(o, &due, y);
    op_same_dtype(o, x, y);
    if (o->code == 0)
        o->call->integer[0] = axis;
}

OP(SwiGlu, const aclTensor *x, int64_t dim, const aclTensor *out)
{
    BEGIN(SwiGlu, swiglu);
    const nnop_view *vx = op_in(&o, x, "x"), *vy = op_out(&o, out, "out");
    check(&o, vx, dim, vy);
    return op_end(&o);
}

/* integer: the axis, whether gelu is the tanh form, whether it is of the first half */
static void geglu(const nnop_call *call)
{
    op_split s;
    double *x = halves(call, &s);
    double *y = op_buffer((size_t)(s.outer * s.inner), sizeof *y);
    double *gelu = op_buffer((size_t)(s.outer * s.inner), sizeof *gelu);
    for (int64_t i = 0; x != NULL && i < s.outer * s.inner; i++) {
        const double *a = x + i / s.inner * 2 * s.inner + i % s.inner;
        bool left = call->integer[2] != 0;
        gelu[i] = op_gelu(a[left ? 0 : s.inner], call->integer[1] != 0);
        y[i] = gelu[i] * a[left ? s.inner : 0];
    }
    if (x != NULL) {
        op_store(call, 1, y);
        op_store(call, 2, gelu);
    }
    free(x);
    free(y);
    free(gelu);
}

OP(GeGluV3, const aclTensor *self, int64_t dim, int64_t approximate, bool activateLeft,
   aclTensor *out, aclTensor *outGelu)
{
    BEGIN(GeGluV3, geglu);
    const nnop_view *x = op_in(&o, self, "self"), *y = op_out(&o, out, "out");
    const nnop_view *gelu = op_out(&o, outGelu, "outGelu");
    check(&o, x, dim, y);
    op_same_shape(&o, y, gelu);
    op_same_dtype(&o, y, gelu);
    op_need(&o, approximate == 0 || approximate == 1, "approximate is 0 (erf) or 1 (tanh)");
    if (o.code == 0) {
        o.call->integer[1] = approximate;
        o.call->integer[2] = activateLeft;
    }
    return op_end(&o);
}
