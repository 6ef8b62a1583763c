/* WeightQuantBatchMatmulV2 and V3: y = x @ ((weight + offset) * scale) + bias. Weights are int8
   or int4; scales stand for groups of `groupSize` along k (0: one for a whole column). */
#include <stdlib.h>

#include "op_product.h"

enum { X, WEIGHT, SCALE, OFFSET, QUANT_SCALE, QUANT_OFFSET, BIAS, Y };

/* A matrix of the weight's shape, or of (groups, n); a missing one has no base. */
typedef struct {
    const nnop_view *view;
    const void *base;
} part;

typedef struct {
    part weight, scale, offset, bias, out;
    int64_t k, group;
    bool packed; /* eight int4 in an int32 */
} source;

/* A scale may have one axis only: that of n. */
static void row_of(const part *p, int64_t row, int64_t first, int64_t count, float *to)
{
    const nnop_view *v = p->view;
    int64_t step = v->strides[v->axes - 1];
    int64_t down = v->axes > 1 && v->shape[v->axes - 2] > 1 ? v->strides[v->axes - 2] : 0;
    if (op_dim(v, -1) == 1)
        step = 0;
    op_read_f32(v->dtype, p->base, row * down + first * step, step, count, to);
}

/* The weights of some columns as whole numbers, read in the order in which they lie. */
static void weights_of(const source *s, int64_t first, int64_t count, float *to)
{
    nnop_view w = *s->weight.view;
    int64_t k = op_padded(s->k);
    float run[OP_TILE];
    if (s->packed) { /* the axis that is packed counts int4 */
        int inner = w.strides[1] == 1 ? 1 : 0;
        w.dtype = ACL_INT4;
        w.strides[1 - inner] *= 8;
        w.shape[inner] *= 8;
    }
    for (int64_t n = 0; w.strides[0] == 1 && n < count; n++)
        op_read_f32(w.dtype, s->weight.base, (first + n) * w.strides[1], 1, s->k, to + n * k);
    for (int64_t i = 0; w.strides[0] != 1 && i < s->k; i++) {
        row_of(&(part){&w, s->weight.base}, i, first, count, run);
        for (int64_t n = 0; n < count; n++)
            to[n * k + i] = run[n];
    }
}

static void columns(const void *from, int64_t first, int64_t count, float *to)
{
    const source *s = from;
    float scale[OP_TILE], offset[OP_TILE] = {0};
    int64_t k = op_padded(s->k), group = s->group > 0 ? s->group : s->k;
    weights_of(s, first, count, to);
    for (int64_t start = 0; start < s->k; start += group) {
        int64_t end = start + group < s->k ? start + group : s->k;
        row_of(&s->scale, start / group, first, count, scale);
        if (s->offset.base != NULL)
            row_of(&s->offset, start / group, first, count, offset);
        for (int64_t n = 0; n < count; n++)
            for (int64_t i = start; i < end; i++)
                to[n * k + i] = (to[n * k + i] + offset[n]) * scale[n];
    }
}

static void take(const void *to, int64_t row, int64_t first, int64_t count, float *values)
{
    const source *s = to;
    const nnop_view *y = s->out.view;
    float bias[OP_TILE] = {0};
    if (s->bias.base != NULL)
        row_of(&s->bias, 0, first, count, bias);
    for (int64_t i = 0; i < count; i++)
        values[i] += bias[i];
    op_write_f32(y->dtype, (void *)(uintptr_t)s->out.base,
                 row * y->strides[0] + first * y->strides[1], y->strides[1], count, values);
}

/* False: it is there, but no longer in memory. */
static bool find(const nnop_call *call, int slot, part *p)
{
    if (call->slot[slot].handle == NULL)
        return true;
    p->view = &call->slot[slot].view;
    p->base = op_at(call, slot);
    return p->base != NULL;
}

static void run(const nnop_call *call)
{
    const nnop_view *x = &call->slot[X].view;
    int64_t m = x->shape[0], k = op_padded(x->shape[1]);
    source s = {.k = x->shape[1], .group = call->integer[1]};
    const void *from = op_at(call, X);
    s.packed = call->slot[WEIGHT].view.dtype == ACL_INT32;
    if (from == NULL || !find(call, WEIGHT, &s.weight) || !find(call, SCALE, &s.scale) ||
        !find(call, OFFSET, &s.offset) || !find(call, BIAS, &s.bias) || !find(call, Y, &s.out))
        return;
    float *rows = calloc((size_t)(m * k) + OP_LANES, sizeof *rows);
    if (rows == NULL)
        abort();
    for (int64_t i = 0; i < m; i++)
        op_read_f32(x->dtype, from, i * x->strides[0], x->strides[1], s.k, rows + i * k);
    op_multiply(&(op_product){m, call->slot[Y].view.shape[1], s.k, rows, columns, &s, take,
                              &s});
    free(rows);
}

static bool transposed(const nnop_view *v)
{
    return v->strides[0] == 1 && v->shape[0] > 1;
}

