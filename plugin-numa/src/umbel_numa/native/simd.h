/* Vectors of UN_XL lanes, the same names for every instruction set.
 *
 * xf: floats, xi: int32, xb: 4 bytes for each lane (the weights of 4 neighbours in k), xh: 2
 * int16 for each lane. Kernels whose lanes are rows give the same bits on every instruction
 * set; sums over lanes are made of 16 partial sums (un_sum16) for the same reason. What
 * xi_round makes of NaN, and of what int32 does not hold, differs: no result may depend on
 * it. */
#ifndef UN_SIMD_H
#define UN_SIMD_H

#include <math.h>
#include <string.h>

#include "un.h"

static inline float un_half(uint16_t h);      /* float16 to float */
static inline uint16_t un_to_half(float x);   /* to the nearest, ties to even */

#if defined(UN_AVX512)
#include "simd_avx512.h"
#elif defined(UN_AVX2)
#include "simd_avx2.h"
#elif defined(UN_NEON)
#include "simd_neon.h"
#else
#include "simd_scalar.h"
#endif

enum { UN_PARTS = UN_LANES / UN_XL }; /* vectors that a group of 16 lanes fills */

/* A loop of at most 16, whose vectors are to stay in registers. In plain C they are none. */
#if defined(UN_AVX512) || defined(UN_AVX2) || defined(UN_NEON)
#define UN_UNROLL _Pragma("GCC unroll 16")
#else
#define UN_UNROLL
#endif

static inline float un_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline uint32_t un_bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float un_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00)
        return un_bits(sign | 0x7f800000u | (rest & 0x3ff) << 13);
    if (rest >= 0x400)
        return un_bits(sign | ((rest << 13) + (112u << 23)));
    float tiny = (float)rest * 5.9604644775390625e-8f; /* 2^-24: exact */
    return un_bits(sign | un_bits_of(tiny));
}

