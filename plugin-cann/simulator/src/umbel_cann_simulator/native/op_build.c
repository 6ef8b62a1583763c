/* Phase 1: what all operators check, and the call that comes of it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op.h"

static const nnop_view nothing;

static void note(op *o, int code, const char *format, va_list values)
{
    char text[512];
    if (o->code != 0)
        return;
    vsnprintf(text, sizeof text, format, values);
    o->code = sim_fail(code, "aclnn%sGetWorkspaceSize: %s", o->name, text);
}

void op_refuse(op *o, int code, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    note(o, code, format, values);
    va_end(values);
}

void op_need(op *o, bool fits, const char *format, ...)
{
    va_list values;
    if (fits)
        return;
    va_start(values, format);
    note(o, ACLNN_PARAM_INVALID, format, values);
    va_end(values);
}

op op_begin(const char *name, op_run *run, uint64_t *size, aclOpExecutor **executor)
{
    op o = {.name = name, .size = size, .executor = executor, .room = 8};
    sim_count("phase 1", 1);
    o.call = calloc(1, sizeof *o.call + (size_t)o.room * sizeof(nnop_slot));
    if (o.call == NULL) {
        op_refuse(&o, ACLNN_INNER, "no memory");
        return o;
    }
    o.call->name = name;
    o.call->run = run;
    if (size == NULL || executor == NULL)
        op_refuse(&o, ACLNN_PARAM_NULLPTR, "workspaceSize or executor is NULL");
    int ready = sim_ready();
    if (ready != 0)
        op_refuse(&o, ACLNN_RUNTIME_ERROR, "the runtime answers %d", ready);
    return o;
}

/* What is read and written, where the operator has not said it: all of its tensors. */
static void count_bytes(nnop_call *call)
{
    double bytes = 0;
    for (int i = 0; i < call->slots; i++)
        bytes += (double)nnop_size(call->slot[i].view.dtype,
                                   nnop_elements(&call->slot[i].view));
    if (call->bytes == 0)
        call->bytes = bytes;
}

aclnnStatus op_end(op *o)
{
    if (o->code == 0)
        op_chip(o);
    if (o->code == 0) {
        count_bytes(o->call);
        aclOpExecutor *executor = nnop_executor(o->call);
        if (executor == NULL)
            op_refuse(o, ACLNN_INNER, "too many executors wait for their phase 2");
        else {
            *o->size = o->call->workspace_size;
            *o->executor = executor;
            return 0;
        }
    }
    free(o->call);
    return o->code;
}

/* The call with one more slot. */
static nnop_slot *grow(op *o, int member)
{
    if (o->call->slots == o->room) {
        size_t size = sizeof *o->call + 2 * (size_t)o->room * sizeof(nnop_slot);
        nnop_call *more = realloc(o->call, size);
        if (more == NULL) {
            op_refuse(o, ACLNN_INNER, "no memory");
            return NULL;
        }
        o->call = more;
        o->room *= 2;
    }
    nnop_slot *slot = &o->call->slot[o->call->slots++];
    *slot = (nnop_slot){.argument = o->arguments, .member = member};
    return slot;
}

/* The storage is what the caller says lies there: a view past it reads what is not its own. The
   last dims of FRACTAL_NZ are padded, so its extent says nothing. */
static void inside_storage(op *o, const nnop_view *view, const char *role)
{
    int64_t room = 1, used = view->offset + nnop_extent(view);
    for (int i = 0; i < view->storage_axes; i++)
        room *= view->storage[i];
    if (view->format != ACL_FORMAT_FRACTAL_NZ)
        op_need(o, nnop_elements(view) == 0 || (view->offset >= 0 && used <= room),
                "%s reaches to element %lld of a storage of %lld", role, (long long)used,
                (long long)room);
    op_need(o, view->dtype != ACL_INT4 || view->offset % 2 == 0, "%s begins within a byte",
            role);
    op_need(o, nnop_size(view->dtype, 1) > 0, "%s has the unknown dtype %d", role, view->dtype);
}

static const nnop_view *add(op *o, const aclTensor *tensor, bool out, int member,
                            const char *role)
{
    if (o->call == NULL)
        return &nothing;
    nnop_slot *slot = grow(o, member);
    if (slot == NULL || tensor == NULL)
        return &nothing;
    const nnop_view *view = nnop_tensor(tensor);
    slot->view = *view;
    slot->handle = tensor;
    slot->out = out;
    inside_storage(o, view, role);
    return view;
}

const nnop_view *op_side(op *o, const aclTensor *tensor, bool out, const char *role)
{
    if (tensor == NULL)
        op_refuse(o, ACLNN_PARAM_NULLPTR, "%s is NULL", role);
    const nnop_view *view = add(o, tensor, out, -1, role);
    o->arguments++;
    return view;
}

static const nnop_view *computed(op *o, const nnop_view *view)
{
    if (o->computes < (int)(sizeof o->computed / sizeof *o->computed))
        o->computed[o->computes++] = view;
    return view;
}

