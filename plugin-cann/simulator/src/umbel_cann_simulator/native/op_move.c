/* Operators that move values: Permute, Slice, Cat, Repeat, RepeatInterleaveIntWithDim,
   ConstantPadNd. */
#include <string.h>

#include "op.h"

void *op_element(const nnop_view *view, void *base, int64_t first)
{
    return (char *)base + nnop_size(view->dtype, first);
}

nnop_view op_part(const nnop_view *view, int axis, int64_t from, int64_t n, int64_t *first)
{
    nnop_view part = *view;
    part.shape[axis] = n;
    *first += from * view->strides[axis];
    return part;
}

/* Bits as they are, which also keeps large int64. */
static void copy_row(size_t size, char *to, int64_t to_step, const char *from, int64_t step,
                     int64_t n)
{
    if (to_step == 1 && step == 1) {
        memmove(to, from, (size_t)n * size);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * to_step * (int64_t)size, from + i * step * (int64_t)size, size);
}

void op_copy(const nnop_view *to, void *at, const nnop_view *from, const void *source)
{
    enum { RUN = 256 };
    double some[RUN];
    size_t size = nnop_size(to->dtype, 1);
    bool same = to->dtype == from->dtype && to->dtype != ACL_INT4;
    op_rows r = op_rows_of(to, 2, (const nnop_view *[]){to, from});
    for (; !r.done; op_rows_next(&r)) {
        if (same) {
            copy_row(size, (char *)at + r.first[0] * (int64_t)size, r.step[0],
                     (const char *)source + r.first[1] * (int64_t)size, r.step[1], r.n);
            continue;
        }
        for (int64_t i = 0; i < r.n; i += RUN) {
            int64_t n = r.n - i < RUN ? r.n - i : RUN;
            op_read(from->dtype, source, r.first[1] + i * r.step[1], r.step[1], n, some);
            op_write(to->dtype, at, r.first[0] + i * r.step[0], r.step[0], n, some);
        }
    }
}

/* Of slot 0 the view that lies in the call's arrays, to the last slot. */
static void copy_view(const nnop_call *call, const nnop_view *from, int64_t first)
{
    int out = call->slots - 1;
    void *to = op_at(call, out), *source = op_at(call, 0);
    if (to != NULL && source != NULL)
        op_copy(&call->slot[out].view, to, from, op_element(from, source, first));
}

static void permute(const nnop_call *call)
{
    const nnop_view *self = &call->slot[0].view;
    nnop_view from = *self;
    for (int i = 0; i < self->axes; i++) {
        from.shape[i] = self->shape[call->array[i]];
        from.strides[i] = self->strides[call->array[i]];
    }
    copy_view(call, &from, 0);
}

OP(Permute, const aclTensor *self, const aclIntArray *dims, aclTensor *out)
{
    BEGIN(Permute, permute);
    const nnop_view *from = op_in(&o, self, "self");
    int count = op_ints(&o, dims, 0, "dims"), seen = 0;
    const nnop_view *to = op_out(&o, out, "out");
    op_same_dtype(&o, from, to);
    op_need(&o, count == from->axes && to->axes == from->axes, "dims has not one for each dim");
    for (int i = 0; i < count && o.code == 0; i++) {
        int axis = op_axis(&o, from, o.call->array[i]);
        o.call->array[i] = axis;
        op_need(&o, !(seen & 1 << axis), "dims has %d twice", axis);
        op_need(&o, op_dim(to, i) == op_dim(from, axis), "dim %d of out is not dim %d of self",
                i, axis);
        seen |= 1 << axis;
    }
    return op_end(&o);
}

/* integer: the axis, where it starts, the step */
static void slice(const nnop_call *call)
{
    const nnop_view *self = &call->slot[0].view;
    int64_t first = 0;
    int axis = (int)call->integer[0];
    nnop_view from = op_part(self, axis, call->integer[1],
                             op_dim(&call->slot[1].view, axis), &first);
    from.strides[axis] *= call->integer[2];
    copy_view(call, &from, first);
}

