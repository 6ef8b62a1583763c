/* Mm, BatchMatMul, Matmul, Addmm, Baddbmm, Mv. */
#include <stdlib.h>
#include <string.h>

#include "op_product.h"

/* One matrix of a batch. */
typedef struct {
    aclDataType dtype;
    void *base;
    int64_t first, row, column, rows, columns; /* strides in elements, and the shape */
    bool nz, transposed;                       /* of FRACTAL_NZ: as it was before */
    op_precision precision;
} matrix;

/* Where results go: out = alpha * product + beta * added. */
typedef struct {
    matrix out, added;
    double alpha, beta;
} sink;

/* Values in a row of a block: a tile of columns is one block's. */
enum { NZ_RUN = OP_TILE };

/* Of a matrix in FRACTAL_NZ, whose pieces in one row of a block lie together. */
static void nz_columns(const matrix *b, int64_t first, int64_t count, float *to)
{
    int64_t k = op_padded(b->rows), rows = b->transposed ? b->columns : b->rows;
    float run[NZ_RUN];
    for (int64_t n = 0; b->transposed && n < count; n++)
        for (int64_t i = 0; i < b->rows; i += NZ_RUN)
            op_read_f32(b->dtype, b->base, op_nz(b->dtype, rows, first + n, i), 1,
                        b->rows - i < NZ_RUN ? b->rows - i : NZ_RUN, to + n * k + i);
    for (int64_t i = 0; !b->transposed && i < b->rows; i++) {
        op_read_f32(b->dtype, b->base, op_nz(b->dtype, rows, i, first), 1, count, run);
        for (int64_t n = 0; n < count; n++)
            to[n * k + i] = run[n];
    }
}

static void columns(const void *source, int64_t first, int64_t count, float *to)
{
    const matrix *b = source;
    int64_t k = op_padded(b->rows);
    float run[OP_TILE];
    if (b->nz)
        nz_columns(b, first, count, to);
    else if (b->row == 1)
        for (int64_t n = 0; n < count; n++)
            op_read_f32(b->dtype, b->base, b->first + (first + n) * b->column, 1, b->rows,
                        to + n * k);
    else
        for (int64_t i = 0; i < b->rows; i++) {
            op_read_f32(b->dtype, b->base, b->first + i * b->row + first * b->column, b->column,
                        count, run);
            for (int64_t n = 0; n < count; n++)
                to[n * k + i] = run[n];
        }
    op_round(to, k * count, b->precision);
}

static void take(const void *to, int64_t row, int64_t first, int64_t count, float *values)
{
    const sink *s = to;
    const matrix *out = &s->out, *added = &s->added;
    float more[OP_TILE];
    if (added->base != NULL) {
        op_read_f32(added->dtype, added->base,
                    added->first + row * added->row + first * added->column, added->column,
                    count, more);
        for (int64_t i = 0; i < count; i++)
            values[i] = (float)(s->alpha * values[i] + s->beta * more[i]);
    }
    op_write_f32(out->dtype, out->base, out->first + row * out->row + first * out->column,
                 out->column, count, values);
}

static void multiply(const matrix *a, const matrix *b, const sink *s)
{
    int64_t k = op_padded(a->columns);
    float *rows = calloc((size_t)(a->rows * k) + OP_LANES, sizeof *rows);
    if (rows == NULL)
        abort();
    for (int64_t i = 0; i < a->rows; i++)
        op_read_f32(a->dtype, a->base, a->first + i * a->row, a->column, a->columns,
                    rows + i * k);
    op_round(rows, a->rows * k, a->precision);
    op_multiply(&(op_product){a->rows, b->columns, a->columns, rows, columns, b, take, s});
    free(rows);
}

/* A view as matrices, vectors too; `axis` is where a vector's missing axis would be. */
static nnop_view matrices(nnop_view view, int axis)
{
    if (view.axes == 1) {
        int kept = 1 - axis;
        view.shape[kept] = view.shape[0];
        view.strides[kept] = view.strides[0];
        view.shape[axis] = 1;
        view.strides[axis] = 0;
        view.axes = 2;
    }
    return view;
}

static matrix matrix_of(const nnop_view *view, void *base)
{
    int last = view->axes - 1;
    matrix m = {view->dtype, base, 0, view->strides[last - 1], view->strides[last],
                view->shape[last - 1], view->shape[last], false, false, OP_WHOLE};
    m.nz = view->format == ACL_FORMAT_FRACTAL_NZ;
    m.transposed = m.nz && m.row == 1 && m.column != 1;
    return m;
}

