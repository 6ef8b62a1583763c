/* Sort, Argsort, Topk. Equal values keep their order where `stable` is asked for; elsewhere
   they come in the reverse order, for a caller who counts on it is wrong. NaN is last. */
#include <stdlib.h>

#include "op.h"

typedef struct {
    double key, value;
    int64_t index, order;
} entry;

static int compare(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* integer: axis, how many, descending, stable, the slots of values and of indices (or -1) */
static void sort(const nnop_call *call)
{
    op_split s = op_split_at(&call->slot[0].view, (int)call->integer[0]);
    int64_t k = call->integer[1], lines = s.outer * s.inner;
    bool descending = call->integer[2] != 0, stable = call->integer[3] != 0;
    double *x = op_load(call, 0), *values = op_buffer((size_t)(lines * k), sizeof *values);
    double *indices = op_buffer((size_t)(lines * k), sizeof *indices);
    entry *line = op_buffer((size_t)s.n, sizeof *line);
    for (int64_t i = 0; x != NULL && i < lines; i++) {
        for (int64_t j = 0; j < s.n; j++) {
            double v = x[(i / s.inner * s.n + j) * s.inner + i % s.inner];
            double key = isnan(v) ? INFINITY : v;
            line[j] = (entry){descending ? -key : key, v, j, stable ? j : -j};
        }
        qsort(line, (size_t)s.n, sizeof *line, compare);
        for (int64_t j = 0; j < k; j++) {
            int64_t at = (i / s.inner * k + j) * s.inner + i % s.inner;
            values[at] = line[j].value;
            indices[at] = (double)line[j].index;
        }
    }
    if (x != NULL && call->integer[4] >= 0)
        op_store(call, (int)call->integer[4], values);
    if (x != NULL)
        op_store(call, (int)call->integer[5], indices);
    free(x);
    free(values);
    free(indices);
    free(line);
}

/* The results have `k` along the axis; k < 0: as many as there are. */
static aclnnStatus sorted(op *o, const nnop_view *self, int64_t dim, int64_t k, bool descending,
                          bool stable, const aclTensor *values, const aclTensor *indices)
{
    const nnop_view *v = values != NULL ? op_out(o, values, "valuesOut") : NULL;
    const nnop_view *i = op_side(o, indices, true, "indicesOut");
    int axis = op_axis(o, self, dim);
    nnop_view due = *self;
    k = k < 0 ? op_dim(self, axis) : k;
    op_need(o, k <= op_dim(self, axis), "%lld of %lld values", (long long)k,
            (long long)op_dim(self, axis));
    due.shape[axis] = k;
    op_need(o, i->dtype == ACL_INT64, "indices of %s", op_dtype(i->dtype));
    op_same_shape(o, &due, i);
    if (v != NULL) {
        op_same_shape(o, &due, v);
        op_same_dtype(o, self, v);
    }
    if (o->code == 0) {
        int64_t integer[] = {axis, k, descending, stable, v ? 1 : -1, v ? 2 : 1};
        for (int n = 0; n < 6; n++)
            o->call->integer[n] = integer[n];
    }
    op_workspace(o, nnop_elements(self));
    return op_end(o);
}

OP(Argsort, const aclTensor *self, int64_t dim, bool descending, aclTensor *out)
{
    BEGIN(Argsort, sort);
    const nnop_view *x = op_in(&o, self, "self");
    return sorted(&o, x, dim, -1, descending, false, NULL, out);
}

OP(Sort, const aclTensor *self, bool stable, int64_t dim, bool descending, aclTensor *valuesOut,
   aclTensor *indicesOut)
{
    BEGIN(Sort, sort);
    const nnop_view *x = op_in(&o, self, "self");
    if (valuesOut == NULL)
        op_refuse(&o, ACLNN_PARAM_NULLPTR, "valuesOut is NULL");
    return sorted(&o, x, dim, -1, descending, stable, valuesOut, indicesOut);
}

/* `sorted` only says whether the order matters: here it is always kept. */
OP(Topk, const aclTensor *self, int64_t k, int64_t dim, bool largest, bool sorted_,
   aclTensor *valuesOut, aclTensor *indicesOut)
{
    BEGIN(Topk, sort);
    (void)sorted_;
    const nnop_view *x = op_in(&o, self, "self");
    if (valuesOut == NULL)
        op_refuse(&o, ACLNN_PARAM_NULLPTR, "valuesOut is NULL");
    op_need(&o, k >= 0, "k is %lld", (long long)k);
    return sorted(&o, x, dim, k, largest, false, valuesOut, indicesOut);
}