static int64_t inside(int64_t at, int64_t n)
{
    at = at < 0 ? at + n : at;
    return at < 0 ? 0 : at > n ? n : at;
}

OP(Slice, const aclTensor *self, int64_t dim, int64_t start, int64_t end, int64_t step,
   aclTensor *out)
{
    BEGIN(Slice, slice);
    const nnop_view *from = op_in(&o, self, "self"), *to = op_out(&o, out, "out");
    int axis = op_axis(&o, from, dim);
    int64_t n = op_dim(from, axis);
    op_need(&o, step > 0, "step %lld", (long long)step);
    op_same_dtype(&o, from, to);
    op_need(&o, from->axes == to->axes, "out has %d dims, self %d", to->axes, from->axes);
    if (o.code != 0)
        return op_end(&o);
    start = inside(start, n);
    end = inside(end, n);
    n = end > start ? (end - start + step - 1) / step : 0;
    for (int i = 0; i < to->axes; i++)
        op_need(&o, op_dim(to, i) == (i == axis ? n : op_dim(from, i)), "dim %d of out", i);
    memcpy(o.call->integer, (int64_t[]){axis, start, step}, 3 * sizeof(int64_t));
    o.call->bytes = 2 * (double)nnop_size(to->dtype, nnop_elements(to));
    return op_end(&o);
}

static void cat(const nnop_call *call)
{
    int out = call->slots - 1, axis = (int)call->integer[0];
    const nnop_view *to = &call->slot[out].view;
    char *at = op_at(call, out);
    int64_t from = 0;
    for (int i = 0; i < out && at != NULL; i++) {
        const nnop_view *part = &call->slot[i].view;
        const void *source = op_at(call, i);
        int64_t n = part->shape[axis], first = 0;
        if (source == NULL)
            return;
        nnop_view there = op_part(to, axis, from, n, &first);
        op_copy(&there, op_element(to, at, first), part, source);
        from += n;
    }
}

OP(Cat, const aclTensorList *tensors, int64_t dim, aclTensor *out)
{
    BEGIN(Cat, cat);
    int count = op_list(&o, tensors, "tensors");
    const nnop_view *to = op_out(&o, out, "out");
    int axis = op_axis(&o, to, dim);
    int64_t n = 0;
    for (int i = 0; i < count && o.code == 0; i++) {
        const nnop_view *part = op_slot_view(&o, i);
        op_need(&o, part->axes == to->axes, "tensor %d has %d dims, out %d", i, part->axes,
                to->axes);
        for (int j = 0; j < to->axes; j++)
            op_need(&o, j == axis || op_dim(part, j) == op_dim(to, j),
                    "dim %d of tensor %d is not that of out", j, i);
        n += op_dim(part, axis);
    }
    op_need(&o, n == op_dim(to, axis), "out has %lld along dim %d, the tensors %lld",
            (long long)op_dim(to, axis), axis, (long long)n);
    if (o.code == 0)
        o.call->integer[0] = axis;
    return op_end(&o);
}

/* One copy for each tile of out; `tile` counts them as digits of the repeats. */
static void repeat(const nnop_call *call)
{
    const nnop_view *self = &call->slot[0].view, *out = &call->slot[1].view;
    char *to = op_at(call, 1);
    const void *from = op_at(call, 0);
    int64_t tiles = 1;
    for (int i = 0; i < out->axes; i++)
        tiles *= call->array[i];
    for (int64_t tile = 0; tile < tiles && to != NULL && from != NULL; tile++) {
        int64_t rest = tile, first = 0;
        nnop_view part = *out;
        for (int i = out->axes - 1; i >= 0; i--) {
            int64_t n = out->shape[i] / call->array[i];
            part = op_part(&part, i, rest % call->array[i] * n, n, &first);
            rest /= call->array[i];
        }
        op_copy(&part, op_element(out, to, first), self, from);
    }
}