/* How far the `batch`th matrix of `out`'s lies from the first one of `view`. */
static int64_t batch_offset(const nnop_view *out, const nnop_view *view, int64_t batch)
{
    int64_t offset = 0;
    for (int i = 3; i <= out->axes; i++) {
        int64_t index = batch % op_dim(out, -i);
        batch /= op_dim(out, -i);
        if (i <= view->axes && op_dim(view, -i) != 1)
            offset += index * view->strides[view->axes - i];
    }
    return offset;
}

/* FRACTAL_NZ reaches further than the view says. */
static void *weight_at(const nnop_call *call, int slot)
{
    const nnop_view *view = &call->slot[slot].view;
    if (view->format != ACL_FORMAT_FRACTAL_NZ)
        return op_at(call, slot);
    bool swapped = view->strides[0] == 1 && view->strides[1] != 1;
    int64_t n = op_nz_elements(view->dtype, view->shape[swapped], view->shape[!swapped]);
    void *at = sim_at(view->data, nnop_size(view->dtype, n));
    if (at == NULL)
        sim_task_fault(507015, "aclnn%s: its weight is not in device memory", call->name);
    return at;
}

/* integer[1]: the slot of what is added, or -1; integer[2, 3, 4]: those of a, b and out;
   integer[5]: the axis that out lacks, or -1. */
static void run(const nnop_call *call)
{
    int added = (int)call->integer[1], left = (int)call->integer[2];
    int right = (int)call->integer[3], to = (int)call->integer[4];
    nnop_view a = matrices(call->slot[left].view, 0), b = matrices(call->slot[right].view, 1);
    nnop_view out = call->slot[to].view;
    nnop_view more = added >= 0 ? call->slot[added].view : out;
    if (call->integer[5] >= 0)
        out = matrices(out, (int)call->integer[5]);
    void *pa = op_at(call, left), *pb = weight_at(call, right), *po = op_at(call, to);
    void *pm = added >= 0 ? op_at(call, added) : NULL;
    if (pa == NULL || pb == NULL || po == NULL || (added >= 0 && pm == NULL))
        return;
    int64_t count = 1;
    for (int i = 3; i <= out.axes; i++)
        count *= op_dim(&out, -i);
    for (int64_t i = 0; i < count; i++) {
        matrix ma = matrix_of(&a, pa), mb = matrix_of(&b, pb);
        sink s = {matrix_of(&out, po), {0}, call->number[0], call->number[1]};
        ma.first = batch_offset(&out, &a, i);
        mb.first = batch_offset(&out, &b, i);
        s.out.first = batch_offset(&out, &out, i);
        ma.precision = mb.precision = op_cube(call, a.dtype);
        if (pm != NULL) {
            nnop_view two = matrices(more, 0); /* a row is the same for all */
            s.added = matrix_of(&two, pm);
            s.added.first = batch_offset(&out, &more, i);
            s.added.row = s.added.rows == 1 ? 0 : s.added.row;
            s.added.column = s.added.columns == 1 ? 0 : s.added.column;
        }
        multiply(&ma, &mb, &s);
    }
}

/* What all of them check. `lacks`: the axis that a vector's product has not. */
static aclnnStatus product(op *o, const nnop_view *left, const nnop_view *right,
                           const nnop_view *out, int slots, int lacks, int8_t type)
{
    nnop_view a = matrices(*left, 0), b = matrices(*right, 1), c = *out;
    if (lacks >= 0)
        c = matrices(c, lacks);
    op_cube_math(o, type);
    op_need(o, op_floats(left), "products of %s", op_dtype(left->dtype));
    op_same_dtype(o, left, right);
    op_need(o, op_dim(&a, -1) == op_dim(&b, -2), "K is %lld on the left and %lld on the right",
            (long long)op_dim(&a, -1), (long long)op_dim(&b, -2));
    op_need(o, op_dim(&c, -2) == op_dim(&a, -2) && op_dim(&c, -1) == op_dim(&b, -1),
            "out is no (%lld, %lld)", (long long)op_dim(&a, -2), (long long)op_dim(&b, -1));
    op_need(o, op_contiguous(out), "out is not contiguous");
    for (int i = 3; i <= c.axes && o->code == 0; i++)
        op_need(o, (op_dim(&a, -i) == op_dim(&c, -i) || op_dim(&a, -i) <= 1) &&
                       (op_dim(&b, -i) == op_dim(&c, -i) || op_dim(&b, -i) <= 1),
                "the batches do not broadcast to out's");
    op_need(o, a.axes <= c.axes && b.axes <= c.axes, "out has too few dims");
    op_need(o, right->format != ACL_FORMAT_FRACTAL_NZ ||
                   (right->axes == 2 && right->offset == 0 && nnop_size(right->dtype, 1) == 2),
            "FRACTAL_NZ that is no whole matrix of float16 or bf16");
    op_need(o, left->format != ACL_FORMAT_FRACTAL_NZ && out->format != ACL_FORMAT_FRACTAL_NZ,
            "FRACTAL_NZ elsewhere than in mat2");
    if (o->code == 0) {
        int64_t *integer = o->call->integer;
        integer[1] = slots == 4 ? 0 : -1;
        integer[2] = slots - 3;
        integer[3] = slots - 2;
        integer[4] = slots - 1;
        integer[5] = lacks;
        o->call->flops = 2.0 * (double)nnop_elements(&c) * (double)op_dim(&a, -1);
    }
    op_workspace(o, op_dim(&c, -2));
    return op_end(o);
}

