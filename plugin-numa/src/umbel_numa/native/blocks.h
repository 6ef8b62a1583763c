/* The product of a group of 16 packed rows with tokens, written once for all types of weights.
 *
 * A lane is a row, so that a sum has one order whatever the tile and the instruction set. For
 * each block of 32 values in turn (or half of it, where a type has two scales) the products of
 * weights and activations are added exactly, as integers, and then
 *     acc = acc + (sum * d) * dx
 *     acc = acc + m * sx                       where a block has a minimum, or
 *     acc = acc + (pair . sums * m) * dx       where its halves have: small integers times m
 * with one rounding for what is in brackets, one for the rest.
 *
 * Integer sums begin at UN_MAGIC, the bits of M = 1.5 * 2^23. Read as floats they are M + sum,
 * and a fused (M + sum) * d - M * d is sum * d, rounded once: it saves the conversion. M * d is
 * exact, as scales have at most 19 bits; they must stay below 2^104, which MXFP4's could pass.
 *
 * A type says, for block b of a group and vector `part` of its lanes, what `un_type` asks. Few
 * tokens take the packed weights as they are. For many, some blocks are unpacked to a panel
 * that all tokens then meet: unpacking costs next to nothing, and types are about as fast. */
#ifndef UN_BLOCKS_H
#define UN_BLOCKS_H

#include "simd.h"

#if defined(UN_AVX512) || defined(UN_NEON)
#define UN_WIDE /* 32 registers */
#endif

static const int32_t UN_MAGIC = 0x4b400000;

typedef struct un_scales {
    xf d[2]; /* of the block, or of its halves */
    xf m;
    xh pair; /* of each lane, two numbers of 16 bits */
} un_scales;

typedef enum { UN_NO_MIN, UN_MIN, UN_PAIR } un_min;

/* A type of weights. Known when tiles are compiled: always a constant. */
typedef struct un_type {
    /* the weights k = 4 j .. 4 j + 3 of each lane, j < 8 */
    xb (*vec)(const uint8_t *group, int64_t b, int part, int j);
    un_scales (*scales)(const uint8_t *group, int64_t b, int part);
    int zero;     /* what stands for 0; 128: signed weights + 128, else they are at most 127 */
    int run;      /* how many products xs_dot may add */
    int halves;   /* scales of a block: 1 or 2 */
    un_min min;
    int bytes;    /* packed, of 32 values of 16 rows */
} un_type;

/* An unpacked block. */
typedef struct un_panel {
    uint8_t w[8][4 * UN_LANES];
    float d[2][UN_LANES], m[UN_LANES];
    int16_t pair[2 * UN_LANES];
} un_panel;

enum {
    UN_FEW = 12,     /* fewer tokens do without a panel */
    UN_AHEAD = 4096, /* bytes between what is read and what is asked for */
    UN_DEPTH = 16    /* blocks of a panel: it stays in the first level of the cache */
};

/* Where the integer sum of half h of block b begins. */
UN_INLINE int32_t un_begin(const un_type k, const int16_t *sum, int64_t b, int h)
{
    int zero = k.zero == 128 ? UN_DOT8_OFFSET : k.zero;
    int32_t x = k.halves == 2 ? sum[2 * b + h] : sum[2 * b] + sum[2 * b + 1];
    return UN_MAGIC - zero * x;
}

/* Which row of x is token t of a tile of T. The last may be that before it once more: such a
 * tile costs less than two. */
UN_INLINE int64_t un_token(int t, const int T, int last) { return t < T - 1 ? t : last; }

#ifdef UN_NEON
#include "blocks_neon.h"
#endif

/* s[g][t] += the products of the vectors from <= j < to of G groups with rows n bytes apart */
UN_INLINE void un_sums(const un_type k, xi s[][UN_TILE], const uint8_t *group,
                       int64_t group_bytes, int64_t b, int part, int from, int to,
                       const int8_t *x, int64_t n, const int G, const int T, int last)
{
#ifdef UN_NEON
    UN_UNROLL for (int i = from; i < to; i += 4)
        UN_UNROLL for (int g = 0; g < G; g++) {
            xb w[4];
            UN_UNROLL for (int j = 0; j < 4; j++) {
                w[j] = k.vec(group + g * group_bytes, b, part, i + j);
                w[j] = k.zero == 128 ? xb_xor(w[j], xb_set1(128)) : w[j];
            }
            un_lanes(s[g], w, x + 4 * i, n, T, last);
        }
    return;
#endif
    UN_UNROLL for (int i = from; i < to; i += k.run) {
        xs run[2][UN_TILE];
        UN_UNROLL for (int g = 0; g < G; g++)
            UN_UNROLL for (int t = 0; t < T; t++)
                run[g][t] = xs_begin(s[g][t]);
        UN_UNROLL for (int j = i; j < i + k.run; j++) {
            xb w[2];
            UN_UNROLL for (int g = 0; g < G; g++)
                w[g] = k.vec(group + g * group_bytes, b, part, j);
            UN_UNROLL for (int t = 0; t < T; t++) {
                const int8_t *four = x + un_token(t, T, last) * n + 4 * j;
                UN_UNROLL for (int g = 0; g < G; g++)
                    run[g][t] = k.zero == 128 ? xs_dot8(run[g][t], w[g], four)
                                              : xs_dot(run[g][t], w[g], four);
            }
        }
        UN_UNROLL for (int g = 0; g < G; g++)
            UN_UNROLL for (int t = 0; t < T; t++)
                s[g][t] = xs_end(s[g][t], run[g][t]);
    }
}

