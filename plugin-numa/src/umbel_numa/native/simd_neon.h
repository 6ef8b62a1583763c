/* NEON with the dot products of bytes: 4 lanes. Weights reach them as signed numbers. */
#include <arm_neon.h>

enum { UN_XL = 4, UN_DOT8_OFFSET = 0 };
typedef float32x4_t xf;
typedef int32x4_t xi;
typedef uint8x16_t xb;
typedef int16x8_t xh;

static inline xf xf_load(const float *p) { return vld1q_f32(p); }
static inline void xf_store(float *p, xf v) { vst1q_f32(p, v); }
static inline xf xf_set1(float x) { return vdupq_n_f32(x); }
static inline xf xf_zero(void) { return vdupq_n_f32(0); }
static inline xf xf_add(xf a, xf b) { return vaddq_f32(a, b); }
static inline xf xf_sub(xf a, xf b) { return vsubq_f32(a, b); }
static inline xf xf_mul(xf a, xf b) { return vmulq_f32(a, b); }
static inline xf xf_div(xf a, xf b) { return vdivq_f32(a, b); }
/* of NaN and a number the second, as x86 has it */
static inline xf xf_max(xf a, xf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline xf xf_min(xf a, xf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline xf xf_abs(xf a) { return vabsq_f32(a); }
static inline xf xf_copysign(xf a, xf s)
{
    return vbslq_f32(vdupq_n_u32(0x80000000u), s, a);
}
static inline xf xf_sqrt(xf a) { return vsqrtq_f32(a); }
static inline xf xf_fma(xf a, xf b, xf c) { return vfmaq_f32(c, a, b); }
static inline xf xf_of_xi(xi v) { return vcvtq_f32_s32(v); }
static inline xi xi_round(xf v) { return vcvtnq_s32_f32(v); }
static inline xf xf_load_half(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline void xf_store_half(uint16_t *p, xf v)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}
static inline xf xf_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
/* p * 2^n, for n of the normal numbers; in two steps, as 2^128 is none */
static inline xf xf_pow2(xf p, xi n)
{
    int32x4_t half = vshrq_n_s32(n, 1), rest = vsubq_s32(n, half), one = vdupq_n_s32(127);
    float32x4_t a = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, one), 23));
    float32x4_t b = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, one), 23));
    return vmulq_f32(vmulq_f32(p, a), b);
}
static inline xf xf_keep_ge(xf p, xf x, float least)
{
    return vbslq_f32(vcltq_f32(x, xf_set1(least)), xf_zero(), p);
}
static inline xf xf_or_inf(xf p, xf x, float most)
{
    return vbslq_f32(vcgtq_f32(x, xf_set1(most)), xf_set1(INFINITY), p);
}

/* the float whose bits these are */
static inline xf xf_of_bits(xi v) { return vreinterpretq_f32_s32(v); }
static inline xi xi_bits_of(xf v) { return vreinterpretq_s32_f32(v); }

static inline float xf_most(xf v) { return vmaxnmvq_f32(v); } /* of all lanes */

static inline xi xi_zero(void) { return vdupq_n_s32(0); }
static inline xi xi_set1(int32_t x) { return vdupq_n_s32(x); }
static inline xi xi_add(xi a, xi b) { return vaddq_s32(a, b); }
static inline xi xi_and(xi a, xi b) { return vandq_s32(a, b); }
static inline xi xi_or(xi a, xi b) { return vorrq_s32(a, b); }
static inline xi xi_max(xi a, xi b) { return vmaxq_s32(a, b); }
static inline int32_t xi_most(xi v) { return vmaxvq_s32(v); } /* of all lanes */
static inline xi xi_shl(xi a, int n)
{
    return vreinterpretq_s32_u32(vreinterpretq_u32_s32(a) << (uint32_t)n);
}
static inline xi xi_shr(xi a, int n)
{
    return vreinterpretq_s32_u32(vreinterpretq_u32_s32(a) >> (uint32_t)n);
}
static inline void xi_store_s8(int8_t *p, xi v)
{
    int16x4_t half = vqmovn_s32(v);
    int8x8_t bytes = vqmovn_s16(vcombine_s16(half, half));
    int32_t four = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
    memcpy(p, &four, 4);
}
static inline int32_t un_sum_s8(const int8_t *p) { return vaddlvq_s8(vld1q_s8(p)); } /* of 16 */
static inline xi xi_load_u16(const uint16_t *p)
{
    return vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p)));
}
/* 4 neighbouring bytes, wherever they lie */
static inline int32_t un_four(const void *x)
{
    int32_t v;
    memcpy(&v, x, 4);
    return v;
}
static inline xi xi_load_u8(const uint8_t *p)
{
    uint8x8_t v = vreinterpret_u8_s32(vdup_n_s32(un_four(p)));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(v))));
}
static inline xi xi_load_s8(const uint8_t *p)
{
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(un_four(p))))));
}

