/* Elementwise operations: arithmetic, activation functions and gated linear units.
 *
 * in[0] a (...), in[1] b (broadcasts) of those with two operands; the result has the shape of a
 * and may take the memory of an operand of the same layout. scale: f[0] factor, f[1] what is
 * added; clamp: f[0] least, f[1] most.
 * An element has the same bits wherever it stands: the end of a row is a vector filled up. */
#include "functions.h"
#include "strided.h"

typedef void row_function(float *out, const float *a, const float *b, int64_t n, int alike,
                          const float *f);

enum { GATHERED = 256 };

/* A row whose operands lie with any strides. */
static void row_of_any(row_function *function, float *out, const char *a, int64_t stride_a,
                       const char *b, int64_t stride_b, int64_t n, const float *f)
{
    float room_a[GATHERED], room_b[GATHERED];
    for (int64_t j = 0; j < n; j += GATHERED) {
        int64_t m = n - j < GATHERED ? n - j : GATHERED;
        un_gather(room_a, a + j * stride_a, stride_a, m);
        un_gather(room_b, b + j * stride_b, stride_b, m);
        function(out + j, room_a, room_b, m, 0, f);
    }
}

static void walk(const un_task *task, row_function *function)
{
    const un_tensor *out = un_out(task), *a = un_in(task, 0), *b = un_in(task, 1);
    const float *f = task->step->f;
    if (un_lies_like(a, out) && (!b || un_lies_like(b, out))) { /* one row of all elements */
        int64_t n = un_rows(out) * out->n[3], from, to;
        un_share((n + UN_LANES - 1) / UN_LANES, task->thread, task->threads, &from, &to);
        from *= UN_LANES, to = to * UN_LANES < n ? to * UN_LANES : n;
        const float *one = (const float *)a->data + from;
        const float *two = b ? (const float *)b->data + from : NULL;
        function((float *)out->data + from, one, two, to - from, 0, f);
        return;
    }
    un_walk w = un_walk_of(task, out, a, b);
    int64_t sa = w.s[1][3], sb = b ? w.s[2][3] : 4;
    int plain = (sa == 4 || w.n[3] == 1) && (sb == 4 || sb == 0);
    un_piece p;
    while (un_walk_next(&w, &p))
        for (int64_t r = 0; r < p.rows; r++) {
            float *to = (float *)(p.at[0] + r * w.s[0][2]);
            const char *one = p.at[1] + r * w.s[1][2];
            const char *two = b ? p.at[2] + r * w.s[2][2] : one;
            if (plain)
                function(to, (const float *)one, (const float *)two, p.n, sb == 0, f);
            else
                row_of_any(function, to, one, sa, two, b ? sb : sa, p.n, f);
        }
}

