/* AVX-512 (F, BW, DQ, VL, VNNI): 16 lanes. */
#include <immintrin.h>

enum { UN_XL = 16, UN_DOT8_OFFSET = 128 };
typedef __m512 xf;
typedef __m512i xi;
typedef __m512i xb;
typedef __m512i xh;

static inline xf xf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void xf_store(float *p, xf v) { _mm512_storeu_ps(p, v); }
static inline xf xf_set1(float x) { return _mm512_set1_ps(x); }
static inline xf xf_zero(void) { return _mm512_setzero_ps(); }
static inline xf xf_add(xf a, xf b) { return _mm512_add_ps(a, b); }
static inline xf xf_sub(xf a, xf b) { return _mm512_sub_ps(a, b); }
static inline xf xf_mul(xf a, xf b) { return _mm512_mul_ps(a, b); }
static inline xf xf_div(xf a, xf b) { return _mm512_div_ps(a, b); }
static inline xf xf_max(xf a, xf b) { return _mm512_max_ps(a, b); }
static inline xf xf_min(xf a, xf b) { return _mm512_min_ps(a, b); }
static inline xf xf_abs(xf a) { return _mm512_abs_ps(a); }
static inline xf xf_copysign(xf a, xf s)
{
    return _mm512_or_ps(xf_abs(a), _mm512_and_ps(xf_set1(-0.0f), s));
}
static inline xf xf_sqrt(xf a) { return _mm512_sqrt_ps(a); }
static inline xf xf_fma(xf a, xf b, xf c) { return _mm512_fmadd_ps(a, b, c); }
static inline xf xf_of_xi(xi v) { return _mm512_cvtepi32_ps(v); }
static inline xi xi_round(xf v) { return _mm512_cvtps_epi32(v); }
static inline xf xf_load_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void xf_store_half(uint16_t *p, xf v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline xf xf_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
#define UN_TRANSPOSES
/* Lane i of vector j becomes lane j of vector i: pairs, fours, then quarters of the vectors. */
static inline void xf_transpose(xf *v)
{
    xf a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; k++) {
            b[i + 2 * k] = _mm512_shuffle_ps(a[i + k], a[i + k + 2], 0x44);
            b[i + 2 * k + 1] = _mm512_shuffle_ps(a[i + k], a[i + k + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        xf x = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
        xf y = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
        xf z = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
        xf w = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
        v[i] = _mm512_shuffle_f32x4(x, z, 0x88);
        v[i + 4] = _mm512_shuffle_f32x4(y, w, 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(x, z, 0xdd);
        v[i + 12] = _mm512_shuffle_f32x4(y, w, 0xdd);
    }
}
/* p * 2^n, for n of the normal numbers */
static inline xf xf_pow2(xf p, xi n) { return _mm512_scalef_ps(p, _mm512_cvtepi32_ps(n)); }
static inline xf xf_keep_ge(xf p, xf x, float least)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, xf_set1(least), _CMP_NLT_UQ), p);
}
static inline xf xf_or_inf(xf p, xf x, float most)
{
    __mmask16 over = _mm512_cmp_ps_mask(x, xf_set1(most), _CMP_GT_OQ);
    return _mm512_mask_mov_ps(p, over, xf_set1(INFINITY));
}

/* the float whose bits these are */
static inline xf xf_of_bits(xi v) { return _mm512_castsi512_ps(v); }
static inline xi xi_bits_of(xf v) { return _mm512_castps_si512(v); }

static inline float xf_most(xf v) { return _mm512_reduce_max_ps(v); } /* of all lanes */