static inline xb xb_load(const uint8_t *p) { return vld1q_u8(p); }
static inline void xb_store(uint8_t *p, xb v) { vst1q_u8(p, v); }
static inline xb xb_of_xi(xi v) { return vreinterpretq_u8_s32(v); }
static inline xb xb_set1(uint8_t x) { return vdupq_n_u8(x); }
static inline xb xb_and(xb a, xb b) { return vandq_u8(a, b); }
static inline xb xb_or(xb a, xb b) { return vorrq_u8(a, b); }
static inline xb xb_xor(xb a, xb b) { return veorq_u8(a, b); }
static inline xb xb_shr(xb v, int n) { return v >> (uint8_t)n; }
static inline xb xb_shl(xb v, int n) { return v << (uint8_t)n; }
static inline xb xb_low4(xb v) { return vandq_u8(v, vdupq_n_u8(15)); }
static inline xb xb_high4(xb v) { return vshrq_n_u8(v, 4); }
/* sums and products of pairs of bytes as numbers of 16 bits */
static inline xb xb_add16(xb a, xb b)
{
    return vreinterpretq_u8_u16(vaddq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
}
static inline xb xb_mul16(xb a, xb b)
{
    return vreinterpretq_u8_u16(vmulq_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
}
/* table[v] for bytes below 16 */
static inline xb xb_lookup(const uint8_t *table, xb v)
{
    return vqtbl1q_u8(vld1q_u8(table), v);
}

/* Products as simd_avx512.h says. */
typedef xi xs;
static inline xs xs_begin(xi acc) { return acc; }
static inline xs xs_dot(xs s, xb w, const int8_t *x)
{
    return vdotq_s32(s, vreinterpretq_s8_u8(w), vreinterpretq_s8_s32(xi_set1(un_four(x))));
}
static inline xs xs_dot8(xs s, xb w, const int8_t *x)
{
    return xs_dot(s, xb_xor(w, xb_set1(128)), x);
}
static inline xi xs_end(xi acc, xs s) { return s; }

/* acc + the product of each lane's 2 weights with the 2 values at x */
static inline xh xh_of_xi(xi v) { return vreinterpretq_s16_s32(v); }
static inline xh xh_load(const int16_t *p) { return vld1q_s16(p); }
static inline xi xi_dot16(xi acc, xh w, const int16_t *x)
{
    int16x8_t v = vreinterpretq_s16_s32(xi_set1(un_four(x)));
    int32x4_t low = vmull_s16(vget_low_s16(w), vget_low_s16(v)), high = vmull_high_s16(w, v);
    return vaddq_s32(acc, vpaddq_s32(low, high));
}

/* Of each of 4 vectors the sum of its lanes, in the order of un_sum16. */
#define UN_OWN_SUMS
static inline xf xf_sums(const xf v[4])
{
    float32x2_t half[4]; /* lanes 0 + 2 and 1 + 3 */
    for (int i = 0; i < 4; i++)
        half[i] = vadd_f32(vget_low_f32(v[i]), vget_high_f32(v[i]));
    return vpaddq_f32(vcombine_f32(half[0], half[1]), vcombine_f32(half[2], half[3]));
}

/* Lane i of vector j becomes lane j of vector i. */
#define UN_TRANSPOSES
static inline void xf_transpose(xf *v)
{
    float32x4x2_t a = vtrnq_f32(v[0], v[1]), b = vtrnq_f32(v[2], v[3]);
    v[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    v[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    v[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    v[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}
