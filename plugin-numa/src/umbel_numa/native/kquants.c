/* Q2_K to Q6_K: superblocks of 256 values with one or two float16 scales, and small integer
 * scales of sub-blocks of 16 (Q2_K, Q3_K, Q6_K) or 32 values.
 *
 * A packed superblock of 16 rows: its float16 scales, the scales of sub-blocks as bytes, and
 * then planes of bits, each for 8 blocks of 32 values. Products of Q2_K's and Q3_K's weights
 * with the scales of their sub-blocks fit in a byte: they are the weights here. */
#include "planes.h"

enum {
    S = 2 * UN_LANES,     /* bytes of a float16 of each row */
    FOUR = 16 * UN_LANES, /* of a block's nibbles */
    TWO = 8 * UN_LANES,   /* of pairs of bits */
    ONE = 4 * UN_LANES    /* of single bits */
};

#define SUPER(bytes) (group + b / 8 * UN_LANES * (bytes))
#define HALF(p) xf_load_half((const uint16_t *)(p) + part * UN_XL)
#define BYTES(p) ((p) + part * UN_XL)

UN_INLINE xf minus(xf v) { return xf_sub(xf_zero(), v); }

/* Both 16 bits of each lane, from its lowest byte or from the one above */
UN_INLINE xb both(xi v, int upper, int mask)
{
    v = upper ? xi_shr(v, 8) : v;
    v = xi_and(v, xi_set1(mask));
    return xb_of_xi(xi_or(v, xi_shl(v, 16)));
}

UN_INLINE xb set16(int v)
{
    return xb_of_xi(xi_set1((int32_t)((uint32_t)(v & 0xffff) * 0x10001u)));
}

/* Q2_K: d sc q - dmin m. A byte has both sc and m; two bytes belong to a block. */
enum { Q2_SCALES = 2 * S, Q2_TWOS = Q2_SCALES + 16 * UN_LANES };

UN_INLINE xi q2_k_bytes(const uint8_t *super, int64_t b, int part)
{
    return xi_load_u16((const uint16_t *)(super + Q2_SCALES + b % 8 * S) + part * UN_XL);
}
UN_INLINE xb q2_k_vec(const uint8_t *group, int64_t b, int part, int j)
{
    const uint8_t *p = SUPER(84);
    xb sc = both(q2_k_bytes(p, b, part), j >= 4, 15);
    return xb_mul16(un_two(p + Q2_TWOS + b % 8 * TWO, part, j, 0), sc);
}
UN_INLINE un_scales q2_k_scales(const uint8_t *group, int64_t b, int part)
{
    const uint8_t *p = SUPER(84);
    xi v = q2_k_bytes(p, b, part);
    xi low = xi_and(xi_shr(v, 4), xi_set1(15)), high = xi_and(xi_shl(v, 4), xi_set1(0xf0000));
    return (un_scales){.d = {HALF(p)}, .m = minus(HALF(p + S)),
                       .pair = xh_of_xi(xi_or(low, high))};
}

/* Q3_K: d (sc - 32) (q - 4), kept as -d times (32 - sc) (q - 4), which is from -128 to 124, and
 * 63 - sc. A pair of bytes times a scale is one product of 16 bits; what a negative lower byte
 * takes from the upper one, 128 gives back. */
enum { Q3_SCALES = S, Q3_TWOS = Q3_SCALES + 16 * UN_LANES, Q3_ONES = Q3_TWOS + 8 * TWO };

UN_INLINE xb q3_k_vec(const uint8_t *group, int64_t b, int part, int j)
{
    const uint8_t *p = SUPER(114), *scales = p + Q3_SCALES + b % 8 * S;
    xi v = xi_load_u16((const uint16_t *)scales + part * UN_XL);
    xb sc = xb_add16(both(v, j >= 4, 63), set16(-31));
    xb away = xb_add16(xb_mul16(sc, set16(-0x0404)), set16(0x8080));
    xb q = un_two(p + Q3_TWOS + b % 8 * TWO, part, j, 0);
    q = xb_or(q, un_bit(p + Q3_ONES + b % 8 * ONE, part, j, 2));
    return xb_add16(xb_mul16(q, sc), away);
}
UN_INLINE un_scales q3_k_scales(const uint8_t *group, int64_t b, int part)
{
    return (un_scales){.d = {minus(HALF(SUPER(114)))}};
}