static inline xi xi_zero(void) { return _mm512_setzero_si512(); }
static inline xi xi_set1(int32_t x) { return _mm512_set1_epi32(x); }
static inline xi xi_add(xi a, xi b) { return _mm512_add_epi32(a, b); }
static inline xi xi_and(xi a, xi b) { return _mm512_and_si512(a, b); }
static inline xi xi_or(xi a, xi b) { return _mm512_or_si512(a, b); }
static inline xi xi_max(xi a, xi b) { return _mm512_max_epi32(a, b); }
static inline int32_t xi_most(xi v) { return _mm512_reduce_max_epi32(v); } /* of all lanes */
#define xi_shl(v, n) _mm512_slli_epi32((v), (n))
#define xi_shr(v, n) _mm512_srli_epi32((v), (n))
static inline void xi_store_s8(int8_t *p, xi v)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtsepi32_epi8(v));
}
static inline int32_t un_sum_s8(const int8_t *p) /* of 16 */
{
    __m128i v = _mm_xor_si128(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8(-128));
    v = _mm_sad_epu8(v, _mm_setzero_si128());
    return _mm_cvtsi128_si32(v) + _mm_extract_epi16(v, 4) - 16 * 128;
}
static inline xi xi_load_u16(const uint16_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}
static inline xi xi_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline xi xi_load_s8(const uint8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

static inline xb xb_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
static inline void xb_store(uint8_t *p, xb v) { _mm512_storeu_si512(p, v); }
static inline xb xb_of_xi(xi v) { return v; }
static inline xb xb_set1(uint8_t x) { return _mm512_set1_epi8((char)x); }
static inline xb xb_and(xb a, xb b) { return _mm512_and_si512(a, b); }
static inline xb xb_or(xb a, xb b) { return _mm512_or_si512(a, b); }
static inline xb xb_xor(xb a, xb b) { return _mm512_xor_si512(a, b); }
/* each byte shifted by n bits */
#define xb_shr(v, n) \
    _mm512_and_si512(_mm512_srli_epi16((v), (n)), xb_set1((uint8_t)(0xff >> (n))))
#define xb_shl(v, n) \
    _mm512_and_si512(_mm512_slli_epi16((v), (n)), xb_set1((uint8_t)(0xff << (n))))
static inline xb xb_low4(xb v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
static inline xb xb_high4(xb v) { return xb_shr(v, 4); }
/* sums and products of pairs of bytes as numbers of 16 bits */
static inline xb xb_add16(xb a, xb b) { return _mm512_add_epi16(a, b); }
static inline xb xb_mul16(xb a, xb b) { return _mm512_mullo_epi16(a, b); }
/* table[v] for bytes below 16 */
static inline xb xb_lookup(const uint8_t *table, xb v)
{
    __m128i t = _mm_loadu_si128((const __m128i *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), v);
}

/* A run of products whose sum goes to acc at its end: of each lane's 4 weights with the 4
 * values at x. Of xs_dot weights are at most 127, of xs_dot8 they are the signed weights + 128,
 * where acc begins with the sum of the x times -UN_DOT8_OFFSET. On other processors a run has
 * 16 bits for two products, in which as many fit as the weights allow. */
static inline int32_t un_four(const int8_t *x)
{
    int32_t v;
    memcpy(&v, x, 4);
    return v;
}
typedef xi xs;
static inline xs xs_begin(xi acc) { return acc; }
static inline xs xs_dot(xs s, xb w, const int8_t *x)
{
    return _mm512_dpbusd_epi32(s, w, _mm512_set1_epi32(un_four(x)));
}
static inline xs xs_dot8(xs s, xb w, const int8_t *x) { return xs_dot(s, w, x); }
static inline xi xs_end(xi acc, xs s) { return s; }

/* acc + the product of each lane's 2 weights with the 2 values at x */
static inline xh xh_of_xi(xi v) { return v; }
static inline xh xh_load(const int16_t *p) { return _mm512_loadu_si512(p); }
static inline xi xi_dot16(xi acc, xh w, const int16_t *x)
{
    return _mm512_dpwssd_epi32(acc, w, _mm512_set1_epi32(un_four((const int8_t *)x)));
}

/* Of each of 16 vectors the sum of its lanes, in the order of un_sum16. */
#define UN_OWN_SUMS
static inline xf xf_sums(const xf v[16])
{
    xf four[4];
    for (int i = 0; i < 4; i++) { /* vectors i, i + 4, i + 8, i + 12: 4 lanes of each */
        xf a = xf_add(_mm512_shuffle_f32x4(v[i], v[i + 4], 0x44),
                      _mm512_shuffle_f32x4(v[i], v[i + 4], 0xee));
        xf b = xf_add(_mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x44),
                      _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xee));
        four[i] = xf_add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    xf a = xf_add(_mm512_shuffle_ps(four[0], four[1], 0x44),
                  _mm512_shuffle_ps(four[0], four[1], 0xee));
    xf b = xf_add(_mm512_shuffle_ps(four[2], four[3], 0x44),
                  _mm512_shuffle_ps(four[2], four[3], 0xee));
    return xf_add(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}
