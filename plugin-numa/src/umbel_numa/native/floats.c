/* F16 and BF16 weights, whose products are those of 16-bit integers: twice as fast as float32,
 * and exact within a block of 32 but for the rounding of its values to 13 bits of the largest.
 * Of activations what that leaves of a rough block is multiplied as well.
 *
 * A packed block of 16 rows: their scales (float32), then in vector j for each row the 2 values
 * k = 2 j, 2 j + 1. Its values are near those of the file; rows are gathered from the file.
 * What is not finite, or too rough, is not packed: its products are those of dense.h. */
#include "blocks.h"
#include "floats.h"

enum { BYTES = 68, BLOCK = UN_LANES * BYTES, SCALES = UN_LANES * 4 };

/* Block b of a row, filled up with zeros. */
UN_INLINE void load(int type, const char *row, int64_t b, int64_t cols, float *x)
{
    const uint16_t *from = (const uint16_t *)row + 32 * b;
    uint16_t last[32] = {0};
    if (cols - 32 * b < 32)
        from = memcpy(last, from, (size_t)(cols - 32 * b) * 2);
    for (int k = 0; k < 32; k += UN_XL)
        xf_store(x + k, type == UN_F16 ? xf_load_half(from + k) : xf_load_bf16(from + k));
}

UN_INLINE void pack(int type, const char *rows, int64_t stride, int n, int64_t cols,
                    uint8_t *group)
{
    float x[32], scale;
    int16_t q[32];
    for (int64_t b = 0; 32 * b < cols; b++, group += BLOCK)
        for (int r = 0; r < n; r++) {
            load(type, rows + r * stride, b, cols, x);
            un_quantise16(x, UN_MOST_W16, q, &scale);
            memcpy(group + 4 * r, &scale, 4);
            for (int j = 0; j < 16; j++)
                memcpy(group + SCALES + 64 * j + 4 * r, q + 2 * j, 4);
        }
}

/* Whether the squares of what rounding takes from a row are few against those of its values, of
 * which the largest of each block does not count. (Normal ones lose 7e-9.) */
UN_INLINE int smooth(int type, const char *row, int64_t cols)
{
    float x[32], d, lost[UN_LANES] = {0}, all[UN_LANES] = {0}, tops = 0;
    int16_t q[32];
    for (int64_t b = 0; 32 * b < cols; b++) {
        load(type, row, b, cols, x);
        un_quantise16(x, UN_MOST_W16, q, &d);
        for (int h = 0; h < 32; h += UN_LANES)
            for (int k = 0; k < UN_LANES; k++) {
                float left = x[h + k] - d * (float)q[h + k];
                lost[k] += left * left;
                all[k] += x[h + k] * x[h + k];
            }
        tops += d * UN_MOST_W16 * (d * UN_MOST_W16);
    }
    float sum = un_sum16(all);
    return un_sum16(lost) <= 2e-7f * (sum - tops) + 1e-12f * sum; /* false for NaN */
}

UN_INLINE int fits(int type, const char *rows, int64_t stride, int n, int64_t cols)
{
    for (int r = 0; r < n; r++)
        if (!smooth(type, rows + r * stride, cols))
            return 0;
    return 1;
}

#define TYPE(NAME, NUMBER) \
    static void NAME##_pack(const char *rows, int64_t stride, int n, int64_t cols, \
                            uint8_t *group) \
    { \
        pack(NUMBER, rows, stride, n, cols, group); \
    } \
    static int NAME##_fits(const char *rows, int64_t stride, int n, int64_t cols) \
    { \
        return fits(NUMBER, rows, stride, n, cols); \
    }
TYPE(f16, UN_F16)
TYPE(bf16, UN_BF16)

static void read_floats(const uint8_t *group, int64_t cols, int64_t b, float *out)
{
    const float *scale = (const float *)(group + b * BLOCK);
    const int16_t *q = (const int16_t *)(group + b * BLOCK + SCALES);
    for (int k = 0; k < 32; k++)
        for (int r = 0; r < UN_LANES; r++)
            out[k * UN_LANES + r] = (float)q[k / 2 * 2 * UN_LANES + 2 * r + k % 2] * scale[r];
}