/* Q4_K and Q5_K: d sc q - dmin m */
enum { MINS = 8 * UN_LANES, Q4_FOURS = 2 * S + 2 * MINS, Q5_ONES = Q4_FOURS + 8 * FOUR };

UN_INLINE un_scales q45_scales(const uint8_t *super, int64_t b, int part)
{
    const uint8_t *p = super + 2 * S + b % 8 * UN_LANES;
    xf sc = xf_of_xi(xi_load_u8(BYTES(p))), m = xf_of_xi(xi_load_u8(BYTES(p + MINS)));
    return (un_scales){.d = {xf_mul(HALF(super), sc)}, .m = minus(xf_mul(HALF(super + S), m))};
}

UN_INLINE xb q4_k_vec(const uint8_t *group, int64_t b, int part, int j)
{
    return un_nibbles(SUPER(148) + Q4_FOURS + b % 8 * FOUR, part, j);
}
UN_INLINE un_scales q4_k_scales(const uint8_t *group, int64_t b, int part)
{
    return q45_scales(SUPER(148), b, part);
}

UN_INLINE xb q5_k_vec(const uint8_t *group, int64_t b, int part, int j)
{
    const uint8_t *p = SUPER(180);
    xb q = un_nibbles(p + Q4_FOURS + b % 8 * FOUR, part, j);
    return xb_or(q, un_bit(p + Q5_ONES + b % 8 * ONE, part, j, 4));
}
UN_INLINE un_scales q5_k_scales(const uint8_t *group, int64_t b, int part)
{
    return q45_scales(SUPER(180), b, part);
}

/* Q6_K: d sc (q - 32) */
enum { Q6_FOURS = S + 16 * UN_LANES, Q6_TWOS = Q6_FOURS + 8 * FOUR };

UN_INLINE xb q6_k_vec(const uint8_t *group, int64_t b, int part, int j)
{
    const uint8_t *p = SUPER(210);
    xb q = un_nibbles(p + Q6_FOURS + b % 8 * FOUR, part, j);
    return xb_or(q, un_two(p + Q6_TWOS + b % 8 * TWO, part, j, 4));
}
UN_INLINE un_scales q6_k_scales(const uint8_t *group, int64_t b, int part)
{
    const uint8_t *p = SUPER(210), *sc = p + S + b % 8 * 2 * UN_LANES;
    xf d = HALF(p);
    return (un_scales){.d = {xf_mul(d, xf_of_xi(xi_load_s8(BYTES(sc)))),
                             xf_mul(d, xf_of_xi(xi_load_s8(BYTES(sc + UN_LANES))))}};
}

/* Packing, of one superblock: from its bytes in the file to row r of the group. */
typedef void pack_one(const uint8_t *from, int r, uint8_t *to);

UN_INLINE void pack(const char *rows, int64_t stride, int n, int64_t cols, int bytes,
                    int packed, pack_one *one, uint8_t *group)
{
    for (int64_t i = 0; i < cols / 256; i++)
        for (int r = 0; r < n; r++)
            one((const uint8_t *)rows + r * stride + i * bytes, r,
                group + i * UN_LANES * packed);
}

/* Value k of block b, of two bits: 128 values share 32 bytes. */
static int two_of(const uint8_t *q, int b, int k)
{
    return q[b / 4 * 32 + k] >> b % 4 * 2 & 3;
}

static void q2_k_one(const uint8_t *from, int r, uint8_t *to)
{
    memcpy(to + 2 * r, from + 80, 2);
    memcpy(to + S + 2 * r, from + 82, 2);
    for (int b = 0; b < 8; b++) {
        memcpy(to + Q2_SCALES + b * S + 2 * r, from + 2 * b, 2);
        for (int k = 0; k < 32; k++)
            un_put_bits(to + Q2_TWOS + b * TWO, r, k, 2, two_of(from + 16, b, k));
    }
}