#define KERNEL(NAME) \
    void UN_(NAME)(const un_task *task) { walk(task, NAME##_row); }

/* The n < UN_XL elements at the end of a row, as a row filled up with zeros. */
static void end_of_row(row_function *function, float *out, const float *a, const float *b,
                       int64_t n, int alike, const float *f)
{
    float x[UN_XL] = {0}, y[UN_XL] = {0};
    if (n == 0)
        return;
    memcpy(x, a, (size_t)n * 4);
    memcpy(y, b, alike ? 4 : (size_t)n * 4);
    function(x, x, y, UN_XL, alike, f);
    memcpy(out, x, (size_t)n * 4);
}

/* NAME_of(x, f) for each element; what it needs of f is constant in the loop. */
#define UNARY(NAME) \
    static void NAME##_row(float *out, const float *a, const float *b, int64_t n, int alike, \
                           const float *f) \
    { \
        int64_t j = 0; \
        for (; j + UN_XL <= n; j += UN_XL) \
            xf_store(out + j, NAME##_of(xf_load(a + j), f)); \
        end_of_row(NAME##_row, out + j, a + j, a + j, n - j, 0, f); \
    } \
    KERNEL(NAME)

/* NAME_of(a, b); where the values of b are alike there is one for the row. */
#define BINARY(NAME) \
    UN_INLINE void NAME##_each(float *out, const float *a, const float *b, int64_t n, \
                               const int alike) \
    { \
        xf y = alike ? xf_set1(*b) : xf_zero(); \
        for (int64_t j = 0; j + UN_XL <= n; j += UN_XL) \
            xf_store(out + j, NAME##_of(xf_load(a + j), alike ? y : xf_load(b + j))); \
    } \
    static void NAME##_row(float *out, const float *a, const float *b, int64_t n, int alike, \
                           const float *f) \
    { \
        int64_t j = n / UN_XL * UN_XL; \
        if (alike) \
            NAME##_each(out, a, b, n, 1); \
        else \
            NAME##_each(out, a, b, n, 0); \
        end_of_row(NAME##_row, out + j, a + j, b + (alike ? 0 : j), n - j, alike, f); \
    } \
    KERNEL(NAME)

UN_INLINE xf add_of(xf a, xf b) { return xf_add(a, b); }
UN_INLINE xf sub_of(xf a, xf b) { return xf_sub(a, b); }
UN_INLINE xf mul_of(xf a, xf b) { return xf_mul(a, b); }
UN_INLINE xf div_of(xf a, xf b) { return xf_div(a, b); }
BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)

UN_INLINE xf sqr_of(xf x, const float *f) { return xf_mul(x, x); }
UN_INLINE xf sqrt_of(xf x, const float *f) { return xf_sqrt(x); }
UN_INLINE xf exp_of(xf x, const float *f) { return xf_exp(x); }
UN_INLINE xf neg_of(xf x, const float *f) { return xf_sub(xf_set1(-0.0f), x); }
UN_INLINE xf tanh_of(xf x, const float *f) { return xf_tanh(x); }
UN_INLINE xf relu_of(xf x, const float *f) { return xf_max(xf_zero(), x); } /* NaN stays NaN */
UN_INLINE xf softplus_of(xf x, const float *f) { return xf_softplus(x); }
UN_INLINE xf times_sigmoid(xf x, xf y)
{
    return xf_div(x, xf_add(xf_set1(1), xf_exp(xf_neg(y))));
}
UN_INLINE xf sigmoid_of(xf x, const float *f) { return times_sigmoid(xf_set1(1), x); }
UN_INLINE xf silu_of(xf x, const float *f) { return times_sigmoid(x, x); }

/* (1 + tanh u) / 2 is sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) */
UN_INLINE xf gelu_of(xf x, const float *f)
{
    xf cubic = xf_fma(xf_mul(xf_set1(0.044715f * 1.5957691216f), x), x, xf_set1(1.5957691216f));
    return times_sigmoid(x, xf_mul(cubic, x));
}

UN_INLINE xf gelu_quick_of(xf x, const float *f)
{
    return times_sigmoid(x, xf_mul(xf_set1(1.702f), x));
}

/* relu(x) - |x| erfc(|x| / sqrt 2) / 2, erfc(z) exp(z^2) / t being a polynomial in
 * t = 1 / (1 + 0.3275911 z) (Abramowitz and Stegun 7.1.26) */
UN_INLINE xf gelu_erf_of(xf x, const float *f)
{
    xf size = xf_abs(x);
    xf t = xf_div(xf_set1(1), xf_fma(size, xf_set1(0.3275911f * 0.70710678f), xf_set1(1)));
    xf p = xf_fma(t, xf_set1(1.061405429f), xf_set1(-1.453152027f));
    p = xf_fma(p, t, xf_set1(1.421413741f));
    p = xf_fma(p, t, xf_set1(-0.284496736f));
    p = xf_fma(p, t, xf_set1(0.254829592f));
    xf erfc = xf_mul(xf_mul(t, p), xf_exp(xf_mul(xf_mul(xf_set1(-0.5f), x), x)));
    return xf_fma(xf_mul(xf_set1(-0.5f), size), erfc, relu_of(x, f));
}

UN_INLINE xf scale_of(xf x, const float *f)
{
    return xf_add(xf_mul(x, xf_set1(f[0])), xf_set1(f[1]));
}

UN_INLINE xf clamp_of(xf x, const float *f) /* NaN stays NaN */
{
    return xf_min(xf_set1(f[1]), xf_max(xf_set1(f[0]), x));
}

UNARY(sqr)
UNARY(sqrt)
UNARY(exp)
UNARY(neg)
UNARY(tanh)
UNARY(relu)
UNARY(sigmoid)
UNARY(softplus)
UNARY(silu)
UNARY(gelu)
UNARY(gelu_erf)
UNARY(gelu_quick)
UNARY(scale)
UNARY(clamp)

UN_INLINE xf reglu_of(xf gate, xf up) { return xf_mul(relu_of(gate, NULL), up); }
UN_INLINE xf swiglu_of(xf gate, xf up) { return xf_mul(silu_of(gate, NULL), up); }
UN_INLINE xf geglu_of(xf gate, xf up) { return xf_mul(gelu_of(gate, NULL), up); }
UN_INLINE xf geglu_erf_of(xf gate, xf up) { return xf_mul(gelu_erf_of(gate, NULL), up); }
UN_INLINE xf geglu_quick_of(xf gate, xf up) { return xf_mul(gelu_quick_of(gate, NULL), up); }
BINARY(reglu)
BINARY(swiglu)
BINARY(geglu)
BINARY(geglu_erf)
BINARY(geglu_quick)

void UN_(glu)(int op, float *gate, const float *up, int64_t n)
{
    switch (op) {
    case UN_OP_reglu:
        reglu_row(gate, gate, up, n, 0, NULL);
        break;
    case UN_OP_swiglu:
        swiglu_row(gate, gate, up, n, 0, NULL);
        break;
    case UN_OP_geglu:
        geglu_row(gate, gate, up, n, 0, NULL);
        break;
    case UN_OP_geglu_erf:
        geglu_erf_row(gate, gate, up, n, 0, NULL);
        break;
    default:
        geglu_quick_row(gate, gate, up, n, 0, NULL);
    }
}