static void read_row(const uint8_t *group, int lane, int64_t cols, float *out)
{
    for (int64_t k = 0; k < (cols + 31) / 32 * 32; k++) {
        const uint8_t *block = group + k / 32 * BLOCK;
        const int16_t *q = (const int16_t *)(block + SCALES) + k % 32 / 2 * 2 * UN_LANES;
        out[k] = (float)q[2 * lane + k % 2] * ((const float *)block)[lane];
    }
}

/* Tokens of a tile. Up to SPARE of the last may be one token again: such a tile costs less than
 * smaller ones. Two groups share an activation that was read where there are registers for
 * their sums. */
#ifdef UN_AVX512
enum { MOST = 8, SPARE = 2, WIDE = 2 };
#define UNROLL _Pragma("GCC unroll 16")
#define APART(p) __asm__("" : "+r"(p)) /* gcc would keep addresses of all that it reads */
#else
enum { MOST = 4, SPARE = 1, WIDE = 1 };
#define UNROLL _Pragma("GCC unroll 2")
#define APART(p) (void)0
#endif
#ifdef UN_AVX2
#define IN_PLACE(v) __asm__("" : "+x"(v)) /* one sum after the other: few registers */
#else
#define IN_PLACE(v) (void)0
#endif
/* Which row of x is token t of a tile of T. */
UN_INLINE int64_t row_of(int t, const int T, int last)
{
    return t < T - SPARE || t < last ? t : last;
}

/* The products of the pairs of k of one block: G groups, `apart` bytes from each other, and T
 * tokens, n values from each other; s[(group * T + token) * UN_PARTS + part]. Three tokens
 * share an address. */
UN_INLINE void block_dot(const uint8_t *w, int64_t apart, const int16_t *q, int64_t n,
                         const int G, const int T, int last, xi *s)
{
    const int64_t end = last < T - 1 ? 0 : n; /* from the last token but one to the last */
    const int16_t *x[(MOST + 2) / 3];
    UN_UNROLL for (int i = 0; 3 * i < T; i++)
        x[i] = q + row_of(3 * i, T, last) * n;
    UN_UNROLL for (int i = 0; i < G * T * UN_PARTS; i++)
        s[i] = xi_zero();
    UNROLL for (int j = 0; j < 16; j++) {
        xh v[WIDE * UN_PARTS];
        UN_UNROLL for (int i = 0; i < G * UN_PARTS; i++)
            v[i] = xh_load((const int16_t *)(w + i / UN_PARTS * apart + 64 * j) +
                           2 * UN_XL * (i % UN_PARTS));
        UN_UNROLL for (int t = 0; t < T; t++)
            UN_UNROLL for (int i = 0; i < G * UN_PARTS; i++) {
                xi *sum = s + (i / UN_PARTS * T + t) * UN_PARTS + i % UN_PARTS;
                *sum = xi_dot16(*sum, v[i], x[t / 3] + t % 3 * (t < T - 1 ? n : end));
                IN_PLACE(*sum);
            }
        UN_UNROLL for (int i = 0; 3 * i < T; i++) {
            x[i] += 2;
            APART(x[i]);
        }
    }
}

/* out + s * scale * factor, of one token */
UN_INLINE void accumulate(const uint8_t *block, const xi *s, float factor, float *out)
{
    UN_UNROLL for (int p = 0; p < UN_PARTS; p++) {
        xf f = xf_mul(xf_of_xi(s[p]), xf_load((const float *)block + p * UN_XL));
        float *to = out + p * UN_XL;
        xf_store(to, xf_fma(f, xf_set1(factor), xf_load(to)));
    }
}

/* As blocks.h says, with the vectors of a group side by side: they share the activations. */
UN_INLINE void tile(const un_dot *d, int first, int last, const int G, const int T)
{
    const int64_t blocks = d->x.blocks, n = d->x.n, apart = d->group_bytes;
    const int16_t *q = (const int16_t *)d->x.q + first * n;
    const float *dx = d->x.d + first * blocks, *rest = d->x.s + first * blocks;
    float *out = d->acc + first * UN_LANES;
    if (!d->more)
        for (int g = 0; g < G; g++)
            memset(out + g * UN_MANY * UN_LANES, 0, (size_t)T * UN_LANES * 4);
    for (int64_t b = d->from; b < d->to; b++) {
        const uint8_t *block = d->group + b * BLOCK;
        xi s[WIDE * MOST * UN_PARTS];
        uint32_t rough = 0;
        block_dot(block + SCALES, apart, q + 64 * b, n, G, T, last, s);
        UN_UNROLL for (int g = 0; g < G; g++)
            UN_UNROLL for (int t = 0; t < T; t++)
                accumulate(block + g * apart, s + (g * T + t) * UN_PARTS,
                           dx[row_of(t, T, last) * blocks + b],
                           out + (g * UN_MANY + t) * UN_LANES);
        UN_UNROLL for (int t = 0; t < T; t++)
            rough |= un_bits_of(rest[row_of(t, T, last) * blocks + b]);
        if (rough) {
            block_dot(block + SCALES, apart, q + 64 * b + 32, n, G, T, last, s);
            UN_UNROLL for (int g = 0; g < G; g++)
                UN_UNROLL for (int t = 0; t < T; t++) {
                    float factor = rest[row_of(t, T, last) * blocks + b];
                    if (factor)
                        accumulate(block + g * apart, s + (g * T + t) * UN_PARTS, factor,
                                   out + (g * UN_MANY + t) * UN_LANES);
                }
        }
    }
}

