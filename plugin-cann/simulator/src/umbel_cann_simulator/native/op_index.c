/* Operators that take or put by indices: IndexSelect, GatherV2, Embedding, InplaceIndexCopy,
   Gather, Scatter. */
#include <stdlib.h>
#include <string.h>

#include "op.h"

/* A view without `count` axes from `axis` on. */
static nnop_view without(const nnop_view *view, int axis, int count)
{
    nnop_view part = *view;
    part.axes -= count;
    for (int i = axis; i < part.axes; i++) {
        part.shape[i] = view->shape[i + count];
        part.strides[i] = view->strides[i + count];
    }
    return part;
}

/* Where the `at`th element (counted row by row) of `count` axes from `axis` on lies. */
static int64_t position(const nnop_view *view, int axis, int count, int64_t at)
{
    int64_t first = 0;
    for (int i = axis + count - 1; i >= axis; i--) {
        first += at % view->shape[i] * view->strides[i];
        at /= view->shape[i];
    }
    return first;
}

/* What stands at an index that is too large: nobody promises anything. */
static void junk(const nnop_view *to, void *at)
{
    double noise = -7.75e3;
    nnop_view one = {.dtype = ACL_DOUBLE};
    op_copy(to, at, &one, &noise);
}

/* Takes slices of slot 0 (`put`: writes those of slot 2 into it), by the indices of slot 1.
   integer: the axis of slot 0, whether what is too large gives junk and no fault */
static void slices(const nnop_call *call, bool put)
{
    const nnop_view *self = &call->slot[0].view, *many = &call->slot[2].view;
    char *table = op_at(call, 0), *other = op_at(call, 2);
    double *index = op_load(call, 1);
    int axis = (int)call->integer[0], count = call->slot[1].view.axes;
    nnop_view a = without(self, axis, 1), b = without(many, axis, count);
    int64_t n = nnop_elements(&call->slot[1].view), limit = self->shape[axis];
    for (int64_t i = 0; i < n && table != NULL && other != NULL && index != NULL; i++) {
        char *there = op_element(many, other, position(many, axis, count, i));
        if (index[i] >= 0 && index[i] < (double)limit) {
            char *here = op_element(self, table, (int64_t)index[i] * self->strides[axis]);
            put ? op_copy(&a, here, &b, there) : op_copy(&b, there, &a, here);
        } else if (index[i] > 0 && call->integer[1] != 0)
            junk(&b, there);
        else {
            sim_task_fault(507015, "aclnn%s: index %.0f of %lld", call->name, index[i],
                           (long long)limit);
            break;
        }
    }
    free(index);
}

static void take(const nnop_call *call)
{
    slices(call, false);
}

static void put(const nnop_call *call)
{
    slices(call, true);
}

/* `many` has the indices' axes in the place of one of `self`. */
static aclnnStatus indexed(op *o, const nnop_view *self, int64_t dim, const nnop_view *index,
                           const nnop_view *many)
{
    int axis = op_axis(o, self, dim);
    op_need(o, op_index(index), "indices of %s", op_dtype(index->dtype));
    op_same_dtype(o, self, many);
    op_need(o, many->axes == self->axes - 1 + index->axes, "%d dims where %d are due",
            many->axes, self->axes - 1 + index->axes);
    for (int i = 0; i < many->axes && o->code == 0; i++) {
        int64_t n = i < axis                 ? op_dim(self, i)
                    : i < axis + index->axes ? index->shape[i - axis]
                                             : op_dim(self, i - index->axes + 1);
        op_need(o, op_dim(many, i) == n, "dim %d is %lld, not %lld", i,
                (long long)op_dim(many, i), (long long)n);
    }
    if (o->code == 0) {
        o->call->integer[0] = axis;
        o->call->bytes = 2 * (double)nnop_size(many->dtype, nnop_elements(many)) +
                         (double)nnop_size(index->dtype, nnop_elements(index));
    }
    return op_end(o);
}

OP(IndexSelect, const aclTensor *self, int64_t dim, const aclTensor *index, aclTensor *out)
{
    BEGIN(IndexSelect, take);
    const nnop_view *from = op_in(&o, self, "self"), *by = op_side(&o, index, false, "index");
    op_need(&o, by->axes <= 1, "index has %d dims", by->axes);
    return indexed(&o, from, dim, by, op_out(&o, out, "out"));
}

OP(GatherV2, const aclTensor *self, int64_t dim, const aclTensor *index, aclTensor *out)
{
    BEGIN(GatherV2, take);
    const nnop_view *from = op_in(&o, self, "self"), *by = op_side(&o, index, false, "index");
    return indexed(&o, from, dim, by, op_out(&o, out, "out"));
}

OP(Embedding, const aclTensor *weight, const aclTensor *indices, const aclTensor *out)
{
    BEGIN(Embedding, take);
    const nnop_view *from = op_in(&o, weight, "weight");
    const nnop_view *by = op_side(&o, indices, false, "indices");
    op_need(&o, from->axes == 2, "weight is no matrix");
    if (o.code == 0)
        o.call->integer[1] = 1;
    return indexed(&o, from, 0, by, op_out(&o, out, "out"));
}