OP(Repeat, const aclTensor *self, const aclIntArray *repeats, aclTensor *out)
{
    BEGIN(Repeat, repeat);
    const nnop_view *from = op_in(&o, self, "self");
    int count = op_ints(&o, repeats, 0, "repeats");
    const nnop_view *to = op_out(&o, out, "out");
    op_same_dtype(&o, from, to);
    op_need(&o, count == to->axes && from->axes <= count, "repeats has not one for each dim");
    for (int i = 0; i < count && o.code == 0; i++) {
        int64_t n = i < count - from->axes ? 1 : op_dim(from, i - count);
        op_need(&o, op_dim(to, i) == n * o.call->array[i], "dim %d of out is not %lld", i,
                (long long)(n * o.call->array[i]));
    }
    return op_end(&o);
}

/* integer: the axis, how often */
static void interleave(const nnop_call *call)
{
    const nnop_view *self = &call->slot[0].view, *out = &call->slot[1].view;
    char *to = op_at(call, 1), *from = op_at(call, 0);
    int axis = (int)call->integer[0];
    for (int64_t i = 0; i < op_dim(out, axis) && to != NULL && from != NULL; i++) {
        int64_t first = 0, source = 0;
        nnop_view a = op_part(out, axis, i, 1, &first);
        nnop_view b = op_part(self, axis, i / call->integer[1], 1, &source);
        op_copy(&a, op_element(out, to, first), &b, op_element(self, from, source));
    }
}

OP(RepeatInterleaveIntWithDim, const aclTensor *self, int64_t repeats, int64_t dim,
   int64_t outputSize, aclTensor *out)
{
    BEGIN(RepeatInterleaveIntWithDim, interleave);
    const nnop_view *from = op_in(&o, self, "self"), *to = op_out(&o, out, "out");
    int axis = op_axis(&o, from, dim);
    op_same_dtype(&o, from, to);
    op_need(&o, repeats > 0 && outputSize == op_dim(from, axis) * repeats,
            "outputSize is not dim %d times repeats", axis);
    op_need(&o, from->axes == to->axes, "out has %d dims, self %d", to->axes, from->axes);
    for (int i = 0; i < to->axes && o.code == 0; i++)
        op_need(&o, op_dim(to, i) == (i == axis ? outputSize : op_dim(from, i)),
                "dim %d of out", i);
    if (o.code == 0) {
        o.call->integer[0] = axis;
        o.call->integer[1] = repeats;
    }
    return op_end(&o);
}

/* array: before and after the last axis, then the one before it ... */
static void pad(const nnop_call *call)
{
    const nnop_view *self = &call->slot[0].view, *out = &call->slot[1].view;
    char *to = op_at(call, 1);
    const void *from = op_at(call, 0);
    nnop_view value = {.dtype = ACL_DOUBLE}, part = *out;
    int64_t first = 0;
    if (to == NULL || from == NULL)
        return;
    op_copy(out, to, &value, &call->number[0]);
    for (int i = 0; i < out->axes; i++)
        part = op_part(&part, i, call->array[2 * (out->axes - 1 - i)], self->shape[i], &first);
    op_copy(&part, op_element(out, to, first), self, from);
}

OP(ConstantPadNd, const aclTensor *self, const aclIntArray *pad_, const aclScalar *value,
   aclTensor *out)
{
    BEGIN(ConstantPadNd, pad);
    const nnop_view *from = op_in(&o, self, "self");
    int count = op_ints(&o, pad_, 0, "pad");
    double filled = op_scalar(&o, value, "value");
    const nnop_view *to = op_out(&o, out, "out");
    op_same_dtype(&o, from, to);
    op_need(&o, count % 2 == 0 && count <= 2 * from->axes && from->axes == to->axes,
            "pad has %d values for %d dims", count, from->axes);
    for (int i = 0; i < to->axes && o.code == 0; i++) {
        int64_t *two = &o.call->array[2 * i];
        op_need(&o, two[0] >= 0 && two[1] >= 0, "the simulator does not pad by less than 0");
        op_need(&o, op_dim(to, -1 - i) == op_dim(from, -1 - i) + two[0] + two[1],
                "dim %d of out", to->axes - 1 - i);
    }
    if (o.code == 0)
        o.call->number[0] = filled;
    return op_end(&o);
}
