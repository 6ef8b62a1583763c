/* Values by position or by a mask: Arange, Tril, Triu, SWhere, InplaceMaskedFillScalar. */
#include <stdlib.h>

#include "op.h"

static void arange(const nnop_call *call)
{
    int64_t n = nnop_elements(&call->slot[0].view);
    double *values = op_buffer((size_t)n, sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = call->number[0] + (double)i * call->number[1];
    op_store(call, 0, values);
    free(values);
}

OP(Arange, const aclScalar *start, const aclScalar *end, const aclScalar *step, aclTensor *out)
{
    BEGIN(Arange, arange);
    double from = op_scalar(&o, start, "start"), to = op_scalar(&o, end, "end");
    double by = op_scalar(&o, step, "step");
    const nnop_view *view = op_out(&o, out, "out");
    op_need(&o, by != 0 && (to - from) / by >= 0, "step %g from %g to %g", by, from, to);
    op_need(&o, view->axes == 1 && (double)op_dim(view, 0) == ceil((to - from) / by),
            "out has %lld values, not %.0f", (long long)op_dim(view, 0),
            ceil((to - from) / by));
    if (o.code == 0) {
        o.call->number[0] = from;
        o.call->number[1] = by;
    }
    return op_end(&o);
}

/* integer: the diagonal, whether the upper part stays */
static void triangle(const nnop_call *call)
{
    const nnop_view *self = &call->slot[0].view;
    int64_t columns = op_dim(self, -1), rows = op_dim(self, -2);
    double *all = op_load(call, 0);
    for (int64_t i = 0; all != NULL && i < nnop_elements(self); i++) {
        int64_t above = i % columns - i / columns % rows - call->integer[0];
        if (call->integer[1] != 0 ? above < 0 : above > 0)
            all[i] = 0;
    }
    if (all != NULL)
        op_store(call, 1, all);
    free(all);
}

static aclnnStatus part_of(op *o, const aclTensor *self, int64_t diagonal, bool upper,
                           const aclTensor *out)
{
    const nnop_view *from = op_in(o, self, "self"), *to = op_out(o, out, "out");
    op_same_dtype(o, from, to);
    op_same_shape(o, from, to);
    op_need(o, from->axes >= 2, "self is no matrix");
    if (o->code == 0) {
        o->call->integer[0] = diagonal;
        o->call->integer[1] = upper;
    }
    return op_end(o);
}

OP(Tril, const aclTensor *self, int64_t diagonal, aclTensor *out)
{
    BEGIN(Tril, triangle);
    return part_of(&o, self, diagonal, false, out);
}

OP(Triu, const aclTensor *self, int64_t diagonal, aclTensor *out)
{
    BEGIN(Triu, triangle);
    return part_of(&o, self, diagonal, true, out);
}

/* out = mask ? a : b, where a and b may be scalars of their own. */
static void choose(const nnop_call *call)
{
    const nnop_view *out = &call->slot[3].view;
    const nnop_view *a = &call->slot[1].view, *b = &call->slot[2].view;
    void *to = op_at(call, 3);
    const void *mask = op_at(call, 0), *pa = op_at(call, 1), *pb = op_at(call, 2);
    if (to == NULL || mask == NULL || pa == NULL || pb == NULL)
        return;
    op_rows r = op_rows_of(out, 4, (const nnop_view *[]){out, &call->slot[0].view, a, b});
    double *row = op_buffer((size_t)r.n * 3, sizeof *row), *x = row + r.n, *y = x + r.n;
    for (; !r.done; op_rows_next(&r)) {
        op_read(call->slot[0].view.dtype, mask, r.first[1], r.step[1], r.n, row);
        op_read(a->dtype, pa, r.first[2], r.step[2], r.n, x);
        op_read(b->dtype, pb, r.first[3], r.step[3], r.n, y);
        for (int64_t i = 0; i < r.n; i++)
            x[i] = row[i] != 0 ? x[i] : y[i];
        op_write(out->dtype, to, r.first[0], r.step[0], r.n, x);
    }
    free(row);
}

static void check_mask(op *o, const nnop_view *mask, const nnop_view *out)
{
    op_need(o, mask->dtype == ACL_BOOL || mask->dtype == ACL_UINT8, "a mask of %s",
            op_dtype(mask->dtype));
    op_need(o, op_spreads(mask, out), "the mask does not broadcast to the output's shape");
}

OP(SWhere, const aclTensor *condition, const aclTensor *self, const aclTensor *other,
   aclTensor *out)
{
    BEGIN(SWhere, choose);
    const nnop_view *mask = op_side(&o, condition, false, "condition");
    const nnop_view *a = op_in(&o, self, "self"), *b = op_in(&o, other, "other");
    const nnop_view *to = op_out(&o, out, "out");
    check_mask(&o, mask, to);
    op_same_dtype(&o, a, b);
    op_same_dtype(&o, a, to);
    op_need(&o, op_spreads(a, to) && op_spreads(b, to), "inputs do not broadcast to out");
    return op_end(&o);
}

static void masked_fill(const nnop_call *call)
{
    const nnop_view *self = &call->slot[0].view, *by = &call->slot[1].view;
    void *to = op_at(call, 0);
    const void *mask = op_at(call, 1);
    if (to == NULL || mask == NULL)
        return;
    op_rows r = op_rows_of(self, 2, (const nnop_view *[]){self, by});
    double *row = op_buffer((size_t)r.n, sizeof *row);
    for (; !r.done; op_rows_next(&r)) {
        op_read(by->dtype, mask, r.first[1], r.step[1], r.n, row);
        for (int64_t i = 0; i < r.n; i++)
            if (row[i] != 0)
                op_write(self->dtype, to, r.first[0] + i * r.step[0], 1, 1, call->number);
    }
    free(row);
}

OP(InplaceMaskedFillScalar, aclTensor *selfRef, const aclTensor *mask, const aclScalar *value)
{
    BEGIN(InplaceMaskedFillScalar, masked_fill);
    const nnop_view *self = op_inout(&o, selfRef, "selfRef");
    check_mask(&o, op_side(&o, mask, false, "mask"), self);
    double filled = op_scalar(&o, value, "value");
    if (o.code == 0)
        o.call->number[0] = filled;
    return op_end(&o);
}
