/* IQ4_NL, IQ4_XS and MXFP4: values of 4 bits that stand for numbers of a table. */
#include "planes.h"

enum { S = 2 * UN_LANES, FOUR = 16 * UN_LANES };

/* Values of IQ4, + 128 */
static const uint8_t iq4[16] = {1, 24, 45, 63, 79, 93, 106, 118,
                                129, 141, 153, 166, 181, 197, 217, 241};
/* Twice the values of a float of 4 bits (2 of exponent, 1 of mantissa), + 12 */
static const uint8_t fp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

#define BLOCK(bytes) (group + b * UN_LANES * (bytes))
#define SUPER(bytes) (group + b / 8 * UN_LANES * (bytes))
#define HALF(p) xf_load_half((const uint16_t *)(p) + part * UN_XL)

/* IQ4_NL: blocks of 32, d v */
UN_INLINE xb iq4_nl_vec(const uint8_t *group, int64_t b, int part, int j)
{
    return xb_lookup(iq4, un_nibbles(BLOCK(18) + S, part, j));
}
UN_INLINE un_scales iq4_nl_scales(const uint8_t *group, int64_t b, int part)
{
    return (un_scales){.d = {HALF(BLOCK(18))}};
}

/* IQ4_XS: superblocks of 256, d (sc - 32) v; packed are d, sc - 32 of 8 blocks, the nibbles */
UN_INLINE xb iq4_xs_vec(const uint8_t *group, int64_t b, int part, int j)
{
    const uint8_t *p = SUPER(138) + S + 8 * UN_LANES + b % 8 * FOUR;
    return xb_lookup(iq4, un_nibbles(p, part, j));
}
UN_INLINE un_scales iq4_xs_scales(const uint8_t *group, int64_t b, int part)
{
    const uint8_t *p = SUPER(138), *sc = p + S + b % 8 * UN_LANES + part * UN_XL;
    return (un_scales){.d = {xf_mul(HALF(p), xf_of_xi(xi_load_s8(sc)))}};
}

/* MXFP4: blocks of 32, 2^(e - 128) times twice the value; e is a byte. From e = 2 on the bits
 * of the power are (e - 1) << 23; below it is no normal number: (e + 1) << 21. */
UN_INLINE xb mxfp4_vec(const uint8_t *group, int64_t b, int part, int j)
{
    return xb_lookup(fp4, un_nibbles(BLOCK(17) + UN_LANES, part, j));
}
UN_INLINE un_scales mxfp4_scales(const uint8_t *group, int64_t b, int part)
{
    xi e = xi_load_u8(BLOCK(17) + part * UN_XL);
    xi normal = xi_shl(xi_add(e, xi_set1(-1)), 23), tiny = xi_shl(xi_add(e, xi_set1(1)), 21);
    return (un_scales){.d = {xf_of_bits(xi_max(normal, tiny))}};
}

static void nibbles(const uint8_t *from, int r, uint8_t *to)
{
    for (int k = 0; k < 16; k++)
        to[un_at(r, k)] = from[k];
}

static void iq4_nl_pack(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group)
{
    for (int64_t b = 0; b < cols / 32; b++)
        for (int r = 0; r < n; r++) {
            const uint8_t *from = (const uint8_t *)rows + r * stride + b * 18;
            memcpy(BLOCK(18) + 2 * r, from, 2);
            nibbles(from + 2, r, BLOCK(18) + S);
        }
}

static void mxfp4_pack(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group)
{
    for (int64_t b = 0; b < cols / 32; b++)
        for (int r = 0; r < n; r++) {
            const uint8_t *from = (const uint8_t *)rows + r * stride + b * 17;
            BLOCK(17)[r] = from[0];
            nibbles(from + 1, r, BLOCK(17) + UN_LANES);
        }
}

static void iq4_xs_pack(const char *rows, int64_t stride, int n, int64_t cols, uint8_t *group)
{
    for (int64_t b = 0; b < cols / 32; b++)
        for (int r = 0; r < n; r++) {
            const uint8_t *from = (const uint8_t *)rows + r * stride + b / 8 * 136;
            uint8_t *to = SUPER(138);
            int i = (int)(b % 8);
            int low = from[4 + i / 2] >> i % 2 * 4 & 15;
            int high = from[2 + i / 4] >> i % 4 * 2 & 3;
            memcpy(to + 2 * r, from, 2);
            to[S + i * UN_LANES + r] = (uint8_t)((low | high << 4) - 32);
            nibbles(from + 8 + 16 * i, r, to + S + 8 * UN_LANES + i * FOUR);
        }
}

UN_FORMAT(iq4_nl, UN_IQ4_NL, 32, 18, signs, 128, 1, 1, UN_NO_MIN)
UN_FORMAT(iq4_xs, UN_IQ4_XS, 256, 138, signs, 128, 1, 1, UN_NO_MIN)
UN_FORMAT(mxfp4, UN_MXFP4, 32, 17, fifths, 12, 4, 1, UN_NO_MIN)