OP(Mm, const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType)
{
    BEGIN(Mm, run);
    const nnop_view *a = op_in(&o, self, "self"), *b = op_in(&o, mat2, "mat2");
    const nnop_view *c = op_out(&o, out, "out");
    op_need(&o, a->axes == 2 && b->axes == 2 && c->axes == 2, "Mm is for two dims");
    return product(&o, a, b, c, 3, -1, cubeMathType);
}

OP(BatchMatMul, const aclTensor *self, const aclTensor *mat2, aclTensor *out,
   int8_t cubeMathType)
{
    BEGIN(BatchMatMul, run);
    const nnop_view *a = op_in(&o, self, "self"), *b = op_in(&o, mat2, "mat2");
    const nnop_view *c = op_out(&o, out, "out");
    op_need(&o, a->axes == 3 && b->axes == 3 && c->axes == 3, "BatchMatMul is for three dims");
    return product(&o, a, b, c, 3, -1, cubeMathType);
}

OP(Matmul, const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType)
{
    BEGIN(Matmul, run);
    const nnop_view *a = op_in(&o, self, "self"), *b = op_in(&o, mat2, "mat2");
    const nnop_view *c = op_out(&o, out, "out");
    op_need(&o, a->axes >= 1 && b->axes >= 1 && c->axes >= 1, "a product of scalars");
    op_need(&o, (a->axes > 1 && b->axes > 1) || (a->axes <= 2 && b->axes <= 2),
            "a vector and more than a matrix");
    int lacks = a->axes == 1 ? 0 : b->axes == 1 ? 1 : -1;
    op_need(&o, lacks < 0 || c->axes == 1, "out of a vector's product has one dim");
    return product(&o, a, b, c, 3, lacks, cubeMathType);
}

OP(Mv, const aclTensor *self, const aclTensor *vec, aclTensor *out, int8_t cubeMathType)
{
    BEGIN(Mv, run);
    const nnop_view *a = op_in(&o, self, "self"), *b = op_in(&o, vec, "vec");
    const nnop_view *c = op_out(&o, out, "out");
    op_need(&o, a->axes == 2 && b->axes == 1 && c->axes == 1, "Mv is a matrix and a vector");
    return product(&o, a, b, c, 3, 1, cubeMathType);
}

static aclnnStatus added(op *o, int axes, const aclTensor *self, const aclTensor *left,
                         const aclTensor *right, const aclScalar *beta, const aclScalar *alpha,
                         const aclTensor *out, int8_t type)
{
    const nnop_view *more = op_in(o, self, "self");
    const nnop_view *a = op_in(o, left, "mat1"), *b = op_in(o, right, "mat2");
    const nnop_view *c = op_out(o, out, "out");
    double by[] = {op_scalar(o, alpha, "alpha"), op_scalar(o, beta, "beta")};
    op_need(o, a->axes == axes && b->axes == axes && c->axes == axes, "%s is for %d dims",
            o->name, axes);
    op_need(o, op_spreads(more, c), "self does not broadcast to out");
    if (o->code == 0)
        memcpy(o->call->number, by, sizeof by);
    return product(o, a, b, c, 4, -1, type);
}

OP(Addmm, const aclTensor *self, const aclTensor *mat1, const aclTensor *mat2,
   const aclScalar *beta, const aclScalar *alpha, aclTensor *out, int8_t cubeMathType)
{
    BEGIN(Addmm, run);
    return added(&o, 2, self, mat1, mat2, beta, alpha, out, cubeMathType);
}

OP(Baddbmm, const aclTensor *self, const aclTensor *batch1, const aclTensor *batch2,
   const aclScalar *beta, const aclScalar *alpha, aclTensor *out, int8_t cubeMathType)
{
    BEGIN(Baddbmm, run);
    return added(&o, 3, self, batch1, batch2, beta, alpha, out, cubeMathType);
}
