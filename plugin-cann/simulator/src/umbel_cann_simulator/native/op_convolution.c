/* Convolution of one axis (NCL) or two (NCHW), in groups, not transposed. */
#include <stdlib.h>
#include <string.h>

#include "op_product.h"

/* Of one axis. */
typedef struct {
    int64_t in, kernel, out, stride, padding, dilation;
} extent;

/* The positions of the kernel that lie inside, for one result. */
static float at(const float *x, const float *w, const extent *h, const extent *v, int64_t row,
                int64_t column)
{
    float sum = 0;
    for (int64_t i = 0; i < h->kernel; i++) {
        int64_t y = row * h->stride - h->padding + i * h->dilation;
        if (y < 0 || y >= h->in)
            continue;
        for (int64_t j = 0; j < v->kernel; j++) {
            int64_t z = column * v->stride - v->padding + j * v->dilation;
            if (z >= 0 && z < v->in)
                sum += x[y * v->in + z] * w[i * v->kernel + j];
        }
    }
    return sum;
}

/* All of one output channel of one image. */
static void channel(const float *x, const float *w, int64_t inputs, const extent *h,
                    const extent *v, float bias, float *out)
{
    for (int64_t r = 0; r < h->out; r++)
        for (int64_t c = 0; c < v->out; c++) {
            float sum = 0;
            for (int64_t i = 0; i < inputs; i++)
                sum += at(x + i * h->in * v->in, w + i * h->kernel * v->kernel, h, v, r, c);
            out[r * v->out + c] = sum + bias;
        }
}

/* array[16 * i ...]: the extent of axis i; integer[1]: groups */
static void convolve(const nnop_call *call)
{
    const nnop_view *x = &call->slot[0].view, *w = &call->slot[1].view;
    const nnop_view *y = &call->slot[3].view;
    extent h, v;
    memcpy(&h, call->array + 192, sizeof h);
    memcpy(&v, call->array + 208, sizeof v);
    int64_t groups = call->integer[1], each = w->shape[1], outputs = w->shape[0];
    int64_t image = h.in * v.in, result = h.out * v.out, kernel = h.kernel * v.kernel;
    bool biased = call->slot[2].handle != NULL;
    float *from = op_load_f32(call, 0), *by = op_load_f32(call, 1);
    float *bias = biased ? op_load_f32(call, 2) : NULL;
    float *to = op_buffer((size_t)nnop_elements(y), sizeof *to);
    if (from != NULL && by != NULL && (bias != NULL || !biased)) {
        op_round(from, nnop_elements(x), op_cube(call, x->dtype));
        op_round(by, nnop_elements(w), op_cube(call, w->dtype));
        for (int64_t n = 0; n < x->shape[0]; n++)
            for (int64_t o = 0; o < outputs; o++) {
                int64_t first = n * x->shape[1] + o / (outputs / groups) * each;
                channel(from + first * image, by + o * each * kernel, each, &h, &v,
                        biased ? bias[o] : 0, to + (n * outputs + o) * result);
            }
        op_store_f32(call, 3, to);
    }
    free(from);
    free(by);
    free(bias);
    free(to);
}

/* Keeps what one axis needs, in the call's array at `at`. */
static void axis(op *o, int64_t in, int64_t kernel, int64_t out, int64_t stride,
                 int64_t padding, int64_t dilation, int place)
{
    extent e = {in, kernel, out, stride, padding, dilation};
    op_need(o, stride > 0 && dilation > 0 && padding >= 0, "stride, dilation or padding");
    if (o->code != 0)
        return;
    int64_t due = (in + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
    op_need(o, out == due, "output has %lld, not %lld", (long long)out, (long long)due);
    memcpy(o->call->array + place, &e, sizeof e);
}

static void check(op *o, const nnop_view *x, const nnop_view *w, const nnop_view *b,
                  const nnop_view *y, int64_t groups)
{
    aclFormat format = x->axes == 3 ? ACL_FORMAT_NCL : ACL_FORMAT_NCHW;
    op_need(o, (x->axes == 3 || x->axes == 4) && w->axes == x->axes && y->axes == x->axes,
            "input, weight and output have three dims each, or four");
    op_need(o, x->format == format && w->format == format && y->format == format,
            "formats %d, %d, %d, not %d", x->format, w->format, y->format, format);
    op_need(o, op_floats(x), "an input of %s", op_dtype(x->dtype));
    op_same_dtype(o, x, w);
    op_same_dtype(o, x, y);
    op_need(o,
            groups > 0 && op_dim(x, 1) == op_dim(w, 1) * groups && op_dim(w, 0) % groups == 0,
            "%lld groups of %lld channels with %lld in the weight", (long long)groups,
            (long long)op_dim(x, 1), (long long)op_dim(w, 1));
    op_need(o, op_dim(y, 0) == op_dim(x, 0) && op_dim(y, 1) == op_dim(w, 0),
            "output is not (N, channels, ...)");
    op_need(o, b == NULL || nnop_elements(b) == op_dim(w, 0),
            "bias has not one for each channel");
}

OP(Convolution, const aclTensor *input, const aclTensor *weight, const aclTensor *bias,
   const aclIntArray *stride, const aclIntArray *padding, const aclIntArray *dilation,
   bool transposed, const aclIntArray *outputPadding, const int64_t groups, aclTensor *output,
   int8_t cubeMathType)
{
    BEGIN(Convolution, convolve);
    const nnop_view *x = op_in(&o, input, "input"), *w = op_in(&o, weight, "weight");
    const nnop_view *b = op_maybe(&o, bias, false, "bias");
    const nnop_view *y = op_out(&o, output, "output");
    int n = x->axes - 2, given = 0;
    if (outputPadding != NULL)
        op_ints(&o, outputPadding, 0, "outputPadding");
    given += op_ints(&o, stride, 0, "stride") + op_ints(&o, padding, 2, "padding");
    given += op_ints(&o, dilation, 4, "dilation");
    check(&o, x, w, b, y, groups);
    op_cube_math(&o, cubeMathType);
    op_need(&o, !transposed, "the simulator has no transposed convolution");
    op_need(&o, given == 3 * n, "stride, padding and dilation have not %d values each", n);
    if (o.code == 0) {
        const int64_t *a = o.call->array;
        int64_t s = a[0], p = a[2], d = a[4], t = a[n - 1], q = a[2 + n - 1], e = a[4 + n - 1];
        if (n == 1)
            axis(&o, 1, 1, 1, 1, 0, 1, 192);
        else
            axis(&o, op_dim(x, 2), op_dim(w, 2), op_dim(y, 2), s, p, d, 192);
        axis(&o, op_dim(x, -1), op_dim(w, -1), op_dim(y, -1), t, q, e, 208);
    }
    if (o.code == 0) {
        o.call->integer[1] = groups;
        o.call->flops = 2.0 * (double)nnop_elements(y) * (double)nnop_elements(w) /
                        (double)op_dim(w, 0);
    }
    op_workspace(&o, op_dim(y, 1));
    return op_end(&o);
}