const nnop_view *op_in(op *o, const aclTensor *tensor, const char *role)
{
    return computed(o, op_side(o, tensor, false, role));
}

const nnop_view *op_out(op *o, const aclTensor *tensor, const char *role)
{
    return computed(o, op_side(o, tensor, true, role));
}

const nnop_view *op_inout(op *o, const aclTensor *tensor, const char *role)
{
    const nnop_view *view = op_out(o, tensor, role);
    if (o->code == 0 && !op_contiguous(view))
        o->call->once = true; /* it is computed aside and copied into the view */
    return view;
}

const nnop_view *op_maybe(op *o, const aclTensor *tensor, bool out, const char *role)
{
    const nnop_view *view = add(o, tensor, out, -1, role);
    o->arguments++;
    return tensor == NULL ? NULL : view;
}

int op_list(op *o, const aclTensorList *list, const char *role)
{
    if (list == NULL) {
        op_refuse(o, ACLNN_PARAM_NULLPTR, "%s is NULL", role);
        o->arguments++;
        return 0;
    }
    const aclTensorList *all = nnop_tensors(list);
    for (uint64_t i = 0; i < all->count; i++) {
        if (all->values[i] == NULL)
            op_refuse(o, ACLNN_PARAM_NULLPTR, "%s has a NULL", role);
        computed(o, add(o, all->values[i], false, (int)i, role));
    }
    op_need(o, all->count > 0, "%s is empty", role);
    o->arguments++;
    return (int)all->count;
}

const nnop_view *op_slot_view(const op *o, int slot)
{
    return o->call != NULL && slot < o->call->slots ? &o->call->slot[slot].view : &nothing;
}

double op_scalar(op *o, const aclScalar *scalar, const char *role)
{
    if (scalar == NULL) {
        op_refuse(o, ACLNN_PARAM_NULLPTR, "%s is NULL", role);
        return 0;
    }
    return nnop_scalar(scalar)->value;
}

int op_ints(op *o, const aclIntArray *array, int at, const char *role)
{
    if (array == NULL) {
        op_refuse(o, ACLNN_PARAM_NULLPTR, "%s is NULL", role);
        return 0;
    }
    const aclIntArray *ints = nnop_ints(array);
    op_need(o, ints->count <= (uint64_t)(NNOP_ARRAY / 2), "%s has more than %d values", role,
            NNOP_ARRAY / 2);
    if (o->code != 0)
        return 0;
    memcpy(&o->call->array[at], ints->values, ints->count * sizeof(int64_t));
    return (int)ints->count;
}

int64_t op_dim(const nnop_view *view, int axis)
{
    axis = axis < 0 ? axis + view->axes : axis;
    return axis < 0 || axis >= view->axes ? 0 : view->shape[axis];
}

bool op_same(const nnop_view *a, const nnop_view *b)
{
    bool same = a->axes == b->axes;
    for (int i = 0; same && i < a->axes; i++)
        same = a->shape[i] == b->shape[i];
    return same;
}

bool op_spreads(const nnop_view *from, const nnop_view *to)
{
    bool fits = from->axes <= to->axes;
    for (int i = 1; fits && i <= from->axes; i++)
        fits = op_dim(from, -i) == op_dim(to, -i) || op_dim(from, -i) == 1;
    return fits;
}

bool op_contiguous(const nnop_view *view)
{
    int64_t step = 1;
    for (int i = view->axes - 1; i >= 0; i--) {
        if (view->shape[i] > 1 && view->strides[i] != step)
            return nnop_elements(view) == 0;
        step *= view->shape[i];
    }
    return true;
}

bool op_floats(const nnop_view *view)
{
    return view->dtype == ACL_FLOAT16 || view->dtype == ACL_BF16 || view->dtype == ACL_FLOAT;
}

bool op_index(const nnop_view *view)
{
    return view->dtype == ACL_INT32 || view->dtype == ACL_INT64;
}

int op_axis(op *o, const nnop_view *view, int64_t axis)
{
    int axes = view->axes > 0 ? view->axes : 1;
    op_need(o, axis >= -axes && axis < axes, "dim %lld of a tensor with %d", (long long)axis,
            view->axes);
    return o->code != 0 ? 0 : (int)(axis < 0 ? axis + axes : axis);
}

void op_same_dtype(op *o, const nnop_view *a, const nnop_view *b)
{
    op_need(o, a->dtype == b->dtype, "the dtypes differ: %s and %s", op_dtype(a->dtype),
            op_dtype(b->dtype));
}

void op_same_shape(op *o, const nnop_view *a, const nnop_view *b)
{
    op_need(o, op_same(a, b), "shapes that must be the same differ");
}

op_split op_split_at(const nnop_view *view, int axis)
{
    op_split split = {1, view->axes > 0 ? view->shape[axis] : 1, 1};
    for (int i = 0; i < axis; i++)
        split.outer *= view->shape[i];
    for (int i = axis + 1; i < view->axes; i++)
        split.inner *= view->shape[i];
    return split;
}
