/* Panels against pairs of tokens with i8mm, whose one instruction multiplies 2 rows by 2 tokens
 * over 8 values. Vectors hold (row, token) for 2 rows and 2 tokens until all blocks are added;
 * what is added to each, and in which order, is what un_tile adds. Included by panels.c. */
#ifndef UN_BLOCKS_I8MM_H
#define UN_BLOCKS_I8MM_H

#include "blocks.h"

enum { UN_PAIRS = 4 }; /* of tokens: their values of a block fill the registers */

typedef struct un_quad {
    float32x4_t low, high; /* rows 0, 1 and 2, 3 of a vector of 4 */
} un_quad;

UN_INLINE un_quad un_twice(xf v) { return (un_quad){vzip1q_f32(v, v), vzip2q_f32(v, v)}; }
UN_INLINE un_quad un_cross(xf a, xf b) { return (un_quad){vzip1q_f32(a, b), vzip2q_f32(a, b)}; }
UN_INLINE float32x4_t un_both(float a, float b)
{
    float32x2_t v = vset_lane_f32(b, vdup_n_f32(a), 1);
    return vcombine_f32(v, v);
}

/* The 32 values of two tokens, 8 and 8. */
UN_INLINE void un_pair_values(int8x16_t x[4], const int8_t *a, const int8_t *b)
{
    UN_UNROLL for (int h = 0; h < 2; h++) {
        int64x2_t u = vreinterpretq_s64_s8(vld1q_s8(a + 16 * h));
        int64x2_t v = vreinterpretq_s64_s8(vld1q_s8(b + 16 * h));
        x[2 * h] = vreinterpretq_s8_s64(vzip1q_s64(u, v));
        x[2 * h + 1] = vreinterpretq_s8_s64(vzip2q_s64(u, v));
    }
}

/* low, high += the products of the vectors j and j + 1 with P pairs */
UN_INLINE void un_multiply(const un_type k, int32x4_t *low, int32x4_t *high,
                           const uint8_t *group, int64_t b, int part, int j,
                           const int8x16_t x[][4], const int P)
{
    const xb sign = xb_set1(k.zero == 128 ? 128 : 0);
    int32x4_t u = vreinterpretq_s32_u8(xb_xor(k.vec(group, b, part, j), sign));
    int32x4_t v = vreinterpretq_s32_u8(xb_xor(k.vec(group, b, part, j + 1), sign));
    int8x16_t r = vreinterpretq_s8_s32(vzip1q_s32(u, v));
    int8x16_t s = vreinterpretq_s8_s32(vzip2q_s32(u, v));
    UN_UNROLL for (int p = 0; p < P; p++) {
        low[p] = vmmlaq_s32(low[p], r, x[p][j / 2]);
        high[p] = vmmlaq_s32(high[p], s, x[p][j / 2]);
    }
}

/* acc += sum * d * x, where the integer sum counts from UN_MAGIC, as un_scaled has it */
UN_INLINE float32x4_t un_quad_scaled(float32x4_t acc, int32x4_t sum, float32x4_t d,
                                     float32x4_t x)
{
    xf away = xf_sub(xf_zero(), xf_mul(d, xf_of_bits(xi_set1(UN_MAGIC))));
    return xf_fma(xf_fma(xf_of_bits(sum), d, away), x, acc);
}

/* Block b of 4 rows: what it adds to the sums of P pairs. */
UN_INLINE void un_quad_block(const un_type k, un_quad *acc, const uint8_t *group, int64_t b,
                             int part, const int8x16_t x[][4], const float32x4_t *dx,
                             const float32x4_t *sx, const int32x4_t begin[][2],
                             const int16_t *sum, int64_t blocks, const int P)
{
    const un_scales c = k.scales(group, b, part);
    UN_UNROLL for (int h = 0; h < k.halves; h++) {
        const int per = 8 / k.halves;
        int32x4_t low[UN_PAIRS], high[UN_PAIRS];
        un_quad d = un_twice(c.d[h]);
        UN_UNROLL for (int p = 0; p < P; p++)
            low[p] = high[p] = begin[p][h];
        UN_UNROLL for (int j = h * per; j < h * per + per; j += 2)
            un_multiply(k, low, high, group, b, part, j, x, P);
        UN_UNROLL for (int p = 0; p < P; p++) {
            acc[p].low = un_quad_scaled(acc[p].low, low[p], d.low, dx[p]);
            acc[p].high = un_quad_scaled(acc[p].high, high[p], d.high, dx[p]);
        }
    }
    if (k.min == UN_NO_MIN)
        return;
    un_quad m = un_twice(c.m);
    UN_UNROLL for (int p = 0; p < P; p++) {
        if (k.min == UN_MIN) {
            acc[p].low = xf_fma(m.low, sx[p], acc[p].low);
            acc[p].high = xf_fma(m.high, sx[p], acc[p].high);
            continue;
        }
        const int16_t *of = sum + 4 * p * blocks + 2 * b;
        un_quad s = un_cross(xf_of_bits(xi_dot16(xi_set1(UN_MAGIC), c.pair, of)),
                             xf_of_bits(xi_dot16(xi_set1(UN_MAGIC), c.pair, of + 2 * blocks)));
        acc[p].low = un_quad_scaled(acc[p].low, vreinterpretq_s32_f32(s.low), m.low, dx[p]);
        acc[p].high = un_quad_scaled(acc[p].high, vreinterpretq_s32_f32(s.high), m.high, dx[p]);
    }
}

