/* AVX2, FMA and F16C: 8 lanes. With AVX-VNNI (UN_AVXVNNI) the products of bytes are one
 * instruction as well. */
#include <immintrin.h>

#ifdef UN_AVXVNNI
enum { UN_XL = 8, UN_DOT8_OFFSET = 128 };
#else
enum { UN_XL = 8, UN_DOT8_OFFSET = 0 };
#endif
typedef __m256 xf;
typedef __m256i xi;
typedef __m256i xb;
typedef __m256i xh;

static inline xf xf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void xf_store(float *p, xf v) { _mm256_storeu_ps(p, v); }
static inline xf xf_set1(float x) { return _mm256_set1_ps(x); }
static inline xf xf_zero(void) { return _mm256_setzero_ps(); }
static inline xf xf_add(xf a, xf b) { return _mm256_add_ps(a, b); }
static inline xf xf_sub(xf a, xf b) { return _mm256_sub_ps(a, b); }
static inline xf xf_mul(xf a, xf b) { return _mm256_mul_ps(a, b); }
static inline xf xf_div(xf a, xf b) { return _mm256_div_ps(a, b); }
static inline xf xf_max(xf a, xf b) { return _mm256_max_ps(a, b); }
static inline xf xf_min(xf a, xf b) { return _mm256_min_ps(a, b); }
static inline xf xf_abs(xf a) { return _mm256_andnot_ps(xf_set1(-0.0f), a); }
static inline xf xf_copysign(xf a, xf s)
{
    return _mm256_or_ps(xf_abs(a), _mm256_and_ps(xf_set1(-0.0f), s));
}
static inline xf xf_sqrt(xf a) { return _mm256_sqrt_ps(a); }
static inline xf xf_fma(xf a, xf b, xf c) { return _mm256_fmadd_ps(a, b, c); }
static inline xf xf_of_xi(xi v) { return _mm256_cvtepi32_ps(v); }
static inline xi xi_round(xf v) { return _mm256_cvtps_epi32(v); }
static inline xf xf_load_half(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline void xf_store_half(uint16_t *p, xf v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline xf xf_load_bf16(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
#define UN_TRANSPOSES
/* Lane i of vector j becomes lane j of vector i: pairs, fours, halves. */
static inline void xf_transpose(xf *v)
{
    xf a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            b[i + 2 * k] = _mm256_shuffle_ps(a[i + k], a[i + k + 2], 0x44);
            b[i + 2 * k + 1] = _mm256_shuffle_ps(a[i + k], a[i + k + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}
/* p * 2^n, for n of the normal numbers; in two steps, as 2^128 is none */
static inline xf xf_pow2(xf p, xi n)
{
    __m256i half = _mm256_srai_epi32(n, 1), rest = _mm256_sub_epi32(n, half);
    __m256i one = _mm256_set1_epi32(127);
    __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, one), 23);
    __m256i b = _mm256_slli_epi32(_mm256_add_epi32(rest, one), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}
static inline xf xf_keep_ge(xf p, xf x, float least)
{
    return _mm256_and_ps(p, _mm256_cmp_ps(x, xf_set1(least), _CMP_NLT_UQ));
}
static inline xf xf_or_inf(xf p, xf x, float most)
{
    __m256 over = _mm256_cmp_ps(x, xf_set1(most), _CMP_GT_OQ);
    return _mm256_blendv_ps(p, xf_set1(INFINITY), over);
}

/* the float whose bits these are */
static inline xf xf_of_bits(xi v) { return _mm256_castsi256_ps(v); }
static inline xi xi_bits_of(xf v) { return _mm256_castps_si256(v); }

static inline float xf_most(xf v) /* of all lanes */
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline xi xi_zero(void) { return _mm256_setzero_si256(); }
static inline xi xi_set1(int32_t x) { return _mm256_set1_epi32(x); }
static inline xi xi_add(xi a, xi b) { return _mm256_add_epi32(a, b); }
static inline xi xi_and(xi a, xi b) { return _mm256_and_si256(a, b); }
static inline xi xi_or(xi a, xi b) { return _mm256_or_si256(a, b); }
static inline xi xi_max(xi a, xi b) { return _mm256_max_epi32(a, b); }
static inline int32_t xi_most(xi v) /* of all lanes */
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
#define xi_shl(v, n) _mm256_slli_epi32((v), (n))
#define xi_shr(v, n) _mm256_srli_epi32((v), (n))
static inline void xi_store_s8(int8_t *p, xi v)
{
    __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(h, h));
}
static inline int32_t un_sum_s8(const int8_t *p) /* of 16 */
{
    __m128i v = _mm_xor_si128(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8(-128));
    v = _mm_sad_epu8(v, _mm_setzero_si128());
    return _mm_cvtsi128_si32(v) + _mm_extract_epi16(v, 4) - 16 * 128;
}
static inline xi xi_load_u16(const uint16_t *p)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline xi xi_load_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
static inline xi xi_load_s8(const uint8_t *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

static inline xb xb_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void xb_store(uint8_t *p, xb v) { _mm256_storeu_si256((__m256i *)p, v); }
static inline xb xb_of_xi(xi v) { return v; }
static inline xb xb_set1(uint8_t x) { return _mm256_set1_epi8((char)x); }
static inline xb xb_and(xb a, xb b) { return _mm256_and_si256(a, b); }
static inline xb xb_or(xb a, xb b) { return _mm256_or_si256(a, b); }
static inline xb xb_xor(xb a, xb b) { return _mm256_xor_si256(a, b); }
/* each byte shifted by n bits */
#define xb_shr(v, n) \
    _mm256_and_si256(_mm256_srli_epi16((v), (n)), xb_set1((uint8_t)(0xff >> (n))))
#define xb_shl(v, n) \
    _mm256_and_si256(_mm256_slli_epi16((v), (n)), xb_set1((uint8_t)(0xff << (n))))
static inline xb xb_low4(xb v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
static inline xb xb_high4(xb v) { return xb_shr(v, 4); }
/* sums and products of pairs of bytes as numbers of 16 bits */
static inline xb xb_add16(xb a, xb b) { return _mm256_add_epi16(a, b); }
static inline xb xb_mul16(xb a, xb b) { return _mm256_mullo_epi16(a, b); }
/* table[v] for bytes below 16 */
static inline xb xb_lookup(const uint8_t *table, xb v)
{
    __m128i t = _mm_loadu_si128((const __m128i *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), v);
}

/* Products as simd_avx512.h says. Without AVX-VNNI two products of bytes are added in 16 bits,
 * which weights of at most 127 cannot leave (of weights up to 15 there may be 8 in a run, up to
 * 31 4, up to 64 2, else 1); of signed weights the sign goes to the activations. */
static inline int32_t un_four(const int8_t *x)
{
    int32_t v;
    memcpy(&v, x, 4);
    return v;
}
typedef xi xs;
#ifdef UN_AVXVNNI
static inline xs xs_begin(xi acc) { return acc; }
static inline xs xs_dot(xs s, xb w, const int8_t *x)
{
    return _mm256_dpbusd_avx_epi32(s, w, _mm256_set1_epi32(un_four(x)));
}
static inline xs xs_dot8(xs s, xb w, const int8_t *x) { return xs_dot(s, w, x); }
static inline xi xs_end(xi acc, xs s) { return s; }
#else
static inline xs xs_begin(xi acc) { return xi_zero(); }
static inline xs xs_add(xs s, __m256i pairs)
{
    s = _mm256_add_epi16(s, pairs);
    __asm__("" : "+x"(s)); /* adds at once; gcc would keep all products of a run for a tree */
    return s;
}
static inline xs xs_dot(xs s, xb w, const int8_t *x)
{
    return xs_add(s, _mm256_maddubs_epi16(w, _mm256_set1_epi32(un_four(x))));
}
static inline xs xs_dot8(xs s, xb w, const int8_t *x)
{
    __m256i v = _mm256_set1_epi32(un_four(x)), i = xb_xor(w, xb_set1(128));
    return xs_add(s, _mm256_maddubs_epi16(_mm256_abs_epi8(i), _mm256_sign_epi8(v, i)));
}
static inline xi xs_end(xi acc, xs s)
{
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(s, _mm256_set1_epi16(1)));
    __asm__("" : "+x"(acc));
    return acc;
}
#endif

/* acc + the product of each lane's 2 weights with the 2 values at x */
static inline xh xh_of_xi(xi v) { return v; }
static inline xh xh_load(const int16_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline xi xi_dot16(xi acc, xh w, const int16_t *x)
{
    __m256i v = _mm256_set1_epi32(un_four((const int8_t *)x));
#ifdef UN_AVXVNNI
    return _mm256_dpwssd_avx_epi32(acc, w, v);
#else
    return _mm256_add_epi32(acc, _mm256_madd_epi16(w, v));
#endif
}

/* Of each of 8 vectors the sum of its lanes, in the order of un_sum16. */
#define UN_OWN_SUMS
static inline xf xf_sums(const xf v[8])
{
    xf four[4];
    for (int i = 0; i < 4; i++) /* vectors i and i + 4: 4 lanes of each */
        four[i] = xf_add(_mm256_permute2f128_ps(v[i], v[i + 4], 0x20),
                         _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
    xf a = xf_add(_mm256_shuffle_ps(four[0], four[1], 0x44),
                  _mm256_shuffle_ps(four[0], four[1], 0xee));
    xf b = xf_add(_mm256_shuffle_ps(four[2], four[3], 0x44),
                  _mm256_shuffle_ps(four[2], four[3], 0xee));
    return xf_add(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}