static void check_weight(op *o, const nnop_view *w, int64_t k, int64_t n)
{
    bool packed = w->dtype == ACL_INT32;
    op_need(o, w->axes == 2, "the weight is no matrix");
    if (o->code != 0)
        return;
    int64_t rows = w->shape[0] * (packed && transposed(w) ? 8 : 1);
    int64_t width = w->shape[1] * (packed && !transposed(w) ? 8 : 1);
    int64_t inner = transposed(w) ? k : n,
        outer = transposed(w) ? w->strides[1] : w->strides[0];
    op_need(o, rows == k && width == n, "the weight is (%lld, %lld), k and n are %lld, %lld",
            (long long)rows, (long long)width, (long long)k, (long long)n);
    op_need(o, outer * (packed ? 8 : 1) == inner && (transposed(w) || w->strides[1] == 1),
            "the weight is not contiguous, nor transposed");
    op_need(o, (w->dtype != ACL_INT4 && !packed) || inner % 2 == 0,
            "an odd inner axis of int4");
    if (sim_chip("rule int8-weights") != NULL)
        op_need(o, w->dtype == ACL_INT8, "this chip has int8 weights only");
    op_need(o, packed || w->dtype == ACL_INT4 || w->dtype == ACL_INT8, "weights of %s",
            op_dtype(w->dtype));
}

static void check_scale(op *o, const nnop_view *s, int64_t k, int64_t n, int64_t group)
{
    int64_t groups = group > 0 ? (k + group - 1) / group : 1;
    int64_t rows = s->axes > 1 ? op_dim(s, -2) : 1, width = op_dim(s, -1);
    op_need(o, rows == groups && (width == n || (width == 1 && group == 0)),
            "scale or offset is (%lld, %lld), not (%lld, %lld)", (long long)rows,
            (long long)width, (long long)groups, (long long)n);
}

static aclnnStatus weight_quant(op *o, const aclTensor *x, const aclTensor *weight,
                                const aclTensor *scale, const aclTensor *offset,
                                const aclTensor *quant_scale, const aclTensor *quant_offset,
                                const aclTensor *bias, int group, const aclTensor *y)
{
    const nnop_view *vx = op_in(o, x, "x"), *vw = op_side(o, weight, false, "weight");
    const nnop_view *vs = op_in(o, scale, "antiquantScale");
    const nnop_view *vo = op_maybe(o, offset, false, "antiquantOffset");
    const nnop_view *qs = op_maybe(o, quant_scale, false, "quantScale");
    const nnop_view *qo = op_maybe(o, quant_offset, false, "quantOffset");
    op_need(o, qs == NULL && qo == NULL, "the simulator quantises no results");
    const nnop_view *vb = op_maybe(o, bias, false, "bias"), *vy = op_out(o, y, "y");
    int64_t k = op_dim(vx, 1), n = op_dim(vy, 1);
    op_need(o, vx->dtype == ACL_FLOAT16 || vx->dtype == ACL_BF16, "x of %s",
            op_dtype(vx->dtype));
    op_need(o, vx->axes == 2 && vy->axes == 2 && op_dim(vx, 0) == op_dim(vy, 0),
            "x and y are matrices with the same rows");
    op_need(o, k >= 1 && k <= 65535 && n >= 1 && n <= 65535, "k and n are 1 to 65535");
    op_need(o, group == 0 || (group % 32 == 0 && group >= 32 && group <= k - 1),
            "antiquantGroupSize %d: 0, or a multiple of 32 in 32 to k - 1", group);
    op_need(o, op_contiguous(vx) || (vx->axes == 2 && transposed(vx)), "x is not contiguous");
    check_weight(o, vw, k, n);
    check_scale(o, vs, k, n, group);
    if (vo != NULL)
        check_scale(o, vo, k, n, group);
    op_need(o, group == 0 || vw->axes != 2 || op_dim(vs, -2) <= 1 || n <= 1 ||
                   transposed(vw) == transposed(vs),
            "the scale must be transposed where the weight is, and only there");
    op_need(o, vb == NULL || op_dim(vb, -1) == n, "bias has not n values");
    if (o->code == 0) {
        o->call->integer[1] = group;
        o->call->flops = 2.0 * (double)op_dim(vx, 0) * (double)n * (double)k;
    }
    op_workspace(o, op_dim(vx, 0));
    return op_end(o);
}

OP(WeightQuantBatchMatmulV2, const aclTensor *x, const aclTensor *weight,
   const aclTensor *antiquantScale, const aclTensor *antiquantOffsetOptional,
   const aclTensor *quantScaleOptional, const aclTensor *quantOffsetOptional,
   const aclTensor *biasOptional, int antiquantGroupSize, const aclTensor *y)
{
    BEGIN(WeightQuantBatchMatmulV2, run);
    return weight_quant(&o, x, weight, antiquantScale, antiquantOffsetOptional,
                        quantScaleOptional, quantOffsetOptional, biasOptional,
                        antiquantGroupSize, y);
}

OP(WeightQuantBatchMatmulV3, const aclTensor *x, const aclTensor *weight,
   const aclTensor *antiquantScale, const aclTensor *antiquantOffsetOptional,
   const aclTensor *quantScaleOptional, const aclTensor *quantOffsetOptional,
   const aclTensor *biasOptional, int antiquantGroupSize, int innerPrecise, const aclTensor *y)
{
    BEGIN(WeightQuantBatchMatmulV3, run);
    op_need(&o, innerPrecise == 0 || innerPrecise == 1, "innerPrecise %d", innerPrecise);
    return weight_quant(&o, x, weight, antiquantScale, antiquantOffsetOptional,
                        quantScaleOptional, quantOffsetOptional, biasOptional,
                        antiquantGroupSize, y);
}