/* acc[t] += a * d * x[t], where the integer a[t] counts from UN_MAGIC */
UN_INLINE void un_scaled(xf *acc, const xi *a, xf d, const float *x, int64_t blocks,
                         const int T, int last)
{
    xf away = xf_sub(xf_zero(), xf_mul(d, xf_of_bits(xi_set1(UN_MAGIC))));
    UN_UNROLL for (int t = 0; t < T; t++) {
        xf by = xf_set1(x[un_token(t, T, last) * blocks]);
        acc[t] = xf_fma(xf_fma(xf_of_bits(a[t]), d, away), by, acc[t]);
    }
}

/* What the minima of a block add to acc, of one group. */
UN_INLINE void un_least(const un_type k, const un_scales *c, xf *acc, const float *dx,
                        const float *sx, const int16_t *sum, int64_t blocks, const int T,
                        int last)
{
    if (k.min == UN_MIN) {
        UN_UNROLL for (int t = 0; t < T; t++)
            acc[t] = xf_fma(c->m, xf_set1(sx[un_token(t, T, last) * blocks]), acc[t]);
    } else if (k.min == UN_PAIR) {
        xi s[UN_TILE];
        UN_UNROLL for (int t = 0; t < T; t++)
            s[t] = xi_dot16(xi_set1(UN_MAGIC), c->pair,
                            sum + 2 * un_token(t, T, last) * blocks);
        un_scaled(acc, s, c->m, dx, blocks, T, last);
    }
}

/* Asks for what is needed a little later; memory is read in one stream. */
UN_INLINE void un_ahead(const uint8_t *p, int bytes)
{
    for (int i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + UN_AHEAD + i);
}

/* Where the integer sum of half h of block b begins; with `starts` it is known, see un_many. */
UN_INLINE xi un_first(const un_type k, const int starts, const int32_t *start,
                      const int16_t *sum, int64_t b, int h)
{
    if (!k.zero || (k.zero == 128 && !UN_DOT8_OFFSET))
        return xi_set1(UN_MAGIC);
    return xi_set1(starts ? start[k.halves * b + h] : un_begin(k, sum, b, h));
}

/* T tokens from `first` on, see un_token, and G groups; with `starts`, of panels. */
UN_INLINE void un_tile(const un_type k, const un_dot *d, const int starts, const int32_t *start,
                       int first, int last, const int G, const int T)
{
    const int64_t blocks = d->x.blocks, n = d->x.n;
    const int8_t *q = (const int8_t *)d->x.q + first * n;
    const float *dx = d->x.d + first * blocks, *sx = d->x.s + first * blocks;
    const int16_t *sum = d->x.sum + 2 * first * blocks;
    const int64_t apart = d->groups > 1 ? d->group_bytes : 0;
    const int64_t away = d->groups > 1 ? UN_MANY * UN_LANES : 0;
    start += starts ? 2 * UN_DEPTH * first : 0;
    for (int part = 0; part < UN_PARTS; part++) {
        float *out = d->acc + first * UN_LANES + part * UN_XL;
        xf acc[2][UN_TILE];
        UN_UNROLL for (int g = 0; g < G; g++)
            UN_UNROLL for (int t = 0; t < T; t++)
                acc[g][t] = d->more ? xf_load(out + g * away + t * UN_LANES) : xf_zero();
        for (int64_t b = d->from; b < d->to; b++) {
            for (int g = 0; !starts && part == 0 && g < G; g++)
                un_ahead(d->group + g * apart + b * k.bytes, k.bytes);
            UN_UNROLL for (int h = 0; h < k.halves; h++) {
                const int per = 8 / k.halves;
                xi s[2][UN_TILE];
                UN_UNROLL for (int t = 0; t < T; t++) {
                    const int64_t row = un_token(t, T, last);
                    s[0][t] = un_first(k, starts, starts ? start + 2 * UN_DEPTH * row : start,
                                       sum + 2 * row * blocks, b, h);
                    if (G > 1)
                        s[1][t] = s[0][t];
                }
                un_sums(k, s, d->group, apart, b, part, h * per, h * per + per,
                        q + 32 * b, n, G, T, last);
                UN_UNROLL for (int g = 0; g < G; g++) {
                    const un_scales c = k.scales(d->group + g * apart, b, part);
                    un_scaled(acc[g], s[g], c.d[h], dx + b, blocks, T, last);
                    if (h == k.halves - 1)
                        un_least(k, &c, acc[g], dx + b, sx + b, sum + 2 * b, blocks, T, last);
                }
            }
        }
        UN_UNROLL for (int g = 0; g < G; g++)
            UN_UNROLL for (int t = 0; t < T; t++)
                xf_store(out + g * away + t * UN_LANES, acc[g][t]);
    }
}