/* What duplicate indices leave is not promised; here it is the last one. */
OP(InplaceIndexCopy, aclTensor *selfRef, int64_t dim, const aclTensor *index,
   const aclTensor *source)
{
    BEGIN(InplaceIndexCopy, put);
    const nnop_view *into = op_inout(&o, selfRef, "selfRef");
    const nnop_view *by = op_side(&o, index, false, "index");
    const nnop_view *from = op_in(&o, source, "source");
    op_need(&o, by->axes == 1, "index has %d dims", by->axes);
    return indexed(&o, into, dim, by, from);
}

/* Goes through the indices (slot 1) element by element: where each is in `self`, counted row by
   row. False: one is outside, which is noted. */
static bool places(const nnop_call *call, const nnop_view *self, int64_t *place)
{
    const nnop_view *by = &call->slot[1].view;
    double *index = op_load(call, 1);
    int axis = (int)call->integer[0];
    bool fits = index != NULL;
    for (int64_t i = 0; fits && i < nnop_elements(by); i++) {
        int64_t rest = i, step = 1;
        place[i] = 0;
        fits = index[i] >= 0 && index[i] < (double)self->shape[axis];
        for (int j = by->axes - 1; j >= 0; j--) {
            place[i] += (j == axis ? (int64_t)index[i] : rest % by->shape[j]) * step;
            rest /= by->shape[j];
            step *= self->shape[j];
        }
        if (!fits)
            sim_task_fault(507015, "aclnn%s: index %.0f of %lld", call->name, index[i],
                           (long long)self->shape[axis]);
    }
    free(index);
    return fits;
}

static void gather(const nnop_call *call)
{
    const nnop_view *self = &call->slot[0].view, *by = &call->slot[1].view;
    int64_t n = nnop_elements(by), *place = op_buffer((size_t)n, sizeof *place);
    double *from = op_load(call, 0), *to = op_buffer((size_t)n, sizeof *to);
    if (from != NULL && places(call, self, place)) {
        for (int64_t i = 0; i < n; i++)
            to[i] = from[place[i]];
        op_store(call, 2, to);
    }
    free(place);
    free(from);
    free(to);
}

/* The dims of what indices choose from: at least theirs, but for the axis itself. */
static void reaches(op *o, const nnop_view *self, const nnop_view *by, int axis)
{
    op_need(o, op_index(by), "indices of %s", op_dtype(by->dtype));
    op_need(o, self->axes == by->axes, "index has %d dims, self %d", by->axes, self->axes);
    for (int i = 0; i < by->axes && o->code == 0; i++)
        op_need(o, i == axis || op_dim(by, i) <= op_dim(self, i), "dim %d of index", i);
    if (o->code == 0)
        o->call->integer[0] = axis;
}

OP(Gather, const aclTensor *self, const int64_t dim, const aclTensor *index, aclTensor *out)
{
    BEGIN(Gather, gather);
    const nnop_view *from = op_in(&o, self, "self"), *by = op_side(&o, index, false, "index");
    const nnop_view *to = op_out(&o, out, "out");
    reaches(&o, from, by, op_axis(&o, from, dim));
    op_same_dtype(&o, from, to);
    op_same_shape(&o, by, to);
    return op_end(&o);
}

/* integer[1]: 0 puts, 1 adds, 2 multiplies */
static void scatter(const nnop_call *call)
{
    int64_t n = nnop_elements(&call->slot[1].view);
    int64_t *place = op_buffer((size_t)n, sizeof *place);
    double *all = op_load(call, 0), *from = op_load(call, 2);
    if (all != NULL && from != NULL && places(call, &call->slot[0].view, place)) {
        for (int64_t i = 0; i < n; i++) {
            double *to = &all[place[i]];
            *to = call->integer[1] == 1 ? *to + from[i]
                  : call->integer[1] == 2 ? *to * from[i] : from[i];
        }
        op_store(call, 3, all);
    }
    free(place);
    free(all);
    free(from);
}

OP(Scatter, const aclTensor *self, int64_t dim, const aclTensor *index, const aclTensor *src,
   int64_t reduce, aclTensor *out)
{
    BEGIN(Scatter, scatter);
    const nnop_view *into = op_in(&o, self, "self"), *by = op_side(&o, index, false, "index");
    const nnop_view *from = op_in(&o, src, "src"), *to = op_out(&o, out, "out");
    reaches(&o, into, by, op_axis(&o, into, dim));
    op_same_shape(&o, by, from);
    op_same_shape(&o, into, to);
    op_same_dtype(&o, into, to);
    op_same_dtype(&o, into, from);
    op_need(&o, reduce >= 0 && reduce <= 2, "reduce %lld", (long long)reduce);
    if (o.code == 0)
        o.call->integer[1] = reduce;
    return op_end(&o);
}
