/* The product of a group of 16 packed rows with a tile of tokens, written once for all types of
 * weights. A lane is a row, so that a sum has one order whatever the tile and the instruction set:
 * for each block of 32 in turn, the products are added exactly as integers, then
 *     acc = acc + (float(sum) * d) * dx      and, of types with minima,      acc = acc + m * sx
 * are each one rounding for the product with the scale and one for the sum.
 *
 * A type says, for block b of a group and the vector `part` of its lanes:
 *     xb NAME_vec(group, blocks, b, part, j)    the weights k = 4 j .. 4 j + 3, j < 8
 *     void NAME_scales(group, blocks, b, part, &d, &m)
 * with `blocks` of 32 in the row. */
#ifndef UN_BLOCKS_H
#define UN_BLOCKS_H

#include "simd.h"

#define UN_INLINE static inline __attribute__((always_inline))

/* DOT: xi_dot or xi_dot8; ZERO: what stands for 0 in the packed weights, MIN: 1 with minima */
#define UN_DOT_TILE(NAME, DOT, ZERO, MIN) \
    UN_INLINE void NAME##_tile(const un_dot *d, int first, const int T) \
    { \
        const int64_t blocks = d->x.blocks; \
        const int8_t *q = (const int8_t *)d->x.q + first * d->x.n; \
        const float *dx = d->x.d + first * blocks, *sx = d->x.s + first * blocks; \
        const int32_t *sum = d->x.sum + first * blocks; \
        for (int part = 0; part < UN_PARTS; part++) { \
            float *out = d->acc + first * UN_LANES + part * UN_XL; \
            xf acc[UN_TILE]; \
            for (int t = 0; t < T; t++) \
                acc[t] = d->more ? xf_load(out + t * UN_LANES) : xf_zero(); \
            for (int64_t b = d->from; b < d->to; b++) { \
                xi s[UN_TILE]; \
                xf scale, least; \
                for (int t = 0; t < T; t++) \
                    s[t] = (ZERO) ? xi_set1(-(ZERO) * sum[t * blocks + b]) : xi_zero(); \
                _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) { \
                    xb w = NAME##_vec(d->group, blocks, b, part, j); \
                    _Pragma("GCC unroll 16") for (int t = 0; t < T; t++) \
                        s[t] = DOT(s[t], w, q + t * d->x.n + 32 * b + 4 * j); \
                } \
                NAME##_scales(d->group, blocks, b, part, &scale, &least); \
                _Pragma("GCC unroll 16") for (int t = 0; t < T; t++) { \
                    xf f = xf_mul(xf_of_xi(s[t]), scale); \
                    acc[t] = xf_fma(f, xf_set1(dx[t * blocks + b]), acc[t]); \
                    if (MIN) \
                        acc[t] = xf_fma(least, xf_set1(sx[t * blocks + b]), acc[t]); \
                } \
            } \
            for (int t = 0; t < T; t++) \
                xf_store(out + t * UN_LANES, acc[t]); \
        } \
    }

/* Tiles of the sizes that the registers hold. */
#if defined(UN_AVX512) || defined(UN_NEON)
#define UN_TILES(NAME) \
    static void NAME##_dot(const un_dot *d) \
    { \
        int t = 0; \
        for (; t + 8 <= d->tokens; t += 8) \
            NAME##_tile(d, t, 8); \
        if (t + 4 <= d->tokens) \
            NAME##_tile(d, t, 4), t += 4; \
        if (t + 2 <= d->tokens) \
            NAME##_tile(d, t, 2), t += 2; \
        if (t < d->tokens) \
            NAME##_tile(d, t, 1); \
    }
#else
#define UN_TILES(NAME) \
    static void NAME##_dot(const un_dot *d) \
    { \
        int t = 0; \
        for (; t + 4 <= d->tokens; t += 4) \
            NAME##_tile(d, t, 4); \
        if (t + 2 <= d->tokens) \
            NAME##_tile(d, t, 2), t += 2; \
        if (t < d->tokens) \
            NAME##_tile(d, t, 1); \
    }
#endif

/* The values of 16 rows and of one row from `_vec` and `_scales`, for reading back. */
#define UN_READ_BACK(NAME, ZERO, MIN) \
    static void NAME##_floats(const uint8_t *group, int64_t cols, int64_t b, float *out) \
    { \
        for (int part = 0; part < UN_PARTS; part++) { \
            float d[UN_XL], m[UN_XL] = {0}; \
            xf scale, least = xf_zero(); \
            NAME##_scales(group, cols / 32, b, part, &scale, &least); \
            xf_store(d, scale); \
            if (MIN) \
                xf_store(m, least); \
            for (int j = 0; j < 8; j++) { \
                xb w = NAME##_vec(group, cols / 32, b, part, j); \
                uint8_t bytes[4 * UN_XL]; \
                memcpy(bytes, &w, sizeof bytes); \
                for (int i = 0; i < 4 * UN_XL; i++) \
                    out[(4 * j + i % 4) * UN_LANES + part * UN_XL + i / 4] = \
                        (float)(bytes[i] - (ZERO)) * d[i / 4] + m[i / 4]; \
            } \
        } \
    } \
    static void NAME##_row(const uint8_t *group, int lane, int64_t cols, float *out) \
    { \
        float all[32 * UN_LANES]; \
        for (int64_t b = 0; b < cols / 32; b++) { \
            NAME##_floats(group, cols, b, all); \
            for (int k = 0; k < 32; k++) \
                out[32 * b + k] = all[k * UN_LANES + lane]; \
        } \
    }

#endif