/* Tiles of T tokens from `first` on, the last maybe of one less; what is left begins at the
 * token that it returns. */
UN_INLINE int un_tiles(const un_type k, const un_dot *d, const int starts, const int32_t *start,
                       int first, const int G, const int T)
{
    for (; first + T - (T > 2) <= d->tokens; first += T) {
        int last = d->tokens - first < T ? T - 2 : T - 1;
        un_tile(k, d, starts, start, first, last, G, T);
    }
    return first;
}

/* All tokens and groups. Where there are registers for it each value of x that is loaded meets
 * two groups; a single group mostly takes the place of both, as code of its own for each number
 * of tokens would take long to compile. */
UN_INLINE void un_groups(const un_type k, const un_dot *d, const int starts,
                         const int32_t *start)
{
    int t = 0;
    un_dot one = *d;
#ifdef UN_WIDE
    if (starts && d->groups == 1)
        t = un_tiles(k, d, starts, start, t, 1, 6);
    t = un_tiles(k, d, starts, start, t, 2, 6);
    t = un_tiles(k, d, starts, start, t, 2, 4);
    t = un_tiles(k, d, starts, start, t, 2, 2);
#endif
    for (int g = 0; g < d->groups; g++) {
        int last = t;
#ifdef UN_AVX2
        last = un_tiles(k, &one, starts, start, last, 1, 4);
        last = un_tiles(k, &one, starts, start, last, 1, 2);
#endif
        un_tiles(k, &one, starts, start, last, 1, 1);
        one.group += d->group_bytes;
        one.acc += UN_MANY * UN_LANES;
    }
}

/* Block b as a panel has it. */
UN_INLINE void un_unpack(const un_type k, const uint8_t *group, int64_t b, un_panel *to)
{
    for (int part = 0; part < UN_PARTS; part++) {
        xb w[8];
        UN_UNROLL for (int j = 0; j < 8; j++)
            w[j] = k.vec(group, b, part, j);
        const un_scales c = k.scales(group, b, part);
        UN_UNROLL for (int j = 0; j < 8; j++)
            xb_store(to->w[j] + 4 * UN_XL * part, w[j]);
        UN_UNROLL for (int h = 0; h < k.halves; h++)
            xf_store(to->d[h] + UN_XL * part, c.d[h]);
        if (k.min != UN_NO_MIN)
            xf_store(to->m + UN_XL * part, c.m);
        if (k.min == UN_PAIR)
            memcpy(to->pair + 2 * UN_XL * part, &c.pair, sizeof c.pair);
    }
}

/* Panels against tokens, for each combination that types have: see panels.c. start[2 * UN_DEPTH
 * * t ...]: what un_begin gives for the blocks (or halves) of the panels. */
typedef void un_panel_dot(const un_dot *d, const int32_t *start);

/* What is compiled once for all types, by way of panels: the product for many tokens, the
 * values of 16 rows, of one row. */
typedef void un_unpacker(const uint8_t *group, int64_t b, un_panel *to);
void UN_(many)(const un_type *k, un_unpacker *unpack, un_panel_dot *dot, const un_dot *d);
void UN_(panel_floats)(const un_type *k, un_unpacker *unpack, const uint8_t *group, int64_t b,
                       float *out);
void UN_(panel_row)(const un_type *k, un_unpacker *unpack, const uint8_t *group, int lane,
                    int64_t cols, float *out);

/* The format of a type that has NAME_pack, NAME_vec and NAME_scales: its number in GGUF, values
 * and bytes of a packed block, the panel for it, and the other fields of un_type. */
#define UN_FORMAT(NAME, TYPE, BLOCK, BYTES, PANEL, ZERO, RUN, HALVES, MIN) \
    un_panel_dot UN_(panel_##PANEL); \
    static const un_type NAME##_type = {NAME##_vec, NAME##_scales, ZERO, RUN, HALVES, MIN, \
                                         UN_LANES * (BYTES) * 32 / (BLOCK)}; \
    static void NAME##_unpack(const uint8_t *group, int64_t b, un_panel *to) \
    { \
        un_unpack(NAME##_type, group, b, to); \
    } \
    static void NAME##_row(const uint8_t *group, int lane, int64_t cols, float *out) \
    { \
        UN_(panel_row)(&NAME##_type, NAME##_unpack, group, lane, cols, out); \
    } \
    static void NAME##_floats(const uint8_t *group, int64_t cols, int64_t b, float *out) \
    { \
        UN_(panel_floats)(&NAME##_type, NAME##_unpack, group, b, out); \
    } \
    static void NAME##_dot(const un_dot *d) \
    { \
        const int32_t none = 0; \
        if (d->tokens < UN_FEW) \
            un_groups(NAME##_type, d, 0, &none); \
        else \
            UN_(many)(&NAME##_type, NAME##_unpack, UN_(panel_##PANEL), d); \
    } \
    const un_format UN_(NAME) = {TYPE, UN_ACT_I8, BLOCK, BYTES, NAME##_pack, NAME##_row, \
                                 NAME##_floats, NAME##_dot};

#endif