static inline uint16_t un_to_half(float x)
{
    uint32_t u = un_bits_of(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) /* below the normal numbers: units of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(un_bits(a) * 16777216.0f));
    return (uint16_t)(sign | ((a + 0xfff + (a >> 13 & 1)) - (112u << 23)) >> 13);
}

static inline float un_bf16(uint16_t h) { return un_bits((uint32_t)h << 16); }

static inline uint16_t un_to_bf16(float x) /* to the nearest, ties to even */
{
    uint32_t u = un_bits_of(x), nan = (u & 0x7fffffff) > 0x7f800000u;
    return (uint16_t)(nan ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Loads and stores of n < UN_XL values; what is not there is zero. */
static inline xf xf_load_n(const float *p, int64_t n)
{
    float t[UN_XL] = {0};
    memcpy(t, p, (size_t)n * 4);
    return xf_load(t);
}

static inline void xf_store_n(float *p, xf v, int64_t n)
{
    float t[UN_XL];
    xf_store(t, v);
    memcpy(p, t, (size_t)n * 4);
}

/* Exact: only signs change. */
static inline xf xf_neg(xf x) { return xf_sub(xf_set1(-0.0f), x); }

/* exp(x) - 1 = 2^n q + (2^n - 1) with n = round(x / ln 2) and q = exp(x - n ln 2) - 1, which
 * is a polynomial (fitted for the least largest error, 3e-9). Of NaN, q is NaN; where exp
 * leaves float32 it may be anything. */
static inline xf xf_exp_parts(xf x, xi *n)
{
    *n = xi_round(xf_mul(x, xf_set1(1.44269504f)));
    xf fn = xf_of_xi(*n);
    xf r = xf_fma(fn, xf_set1(-0.693359375f), x); /* ln 2 in two parts */
    r = xf_fma(fn, xf_set1(2.12194440e-4f), r);
    xf p = xf_set1(1.38145901e-3f);
    p = xf_fma(p, r, xf_set1(8.36871727e-3f));
    p = xf_fma(p, r, xf_set1(4.16683882e-2f));
    p = xf_fma(p, r, xf_set1(0.166665206f));
    p = xf_fma(p, r, xf_set1(0.499999934f));
    return xf_fma(xf_mul(r, r), p, r);
}

/* exp to about 1 ulp; 0 below -87.3, where it would not be a normal number; infinity above
 * 88.7. */
static inline xf xf_exp(xf x)
{
    xi n;
    xf q = xf_exp_parts(x, &n);
    xf p = xf_pow2(xf_add(q, xf_set1(1)), n);
    return xf_or_inf(xf_keep_ge(p, x, -87.33654f), x, 88.72283f);
}

/* e / (2 + e) of |x|, with e = exp(-2 |x|) - 1, and the sign of x: accurate near 0, too. */
static inline xf xf_tanh(xf x)
{
    xi n;
    xf y = xf_max(xf_set1(-87), xf_mul(xf_set1(-2), xf_abs(x))); /* of NaN NaN */
    xf q = xf_exp_parts(y, &n);
    xf two = xf_pow2(xf_set1(1), n);
    xf e = xf_fma(q, two, xf_sub(two, xf_set1(1)));
    return xf_copysign(xf_div(e, xf_add(xf_set1(2), e)), x);
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + e), e = exp(-|x|), as log((1 + s) / (1 - s)) with
 * s = e / (2 + e) <= 1/3: s times a polynomial in s^2 (fitted, 4e-9). */
static inline xf xf_softplus(xf x)
{
    xf e = xf_exp(xf_neg(xf_abs(x)));
    xf s = xf_div(e, xf_add(xf_set1(2), e)), z = xf_mul(s, s);
    xf p = xf_fma(xf_set1(0.28178334f), z, xf_set1(0.27960603f));
    p = xf_fma(p, z, xf_set1(0.4002491f));
    p = xf_fma(p, z, xf_set1(0.66666315f));
    p = xf_fma(p, z, xf_set1(2));
    return xf_fma(p, s, xf_max(xf_zero(), x));
}

#ifndef UN_TRANSPOSES
/* Lane i of vector j becomes lane j of vector i. */
static inline void xf_transpose(xf *v)
{
    float a[UN_XL][UN_XL], b[UN_XL][UN_XL];
    for (int j = 0; j < UN_XL; j++)
        xf_store(a[j], v[j]);
    for (int j = 0; j < UN_XL; j++)
        for (int i = 0; i < UN_XL; i++)
            b[i][j] = a[j][i];
    for (int i = 0; i < UN_XL; i++)
        v[i] = xf_load(b[i]);
}
#endif

/* The sum of 16 partial sums in one order: i and i + 8, then 4, 2, 1 apart. */
static inline float un_sum16(const float *v)
{
    float a[8];
    for (int i = 0; i < 8; i++)
        a[i] = v[i] + v[i + 8];
    for (int i = 0; i < 4; i++)
        a[i] += a[i + 4];
    return (a[0] + a[2]) + (a[1] + a[3]);
}

/* Of 16 partial sums in vectors those that one vector holds, as un_sum16 begins. */
static inline xf xf_fold(const xf *parts)
{
    if (UN_PARTS == 4)
        return xf_add(xf_add(parts[0], parts[2 % UN_PARTS]),
                      xf_add(parts[1 % UN_PARTS], parts[3 % UN_PARTS]));
    return UN_PARTS == 2 ? xf_add(parts[0], parts[1 % UN_PARTS]) : parts[0];
}

#ifndef UN_OWN_SUMS
/* Of each of UN_XL vectors the sum of its lanes, in the order of un_sum16. */
static inline xf xf_sums(const xf *v)
{
    float sums[UN_XL];
    for (int i = 0; i < UN_XL; i++) {
        float lanes[UN_XL];
        xf_store(lanes, v[i]);
        for (int n = UN_XL / 2; n; n /= 2)
            for (int k = 0; k < n; k++)
                lanes[k] += lanes[k + n];
        sums[i] = lanes[0];
    }
    return xf_load(sums);
}
#endif

/* Sum over k of a[k] b[k] in 16 partial sums, so that its order depends on n alone. */
static inline float un_dot_f32(const float *a, const float *b, int64_t n)
{
    float part[UN_LANES];
    xf acc[UN_PARTS];
    int64_t k = 0;
    for (int p = 0; p < UN_PARTS; p++)
        acc[p] = xf_zero();
    for (; k + UN_LANES <= n; k += UN_LANES)
        for (int p = 0; p < UN_PARTS; p++)
            acc[p] = xf_fma(xf_load(a + k + p * UN_XL), xf_load(b + k + p * UN_XL), acc[p]);
    for (int p = 0; p < UN_PARTS; p++)
        xf_store(part + p * UN_XL, acc[p]);
    for (int64_t i = 0; k + i < n; i++)
        part[i] = fmaf(a[k + i], b[k + i], part[i]);
    return un_sum16(part);
}

#endif