static void q3_k_one(const uint8_t *from, int r, uint8_t *to)
{
    const uint8_t *scales = from + 96;
    memcpy(to + 2 * r, from + 108, 2);
    for (int i = 0; i < 16; i++) { /* the lower 4 bits in 8 bytes, the upper 2 in 4 */
        int low = scales[i % 8] >> i / 8 * 4 & 15, high = scales[8 + i % 4] >> i / 4 * 2 & 3;
        to[Q3_SCALES + i / 2 * S + 2 * r + i % 2] = (uint8_t)(63 - (low | high << 4));
    }
    for (int b = 0; b < 8; b++)
        for (int k = 0; k < 32; k++) {
            un_put_bits(to + Q3_TWOS + b * TWO, r, k, 2, two_of(from + 32, b, k));
            un_put_bits(to + Q3_ONES + b * ONE, r, k, 1, from[k] >> b & 1);
        }
}

/* Scales and minima of 6 bits, of 8 sub-blocks, in 12 bytes. */
static void q45_one(const uint8_t *from, int r, uint8_t *to)
{
    const uint8_t *s = from + 4;
    memcpy(to + 2 * r, from, 2);
    memcpy(to + S + 2 * r, from + 2, 2);
    for (int b = 0; b < 8; b++) {
        int i = b % 4, sc = s[i] & 63, m = s[4 + i] & 63;
        if (b >= 4) {
            sc = (s[8 + i] & 15) | (s[i] >> 6 << 4);
            m = s[8 + i] >> 4 | (s[4 + i] >> 6 << 4);
        }
        to[2 * S + b * UN_LANES + r] = (uint8_t)sc;
        to[2 * S + MINS + b * UN_LANES + r] = (uint8_t)m;
    }
}

static void q4_k_one(const uint8_t *from, int r, uint8_t *to)
{
    q45_one(from, r, to);
    for (int b = 0; b < 8; b++)
        for (int k = 0; k < 32; k++)
            un_put4(to + Q4_FOURS + b * FOUR, r, k,
                    from[16 + b / 2 * 32 + k] >> b % 2 * 4 & 15);
}

static void q5_k_one(const uint8_t *from, int r, uint8_t *to)
{
    q45_one(from, r, to);
    for (int b = 0; b < 8; b++)
        for (int k = 0; k < 32; k++) {
            un_put4(to + Q4_FOURS + b * FOUR, r, k,
                    from[48 + b / 2 * 32 + k] >> b % 2 * 4 & 15);
            un_put_bits(to + Q5_ONES + b * ONE, r, k, 1, from[16 + k] >> b & 1);
        }
}

static void q6_k_one(const uint8_t *from, int r, uint8_t *to)
{
    memcpy(to + 2 * r, from + 208, 2);
    for (int i = 0; i < 16; i++)
        to[S + i * UN_LANES + r] = from[192 + i];
    for (int b = 0; b < 8; b++)
        for (int k = 0; k < 32; k++) {
            const uint8_t *low = from + b / 4 * 64 + b % 2 * 32;
            un_put4(to + Q6_FOURS + b * FOUR, r, k, low[k] >> b / 2 % 2 * 4 & 15);
            un_put_bits(to + Q6_TWOS + b * TWO, r, k, 2, two_of(from + 128, b, k));
        }
}

#define PACK(NAME, BYTES, PACKED) \
    static void NAME##_pack(const char *rows, int64_t stride, int n, int64_t cols, \
                            uint8_t *group) \
    { \
        pack(rows, stride, n, cols, BYTES, PACKED, NAME##_one, group); \
    }
PACK(q2_k, 84, 84)
PACK(q3_k, 110, 114)
PACK(q4_k, 144, 148)
PACK(q5_k, 176, 180)
PACK(q6_k, 210, 210)

UN_FORMAT(q2_k, UN_Q2_K, 256, 84, pairs, 0, 2, 1, UN_PAIR)
UN_FORMAT(q3_k, UN_Q3_K, 256, 114, signs, 128, 1, 1, UN_NO_MIN)
UN_FORMAT(q4_k, UN_Q4_K, 256, 148, nibbles_min, 0, 8, 1, UN_MIN)
UN_FORMAT(q5_k, UN_Q5_K, 256, 180, fifths_min, 0, 4, 1, UN_MIN)
UN_FORMAT(q6_k, UN_Q6_K, 256, 210, sixths, 32, 2, 2, UN_NO_MIN)
