/* RotaryPositionEmbedding and ApplyRotaryPosEmb: y = x * cos + rotated(x) * sin. */
#include <stdlib.h>
#include <string.h>

#include "op.h"

enum { HALF, INTERLEAVE, QUARTER, INTERLEAVE_HALF };

/* One head, in place of x; `t` is room for another. */
static void rotate(int mode, int64_t n, double *x, double *t, const double *cosine,
                   const double *sine)
{
    int64_t span = mode == QUARTER ? n / 2 : n, half = span / 2;
    if (mode == INTERLEAVE_HALF) { /* pairs are first sorted into halves */
        for (int64_t i = 0; i < n; i++)
            t[i % 2 * half + i / 2] = x[i];
        memcpy(x, t, (size_t)n * sizeof *x);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t in = i % span;
        if (mode == INTERLEAVE)
            t[i] = i % 2 == 0 ? -x[i + 1] : x[i - 1];
        else
            t[i] = in < half ? -x[i + half] : x[i - half];
    }
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] * cosine[i] + t[i] * sine[i];
}

/* Of slot x to slot out, with the slots of cos and sin. */
static void turn(const nnop_call *call, int mode, int from, int cosine, int sine, int out)
{
    const nnop_view *view[] = {&call->slot[out].view, &call->slot[from].view,
                               &call->slot[cosine].view, &call->slot[sine].view};
    void *at[] = {op_at(call, out), op_at(call, from), op_at(call, cosine), op_at(call, sine)};
    if (at[0] == NULL || at[1] == NULL || at[2] == NULL || at[3] == NULL)
        return;
    op_rows r = op_rows_of(view[0], 4, view);
    double *rows = op_buffer((size_t)r.n * 4, sizeof *rows);
    for (; !r.done; op_rows_next(&r)) {
        for (int i = 1; i < 4; i++)
            op_read(view[i]->dtype, at[i], r.first[i], r.step[i], r.n, rows + i * r.n);
        rotate(mode, r.n, rows + r.n, rows, rows + 2 * r.n, rows + 3 * r.n);
        op_write(view[0]->dtype, at[0], r.first[0], r.step[0], r.n, rows + r.n);
    }
    free(rows);
}

static void rope(const nnop_call *call)
{
    turn(call, (int)call->integer[0], 0, 1, 2, 3);
}

static void check(op *o, const nnop_view *x, const nnop_view *cosine, const nnop_view *sine)
{
    op_need(o, op_floats(x), "x of %s", op_dtype(x->dtype));
    op_need(o, x->axes == 4 && cosine->axes == 4 && sine->axes == 4, "all have four dims");
    op_same_dtype(o, x, cosine);
    op_same_dtype(o, x, sine);
    op_same_shape(o, cosine, sine);
    op_need(o, op_spreads(cosine, x) && op_dim(cosine, -1) == op_dim(x, -1),
            "cos and sin do not broadcast to x, with the same D");
    op_need(o, op_dim(x, -1) % 2 == 0 && op_dim(x, -1) <= 1024, "D is %lld: even, 1024 at most",
            (long long)op_dim(x, -1));
}

OP(RotaryPositionEmbedding, const aclTensor *x, const aclTensor *cos, const aclTensor *sin,
   int64_t mode, aclTensor *out)
{
    BEGIN(RotaryPositionEmbedding, rope);
    const nnop_view *vx = op_in(&o, x, "x"), *vc = op_in(&o, cos, "cos");
    const nnop_view *vs = op_in(&o, sin, "sin"), *vy = op_out(&o, out, "out");
    check(&o, vx, vc, vs);
    op_same_shape(&o, vx, vy);
    op_same_dtype(&o, vx, vy);
    op_need(&o, mode >= HALF && mode <= INTERLEAVE_HALF, "mode %lld", (long long)mode);
    op_need(&o, mode != QUARTER || op_dim(vx, -1) % 4 == 0, "D is no multiple of 4");
    if (o.code == 0)
        o.call->integer[0] = mode;
    return op_end(&o);
}

static void rope_both(const nnop_call *call)
{
    turn(call, HALF, 0, 2, 3, 0);
    turn(call, HALF, 1, 2, 3, 1);
}

/* layout 1: (batch, sequence, heads, D) */
OP(ApplyRotaryPosEmb, aclTensor *queryRef, aclTensor *keyRef, const aclTensor *cos,
   const aclTensor *sin, int64_t layout)
{
    BEGIN(ApplyRotaryPosEmb, rope_both);
    const nnop_view *q = op_inout(&o, queryRef, "queryRef");
    const nnop_view *k = op_inout(&o, keyRef, "keyRef");
    const nnop_view *vc = op_in(&o, cos, "cos"), *vs = op_in(&o, sin, "sin");
    op_need(&o, layout == 1, "layout %lld: only 1, BSND", (long long)layout);
    check(&o, q, vc, vs);
    check(&o, k, vc, vs);
    return op_end(&o);
}
