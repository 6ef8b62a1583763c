/* Activations as 16-bit integers or as floats, and the product of any packed weight with
 * floats. */
#ifndef UN_FLOATS_H
#define UN_FLOATS_H

#include "simd.h"

/* Quantised to 16 bits, weights and activations have these largest sizes, so that the sum of a
 * block of 32 products stays in int32. */
enum { UN_MOST_W16 = 8191, UN_MOST_X16 = 8191 };
_Static_assert(32LL * UN_MOST_W16 * (UN_MOST_X16 + 1) <= INT32_MAX, "a block leaves int32");

/* To the nearest whole number, of |x| < 2^22: the sum with 1.5 * 2^23 rounds. Without a branch
 * on a value, as all here, so that compilers make vectors of it. */
static inline int32_t un_nearest(float x)
{
    return (int32_t)(un_bits_of(x + 12582912.0f) - 0x4b400000);
}

/* 32 floats as d * q, |q| <= most; returns 1 / d. Of a block that holds an infinity or a NaN d
 * is NaN; one of the smallest numbers only counts as zeros. */
static inline float un_quantise16(const float *x, int most, int16_t *q, float *d)
{
    uint32_t largest = 0;
    for (int k = 0; k < 32; k++) {
        uint32_t size = un_bits_of(x[k]) & 0x7fffffff;
        largest = size > largest ? size : largest;
    }
    float size = un_bits(largest);
    int usual = size > 1e-33f && largest < 0x7f800000;
    float inverse = usual ? (float)most / size : 0;
    for (int k = 0; k < 32; k++)
        q[k] = usual ? (int16_t)un_nearest(x[k] * inverse) : 0;
    *d = usual ? size / (float)most : largest < 0x7f800000 ? 0 : NAN;
    return inverse;
}

/* A block of activations: q[0 .. 31] times d and, where it is `rough`, q[32 .. 63] times `rest`
 * (else 0): what rounding left. Rough is a block in which rounding took more than a part in
 * 2048 of what is there, since one value is much larger than the others. */
static inline void un_quantise_block16(const float *x, int16_t *q, float *d, float *rest)
{
    const float fine = 2.0f * UN_MOST_X16;
    float inverse = un_quantise16(x, UN_MOST_X16, q, d);
    int32_t sum = 0, left = 0;
    if (!inverse)
        memset(q, 0, 128);
    for (int k = 0; k < 32 && inverse; k++) {
        int32_t r = un_nearest((x[k] * inverse - (float)q[k]) * fine);
        q[32 + k] = (int16_t)r;
        sum += q[k] < 0 ? -q[k] : q[k];
        left += r < 0 ? -r : r;
    }
    *rest = (float)left * 2048.0f > (float)sum * fine ? *d / fine : 0;
}

/* A row of n floats for UN_ACT_I16, filled up with zeros. */
static inline void un_quantise_i16(const float *x, int64_t n, int16_t *q, float *d, float *rest)
{
    float last[32] = {0};
    int64_t b = 0;
    for (; 32 * b + 32 <= n; b++)
        un_quantise_block16(x + 32 * b, q + 64 * b, d + b, rest + b);
    if (32 * b < n) {
        memcpy(last, x + 32 * b, (size_t)(n - 32 * b) * 4);
        un_quantise_block16(last, q + 64 * b, d + b, rest + b);
    }
}

/* A row of n floats for UN_ACT_F32: a copy, filled up with zeros. */
static inline void un_copy_f32(const float *x, int64_t n, float *q)
{
    memcpy(q, x, (size_t)n * 4);
    memset(q + n, 0, (size_t)(-n & 31) * 4);
}

/* What `format->dot` does, for activations that are floats: acc = w x + acc over k in order. */
void UN_(dot_floats)(const un_format *format, const un_dot *dot);

#endif
