/* NEON's own ways to the integers of blocks.h, which includes this. */
#ifndef UN_BLOCKS_NEON_H
#define UN_BLOCKS_NEON_H

#include "simd.h"

/* s[t] += the products of 4 vectors of signed weights with 16 values of each token; rows lie
 * n bytes apart. The values are loaded at once and named by lane; xs_dot copies each 4 of them
 * to all lanes, which costs as much as the product. */
UN_INLINE void un_lanes(xi *s, const xb *w, const int8_t *x, int64_t n, const int T, int last)
{
    int8x16_t v[4];
    UN_UNROLL for (int j = 0; j < 4; j++)
        v[j] = vreinterpretq_s8_u8(w[j]);
    UN_UNROLL for (int t = 0; t < T; t++) {
        int8x16_t k = vld1q_s8(x + un_token(t, T, last) * n);
        s[t] = vdotq_laneq_s32(s[t], v[0], k, 0);
        s[t] = vdotq_laneq_s32(s[t], v[1], k, 1);
        s[t] = vdotq_laneq_s32(s[t], v[2], k, 2);
        s[t] = vdotq_laneq_s32(s[t], v[3], k, 3);
    }
}

#endif