/* Tokens first .. first + 2 P - 1 against the panels of one group. */
UN_INLINE void un_pairs(const un_type k, const un_dot *d, const int32_t *start, int first,
                        int g, const int P)
{
    const int64_t blocks = d->x.blocks, n = d->x.n;
    const int8_t *q = (const int8_t *)d->x.q + first * n;
    const float *dx = d->x.d + first * blocks, *sx = d->x.s + first * blocks;
    const uint8_t *group = d->group + g * d->group_bytes;
    float *out = d->acc + (g * UN_MANY + first) * UN_LANES;
    un_quad acc[UN_PARTS][UN_PAIRS];
    for (int part = 0; part < UN_PARTS; part++)
        for (int p = 0; p < P; p++) {
            float *to = out + 2 * p * UN_LANES + part * UN_XL;
            acc[part][p] = d->more ? un_cross(xf_load(to), xf_load(to + UN_LANES))
                                   : un_cross(xf_zero(), xf_zero());
        }
    for (int64_t b = d->from; b < d->to; b++) {
        int8x16_t x[UN_PAIRS][4];
        float32x4_t scale[UN_PAIRS], least[UN_PAIRS];
        int32x4_t begin[UN_PAIRS][2];
        UN_UNROLL for (int p = 0; p < P; p++) {
            const int64_t t = 2 * p * blocks + b;
            un_pair_values(x[p], q + 2 * p * n + 32 * b, q + (2 * p + 1) * n + 32 * b);
            scale[p] = un_both(dx[t], dx[t + blocks]);
            least[p] = k.min == UN_MIN ? un_both(sx[t], sx[t + blocks]) : xf_zero();
            UN_UNROLL for (int h = 0; h < k.halves; h++) {
                const int32_t *at = start + 2 * UN_DEPTH * (first + 2 * p) + k.halves * b + h;
                int32x2_t two = vdup_n_s32(UN_MAGIC);
                if (k.zero && k.zero != 128)
                    two = vset_lane_s32(at[2 * UN_DEPTH], vdup_n_s32(at[0]), 1);
                begin[p][h] = vcombine_s32(two, two);
            }
        }
        for (int part = 0; part < UN_PARTS; part++)
            un_quad_block(k, acc[part], group, b, part, x, scale, least, begin,
                          d->x.sum + 2 * first * blocks, blocks, P);
    }
    for (int part = 0; part < UN_PARTS; part++)
        for (int p = 0; p < P; p++) {
            float *to = out + 2 * p * UN_LANES + part * UN_XL;
            xf_store(to, vuzp1q_f32(acc[part][p].low, acc[part][p].high));
            xf_store(to + UN_LANES, vuzp2q_f32(acc[part][p].low, acc[part][p].high));
        }
}

/* All tokens in pairs against all groups, the last of an odd number by itself. */
UN_INLINE void un_paired(const un_type k, const un_dot *d, const int32_t *start)
{
    int t = 0;
    for (int g = 0; g < d->groups; g++) {
        for (t = 0; t + 2 * UN_PAIRS <= d->tokens; t += 2 * UN_PAIRS)
            un_pairs(k, d, start, t, g, UN_PAIRS);
        for (; t + 2 <= d->tokens; t += 2)
            un_pairs(k, d, start, t, g, 1);
    }
    un_dot last = *d;
    last.tokens = d->tokens - t;
    last.x.q = (const int8_t *)d->x.q + t * d->x.n;
    last.x.d += t * d->x.blocks;
    last.x.s += t * d->x.blocks;
    last.x.sum += 2 * t * d->x.blocks;
    last.acc += t * UN_LANES;
    if (last.tokens)
        un_groups(k, &last, 1, start + 2 * UN_DEPTH * t);
}

#endif