UN_INLINE void tiles_of(const un_dot *d, const int G)
{
    int t = 0, end = d->tokens - 1;
    for (; t + MOST - SPARE <= d->tokens; t += MOST)
        tile(d, t, end - t < MOST ? end - t : MOST - 1, G, MOST);
    if (t + 3 <= d->tokens && MOST > 4)
        tile(d, t, end - t < 4 ? end - t : 3, G, 4), t += 4;
    if (t + 2 <= d->tokens)
        tile(d, t, 1, G, 2), t += 2;
    if (t < d->tokens)
        tile(d, t, 0, G, 1);
}

static void tiles(const un_dot *d, int groups)
{
    if (groups == 2 && WIDE == 2)
        tiles_of(d, WIDE);
    else
        tiles_of(d, 1);
}

enum { CHUNK = 16 }; /* blocks of a group that stay in the first level of the cache */

static void dot(const un_dot *d)
{
    for (int64_t b = d->from; b < d->to; b += CHUNK)
        for (int g = 0; g < d->groups; g += WIDE) {
            un_dot one = *d;
            one.group += g * d->group_bytes;
            one.acc += g * UN_MANY * UN_LANES;
            one.from = b;
            one.to = b + CHUNK < d->to ? b + CHUNK : d->to;
            one.more = d->more || b > d->from;
            tiles(&one, WIDE < d->groups - g ? WIDE : d->groups - g);
        }
}

const un_format UN_(f16) = {UN_F16, UN_ACT_I16, 32, BYTES, f16_pack, read_row,
                            read_floats, dot, f16_fits};
const un_format UN_(bf16) = {UN_BF16, UN_ACT_I16, 32, BYTES, bf16_pack, read_row,
                             read_floats, dot, bf16_fits};

UN_INLINE void float_tile(const un_dot *d, const float *w, int64_t b, int first, const int T)
{
    const float *x = (const float *)d->x.q + first * d->x.n + 32 * b;
    for (int part = 0; part < UN_PARTS; part++) {
        float *out = d->acc + first * UN_LANES + part * UN_XL;
        xf acc[UN_TILE];
        for (int t = 0; t < T; t++)
            acc[t] = xf_load(out + t * UN_LANES);
        for (int k = 0; k < 32; k++) {
            xf row = xf_load(w + k * UN_LANES + part * UN_XL);
            UN_UNROLL for (int t = 0; t < T; t++)
                acc[t] = xf_fma(row, xf_set1(x[t * d->x.n + k]), acc[t]);
        }
        for (int t = 0; t < T; t++)
            xf_store(out + t * UN_LANES, acc[t]);
    }
}

static void group_floats(const un_format *format, const un_dot *d)
{
    float w[32 * UN_LANES];
    if (!d->more)
        memset(d->acc, 0, (size_t)d->tokens * UN_LANES * 4);
    for (int64_t b = d->from; b < d->to; b++) {
        format->floats(d->group, d->x.n, b, w);
        int t = 0;
        for (; t + 8 <= d->tokens; t += 8)
            float_tile(d, w, b, t, 8);
        for (; t < d->tokens; t++)
            float_tile(d, w, b, t, 1);
    }
}

void UN_(dot_floats)(const un_format *format, const un_dot *d)
{
    un_dot one = *d;
    for (int g = 0; g < d->groups; g++) {
        group_floats(format, &one);
        one.group += d->group_bytes;
        one.acc += UN_MANY * UN_LANES;
    }
}
