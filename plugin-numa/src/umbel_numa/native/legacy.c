/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: blocks of 32 values with a float16 scale, some with a minimum.
 *
 * A packed block of 16 rows: the scales of the rows, their minima, the fifth bits, the values
 * (planes.h). */
#include "planes.h"

enum { S = 2 * UN_LANES, FIFTHS = 4 * UN_LANES }; /* bytes of the scales, of the fifth bits */

#define BLOCK(bytes) (group + b * UN_LANES * (bytes))
#define HALF(p) xf_load_half((const uint16_t *)(p) + part * UN_XL)

/* Q4_0: d (q - 8) */
UN_INLINE xb q4_0_vec(const uint8_t *group, int64_t b, int part, int j)
{
    return un_nibbles(BLOCK(18) + S, part, j);
}
UN_INLINE un_scales q4_0_scales(const uint8_t *group, int64_t b, int part)
{
    return (un_scales){.d = {HALF(BLOCK(18))}};
}

/* Q4_1: d q + m */
UN_INLINE xb q4_1_vec(const uint8_t *group, int64_t b, int part, int j)
{
    return un_nibbles(BLOCK(20) + 2 * S, part, j);
}
UN_INLINE un_scales q4_1_scales(const uint8_t *group, int64_t b, int part)
{
    return (un_scales){.d = {HALF(BLOCK(20))}, .m = HALF(BLOCK(20) + S)};
}

/* Q5_0: d (q - 16) */
UN_INLINE xb q5_0_vec(const uint8_t *group, int64_t b, int part, int j)
{
    const uint8_t *p = BLOCK(22) + S;
    return xb_or(un_nibbles(p + FIFTHS, part, j), un_bit(p, part, j, 4));
}
UN_INLINE un_scales q5_0_scales(const uint8_t *group, int64_t b, int part)
{
    return (un_scales){.d = {HALF(BLOCK(22))}};
}

/* Q5_1: d q + m */
UN_INLINE xb q5_1_vec(const uint8_t *group, int64_t b, int part, int j)
{
    const uint8_t *p = BLOCK(24) + 2 * S;
    return xb_or(un_nibbles(p + FIFTHS, part, j), un_bit(p, part, j, 4));
}
UN_INLINE un_scales q5_1_scales(const uint8_t *group, int64_t b, int part)
{
    return (un_scales){.d = {HALF(BLOCK(24))}, .m = HALF(BLOCK(24) + S)};
}

/* Q8_0: d q, kept as q + 128 */
UN_INLINE xb q8_0_vec(const uint8_t *group, int64_t b, int part, int j)
{
    return xb_load(UN_VEC(BLOCK(34) + S, part, j));
}
UN_INLINE un_scales q8_0_scales(const uint8_t *group, int64_t b, int part)
{
    return (un_scales){.d = {HALF(BLOCK(34))}};
}

/* Packs blocks of `halves` float16, 4 bytes of fifth bits if any, and 16 bytes of nibbles. */
static void pack(const char *rows, int64_t stride, int n, int64_t blocks, int halves,
                 int fifths, uint8_t *group)
{
    int bytes = 2 * halves + 4 * fifths + 16;
    for (int64_t b = 0; b < blocks; b++)
        for (int r = 0; r < n; r++) {
            const uint8_t *from = (const uint8_t *)rows + r * stride + b * bytes;
            uint8_t *to = BLOCK(bytes);
            for (int h = 0; h < halves; h++, from += 2, to += S)
                memcpy(to + 2 * r, from, 2);
            if (fifths) {
                for (int k = 0; k < 32; k++)
                    un_put_bits(to, r, k, 1, from[k / 8] >> k % 8 & 1);
                from += 4, to += FIFTHS;
            }
            for (int k = 0; k < 16; k++)
                to[un_at(r, k)] = from[k];
        }
}

static void q4_0_pack(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group)
{
    pack(rows, stride, n, cols / 32, 1, 0, group);
}

static void q4_1_pack(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group)
{
    pack(rows, stride, n, cols / 32, 2, 0, group);
}

static void q5_0_pack(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group)
{
    pack(rows, stride, n, cols / 32, 1, 1, group);
}

static void q5_1_pack(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group)
{
    pack(rows, stride, n, cols / 32, 2, 1, group);
}

static void q8_0_pack(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group)
{
    for (int64_t b = 0; b < cols / 32; b++)
        for (int r = 0; r < n; r++) {
            const char *from = rows + r * stride + b * 34;
            memcpy(BLOCK(34) + 2 * r, from, 2);
            for (int k = 0; k < 32; k++)
                BLOCK(34)[S + un_at(r, k)] = (uint8_t)(from[2 + k] ^ 0x80);
        }
}

UN_FORMAT(q4_0, UN_Q4_0, 32, 18, nibbles, 8, 8, 1, UN_NO_MIN)
UN_FORMAT(q4_1, UN_Q4_1, 32, 20, nibbles_min, 0, 8, 1, UN_MIN)
UN_FORMAT(q5_0, UN_Q5_0, 32, 22, fifths, 16, 4, 1, UN_NO_MIN)
UN_FORMAT(q5_1, UN_Q5_1, 32, 24, fifths_min, 0, 4, 1, UN_MIN)
UN_FORMAT(q8_0, UN_Q8_0, 32, 34, signs, 128, 1, 1, UN_NO_MIN)
