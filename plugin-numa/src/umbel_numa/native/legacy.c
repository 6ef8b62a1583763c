/* Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 values with a float16 scale, some with a minimum.
 *
 * A packed block of 16 rows: the scales of the rows, their minima, the fifth bits, the values.
 * Vector j holds for each row the 4 values k = 4 j ...; of 4-bit values a byte holds k and k + 16. */
#include "blocks.h"

enum { S = 2 * UN_LANES, N = 16 * UN_LANES }; /* bytes of the scales, and of the nibbles */

#define BLOCK(bytes) (group + b * UN_LANES * (bytes))
#define LANES(p) ((p) + part * UN_XL * 2)  /* of float16 */
#define VEC(p, j) ((p) + (j) * 64 + part * UN_XL * 4)

UN_INLINE xb nibbles(const uint8_t *p, int part, int j)
{
    return j < 4 ? xb_low4(xb_load(VEC(p, j))) : xb_high4(xb_load(VEC(p, j - 4)));
}

/* Q4_0: d (q - 8) */
UN_INLINE xb q4_0_vec(const uint8_t *group, int64_t n, int64_t b, int part, int j)
{
    return nibbles(BLOCK(18) + S, part, j);
}
UN_INLINE void q4_0_scales(const uint8_t *group, int64_t n, int64_t b, int part, xf *d, xf *m)
{
    *d = xf_load_half((const uint16_t *)LANES(BLOCK(18)));
}

/* Q4_1: d q + m */
UN_INLINE xb q4_1_vec(const uint8_t *group, int64_t n, int64_t b, int part, int j)
{
    return nibbles(BLOCK(20) + 2 * S, part, j);
}
UN_INLINE void q4_1_scales(const uint8_t *group, int64_t n, int64_t b, int part, xf *d, xf *m)
{
    *d = xf_load_half((const uint16_t *)LANES(BLOCK(20)));
    *m = xf_load_half((const uint16_t *)LANES(BLOCK(20) + S));
}

/* Q8_0: d q, kept as q + 128 */
UN_INLINE xb q8_0_vec(const uint8_t *group, int64_t n, int64_t b, int part, int j)
{
    return xb_load(VEC(BLOCK(34) + S, j));
}
UN_INLINE void q8_0_scales(const uint8_t *group, int64_t n, int64_t b, int part, xf *d, xf *m)
{
    *d = xf_load_half((const uint16_t *)LANES(BLOCK(34)));
}

/* The packing of a row's block of `halves` float16 and then 16 bytes of nibbles. */
static void pack_nibbles(const char *rows, int64_t stride, int n, int64_t blocks, int halves,
                         uint8_t *group)
{
    int bytes = 2 * halves + 16;
    for (int64_t b = 0; b < blocks; b++)
        for (int r = 0; r < n; r++) {
            const char *from = rows + r * stride + b * bytes;
            uint8_t *to = group + b * UN_LANES * bytes;
            for (int h = 0; h < halves; h++)
                memcpy(to + h * S + 2 * r, from + 2 * h, 2);
            for (int k = 0; k < 16; k++)
                to[halves * S + k / 4 * 64 + r * 4 + k % 4] = (uint8_t)from[2 * halves + k];
        }
}

static void q4_0_pack(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group)
{
    pack_nibbles(rows, stride, n, cols / 32, 1, group);
}

static void q4_1_pack(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group)
{
    pack_nibbles(rows, stride, n, cols / 32, 2, group);
}

static void q8_0_pack(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group)
{
    for (int64_t b = 0; b < cols / 32; b++)
        for (int r = 0; r < n; r++) {
            const char *from = rows + r * stride + b * 34;
            uint8_t *to = group + b * UN_LANES * 34;
            memcpy(to + 2 * r, from, 2);
            for (int k = 0; k < 32; k++)
                to[S + k / 4 * 64 + r * 4 + k % 4] = (uint8_t)(from[2 + k] ^ 0x80);
        }
}

UN_DOT_TILE(q4_0, xi_dot, 8, 0)
UN_DOT_TILE(q4_1, xi_dot, 0, 1)
UN_DOT_TILE(q8_0, xi_dot8, UN_DOT8_OFFSET, 0)
UN_TILES(q4_0)
UN_TILES(q4_1)
UN_TILES(q8_0)
UN_READ_BACK(q4_0, 8, 0)
UN_READ_BACK(q4_1, 0, 1)
UN_READ_BACK(q8_0, 128, 0)

#define FORMAT(NAME, TYPE, BYTES) \
    const un_format UN_(NAME) = {TYPE, UN_ACT_I8, 32, BYTES, NAME##_pack, NAME##_row, \
                                 NAME##_floats, NAME##_dot};
FORMAT(q4_0, UN_Q4_0, 18)
FORMAT(q4_1, UN_Q4_1, 20)
FORMAT(q8_0, UN_Q8_0, 34)
