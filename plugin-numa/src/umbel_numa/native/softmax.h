/* What soft_max and attention have in common: which positions a mask hides, slopes of ALiBi,
 * the exponential of one value. */
#ifndef UN_SOFTMAX_H
#define UN_SOFTMAX_H

#include "simd.h"

#define UN_SEEN (-14999.9990234375f) /* the least that does not hide: above half of MASKED */
#define UN_LOWEST (-3e38f)           /* below all scores, and finite */

/* Scores, and minus infinity where the mask hides, whatever the score is there. */
static inline xf un_hide(xf score, xf mask)
{
    xf turned = xf_or_inf(xf_sub(xf_zero(), score), xf_sub(xf_zero(), mask), -UN_SEEN);
    return xf_sub(xf_zero(), turned);
}

/* xf_exp of what is not above 0. */
static inline xf un_exp_below(xf x)
{
    xi n;
    xf q = xf_exp_parts(x, &n);
    return xf_keep_ge(xf_pow2(xf_add(q, xf_set1(1)), n), x, -87.33654f);
}

/* The largest of UN_PARTS vectors. */
static inline float un_most(const xf *v)
{
    float a[UN_LANES];
    for (int p = 0; p < UN_PARTS; p++)
        xf_store(a + p * UN_XL, v[p]);
    for (int i = 0; i < 8; i++)
        a[i] = a[i] > a[i + 8] ? a[i] : a[i + 8];
    for (int i = 0; i < 4; i++)
        a[i] = a[i] > a[i + 4] ? a[i] : a[i + 4];
    float one = a[0] > a[2] ? a[0] : a[2], two = a[1] > a[3] ? a[1] : a[3];
    return one > two ? one : two;
}

static inline float un_total(const xf *v)
{
    float lanes[UN_LANES];
    for (int p = 0; p < UN_PARTS; p++)
        xf_store(lanes + p * UN_XL, v[p]);
    return un_sum16(lanes);
}

static inline float un_first(xf v)
{
    float lanes[UN_XL];
    xf_store(lanes, v);
    return lanes[0];
}

static inline float un_exp(float x) { return un_first(xf_exp(xf_set1(x))); }

/* What head h of so many multiplies its mask by; past a power of two, the odd steps between. */
static inline float un_slope(int64_t h, int64_t heads, float max_bias)
{
    if (max_bias == 0)
        return 1.0f;
    int64_t whole = 1;
    while (2 * whole <= heads)
        whole *= 2;
    float step = h < whole ? (float)(h + 1) : (float)(h - whole) + 0.5f;
    return exp2f(-max_bias / (float)whole * step);
}

#endif
