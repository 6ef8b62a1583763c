/* Elementwise operators: one line each. Values are computed in double, which holds all that the
   dtypes of devices hold exactly (int64 up to 2^53), and rounded once, to `out`'s dtype. */
#include <stdlib.h>

#include "op.h"

void op_run_elementwise(const nnop_call *call)
{
    int out = call->slots - 1, inputs = call->integer[1] != 0 ? 2 : 1;
    const nnop_view *view[3] = {&call->slot[out].view, &call->slot[0].view,
                                &call->slot[inputs - 1].view};
    if (call->integer[2] != 0) { /* in place of the first input */
        out = 0;
        view[0] = view[1];
    }
    void *to = op_at(call, out);
    const void *x = op_at(call, 0), *y = op_at(call, inputs - 1);
    if (to == NULL || x == NULL || y == NULL)
        return;
    op_rows r = op_rows_of(view[0], 3, view);
    double *a = op_buffer((size_t)r.n * 2, sizeof *a), *b = a + r.n;
    for (; !r.done; op_rows_next(&r)) {
        op_read(view[1]->dtype, x, r.first[1], r.step[1], r.n, a);
        if (inputs == 2)
            op_read(view[2]->dtype, y, r.first[2], r.step[2], r.n, b);
        for (int64_t i = 0; i < r.n; i++)
            a[i] = call->calc(a[i], inputs == 2 ? b[i] : 0, call->number);
        op_write(view[0]->dtype, to, r.first[0], r.step[0], r.n, a);
    }
    free(a);
}

static aclnnStatus finish(op *o, op_kind kind, const nnop_view *x, const nnop_view *y,
                          const nnop_view *out, op_calc *calc)
{
    op_need(o, op_spreads(x, out) && op_spreads(y, out),
            "the inputs do not broadcast to the output's shape");
    for (int i = 0; i < out->axes; i++)
        op_need(o, out->shape[i] == 1 || op_dim(x, i - out->axes) == out->shape[i] ||
                       op_dim(y, i - out->axes) == out->shape[i],
                "dim %d of the output is larger than that of both inputs", i);
    if (o->code == 0) {
        o->call->calc = calc;
        o->call->integer[1] = kind == OP_TWO || kind == OP_TEST;
    }
    return op_end(o);
}

aclnnStatus op_elementwise(op *o, op_kind kind, const aclTensor *x, const aclTensor *y,
                           const aclTensor *out, op_calc *calc)
{
    bool test = kind == OP_TEST || kind == OP_TEST_ONE;
    const nnop_view *a = op_in(o, x, "self");
    const nnop_view *b = kind == OP_TWO || kind == OP_TEST ? op_in(o, y, "other") : a;
    const nnop_view *c = test ? op_side(o, out, true, "out") : op_out(o, out, "out");
    return finish(o, kind, a, b, c, calc);
}

aclnnStatus op_elementwise_inplace(op *o, op_kind kind, const aclTensor *x, const aclTensor *y,
                                   op_calc *calc)
{
    const nnop_view *a = op_inout(o, x, "selfRef");
    const nnop_view *b = kind == OP_TWO ? op_in(o, y, "other") : a;
    if (o->code == 0)
        o->call->integer[2] = 1;
    return finish(o, kind, a, b, a, calc);
}
