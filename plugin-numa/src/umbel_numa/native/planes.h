/* How the bits of 32 values of 16 rows lie in a packed block. Vector j of 64 bytes holds the
 * values k = 4 j .. 4 j + 3 of each row. Planes of fewer bits than 8 hold several such vectors:
 *   nibbles: 4 vectors, vector j has the values of j and, in its upper half, of j + 4;
 *   pairs of bits: 2 vectors, of the values of j = 0 .. 3 and 4 .. 7, the first lowest;
 *   bits: 1 vector, bit j belongs to the values of j. */
#ifndef UN_PLANES_H
#define UN_PLANES_H

#include "blocks.h"

#define UN_VEC(p, part, j) ((p) + (j) * 4 * UN_LANES + (part) * 4 * UN_XL)

/* Where value k of row r lies among whole bytes. */
static inline int un_at(int r, int k) { return k / 4 * 4 * UN_LANES + 4 * r + k % 4; }

/* Puts `value` of 1 or 2 `bits` in the place of value k of row r, where zeros were. */
static inline void un_put_bits(uint8_t *p, int r, int k, int bits, int value)
{
    int per = 8 / bits, j = k / 4;
    p[j / per * 4 * UN_LANES + 4 * r + k % 4] |= (uint8_t)(value << bits * (j % per));
}

static inline void un_put4(uint8_t *p, int r, int k, int value)
{
    p[un_at(r, k % 16)] |= (uint8_t)(value << k / 16 * 4);
}

UN_INLINE xb un_nibbles(const uint8_t *p, int part, int j)
{
    xb v = xb_load(UN_VEC(p, part, j % 4));
    return j < 4 ? xb_low4(v) : xb_high4(v);
}

/* v shifted to the left, or to the right when n is below 0, and only the bits of `mask` */
UN_INLINE xb un_moved(xb v, int n, uint8_t mask)
{
    switch (n) {
#define LEFT(n) case n: v = xb_shl(v, n); break;
#define RIGHT(n) case -n: v = xb_shr(v, n); break;
    LEFT(1) LEFT(2) LEFT(3) LEFT(4)
    RIGHT(1) RIGHT(2) RIGHT(3) RIGHT(4) RIGHT(5) RIGHT(6) RIGHT(7)
#undef LEFT
#undef RIGHT
    }
    return xb_and(v, xb_set1(mask));
}

/* The bits of j at bit `at` of each byte. */
UN_INLINE xb un_bit(const uint8_t *p, int part, int j, int at)
{
    return un_moved(xb_load(UN_VEC(p, part, 0)), at - j, (uint8_t)(1 << at));
}

UN_INLINE xb un_two(const uint8_t *p, int part, int j, int at)
{
    return un_moved(xb_load(UN_VEC(p, part, j / 4)), at - j % 4 * 2, (uint8_t)(3 << at));
}

#endif
