/* Plain C: 16 lanes, the check of all others. fmaf is exact without the instruction, too. */

enum { UN_XL = 16, UN_DOT8_OFFSET = 0 };
typedef struct { float v[16]; } xf;
typedef struct { int32_t v[16]; } xi;
typedef struct { uint8_t v[64]; } xb;
typedef struct { int16_t v[32]; } xh;

#define UN_EACH(type, n, expression) \
    do { \
        type r; \
        for (int i = 0; i < (n); i++) \
            r.v[i] = (expression); \
        return r; \
    } while (0)

static inline xf xf_load(const float *p) { UN_EACH(xf, 16, p[i]); }
static inline void xf_store(float *p, xf v) { memcpy(p, v.v, sizeof v.v); }
static inline xf xf_set1(float x) { UN_EACH(xf, 16, x); }
static inline xf xf_zero(void) { return xf_set1(0); }
static inline xf xf_add(xf a, xf b) { UN_EACH(xf, 16, a.v[i] + b.v[i]); }
static inline xf xf_sub(xf a, xf b) { UN_EACH(xf, 16, a.v[i] - b.v[i]); }
static inline xf xf_mul(xf a, xf b) { UN_EACH(xf, 16, a.v[i] * b.v[i]); }
static inline xf xf_div(xf a, xf b) { UN_EACH(xf, 16, a.v[i] / b.v[i]); }
/* of NaN and a number the second, as x86 has it */
static inline xf xf_max(xf a, xf b) { UN_EACH(xf, 16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline xf xf_min(xf a, xf b) { UN_EACH(xf, 16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
static inline xf xf_abs(xf a) { UN_EACH(xf, 16, fabsf(a.v[i])); }
static inline xf xf_copysign(xf a, xf s) { UN_EACH(xf, 16, copysignf(a.v[i], s.v[i])); }
static inline xf xf_sqrt(xf a) { UN_EACH(xf, 16, sqrtf(a.v[i])); }
static inline xf xf_fma(xf a, xf b, xf c) { UN_EACH(xf, 16, fmaf(a.v[i], b.v[i], c.v[i])); }
static inline xf xf_of_xi(xi a) { UN_EACH(xf, 16, (float)a.v[i]); }
static inline xi xi_round(xf a) { UN_EACH(xi, 16, (int32_t)lrintf(a.v[i])); }
static inline xf xf_load_half(const uint16_t *p) { UN_EACH(xf, 16, un_half(p[i])); }
static inline void xf_store_half(uint16_t *p, xf a)
{
    for (int i = 0; i < 16; i++)
        p[i] = un_to_half(a.v[i]);
}
static inline xf xf_load_bf16(const uint16_t *p)
{
    xf r;
    for (int i = 0; i < 16; i++) {
        uint32_t bits = (uint32_t)p[i] << 16;
        memcpy(&r.v[i], &bits, 4);
    }
    return r;
}
/* p * 2^n, for n of the normal numbers */
static inline xf xf_pow2(xf p, xi n) { UN_EACH(xf, 16, ldexpf(p.v[i], n.v[i])); }
static inline xf xf_keep_ge(xf p, xf x, float least)
{
    UN_EACH(xf, 16, x.v[i] < least ? 0 : p.v[i]);
}
static inline xf xf_or_inf(xf p, xf x, float most)
{
    UN_EACH(xf, 16, x.v[i] > most ? INFINITY : p.v[i]);
}

/* the float whose bits these are */
static inline xf xf_of_bits(xi a)
{
    xf r;
    memcpy(&r, &a, sizeof r);
    return r;
}
static inline xi xi_bits_of(xf a)
{
    xi r;
    memcpy(&r, &a, sizeof r);
    return r;
}

static inline float xf_most(xf a) /* of all lanes */
{
    float most = a.v[0];
    for (int i = 1; i < 16; i++)
        most = a.v[i] > most ? a.v[i] : most;
    return most;
}

static inline xi xi_zero(void) { UN_EACH(xi, 16, 0); }
static inline xi xi_set1(int32_t x) { UN_EACH(xi, 16, x); }
static inline xi xi_add(xi a, xi b) { UN_EACH(xi, 16, a.v[i] + b.v[i]); }
static inline xi xi_and(xi a, xi b) { UN_EACH(xi, 16, a.v[i] & b.v[i]); }
static inline xi xi_or(xi a, xi b) { UN_EACH(xi, 16, a.v[i] | b.v[i]); }
static inline xi xi_max(xi a, xi b) { UN_EACH(xi, 16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline int32_t xi_most(xi a) /* of all lanes */
{
    int32_t most = a.v[0];
    for (int i = 1; i < 16; i++)
        most = a.v[i] > most ? a.v[i] : most;
    return most;
}
static inline xi xi_shl(xi a, int n) { UN_EACH(xi, 16, (int32_t)((uint32_t)a.v[i] << n)); }
static inline xi xi_shr(xi a, int n) { UN_EACH(xi, 16, (int32_t)((uint32_t)a.v[i] >> n)); }
static inline void xi_store_s8(int8_t *p, xi a)
{
    for (int i = 0; i < 16; i++)
        p[i] = (int8_t)(a.v[i] < -128 ? -128 : a.v[i] > 127 ? 127 : a.v[i]);
}
static inline int32_t un_sum_s8(const int8_t *p) /* of 16 */
{
    int32_t total = 0;
    for (int i = 0; i < 16; i++)
        total += p[i];
    return total;
}
static inline xi xi_load_u16(const uint16_t *p) { UN_EACH(xi, 16, p[i]); }
static inline xi xi_load_u8(const uint8_t *p) { UN_EACH(xi, 16, p[i]); }
static inline xi xi_load_s8(const uint8_t *p) { UN_EACH(xi, 16, (int8_t)p[i]); }

static inline xb xb_load(const uint8_t *p) { UN_EACH(xb, 64, p[i]); }
static inline void xb_store(uint8_t *p, xb a) { memcpy(p, a.v, sizeof a.v); }
static inline xb xb_of_xi(xi a)
{
    xb r;
    memcpy(&r, &a, sizeof r);
    return r;
}
static inline xb xb_set1(uint8_t x) { UN_EACH(xb, 64, x); }
static inline xb xb_and(xb a, xb b) { UN_EACH(xb, 64, a.v[i] & b.v[i]); }
static inline xb xb_or(xb a, xb b) { UN_EACH(xb, 64, a.v[i] | b.v[i]); }
static inline xb xb_xor(xb a, xb b) { UN_EACH(xb, 64, a.v[i] ^ b.v[i]); }
static inline xb xb_shr(xb a, int n) { UN_EACH(xb, 64, (uint8_t)(a.v[i] >> n)); }
static inline xb xb_shl(xb a, int n) { UN_EACH(xb, 64, (uint8_t)(a.v[i] << n)); }
static inline xb xb_low4(xb a) { UN_EACH(xb, 64, a.v[i] & 15); }
static inline xb xb_high4(xb a) { UN_EACH(xb, 64, a.v[i] >> 4); }
/* sums and products of pairs of bytes as numbers of 16 bits */
static inline xb xb_add16(xb a, xb b)
{
    uint16_t u[32], v[32];
    memcpy(u, &a, sizeof u), memcpy(v, &b, sizeof v);
    for (int i = 0; i < 32; i++)
        u[i] = (uint16_t)(u[i] + v[i]);
    memcpy(&a, u, sizeof u);
    return a;
}
static inline xb xb_mul16(xb a, xb b)
{
    uint16_t u[32], v[32];
    memcpy(u, &a, sizeof u), memcpy(v, &b, sizeof v);
    for (int i = 0; i < 32; i++)
        u[i] = (uint16_t)((uint32_t)u[i] * v[i]);
    memcpy(&a, u, sizeof u);
    return a;
}
static inline xb xb_lookup(const uint8_t *table, xb a) { UN_EACH(xb, 64, table[a.v[i] & 15]); }

/* Products as simd_avx512.h says. */
typedef xi xs;
static inline xs xs_begin(xi acc) { return acc; }
static inline xs xs_dot(xs s, xb w, const int8_t *x)
{
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 4; k++)
            s.v[i] += w.v[4 * i + k] * x[k];
    return s;
}
static inline xs xs_dot8(xs s, xb w, const int8_t *x)
{
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 4; k++)
            s.v[i] += (w.v[4 * i + k] - 128) * x[k];
    return s;
}
static inline xi xs_end(xi acc, xs s) { return s; }
static inline xh xh_of_xi(xi a)
{
    xh r;
    memcpy(&r, &a, sizeof r);
    return r;
}
static inline xh xh_load(const int16_t *p) { UN_EACH(xh, 32, p[i]); }
static inline xi xi_dot16(xi acc, xh w, const int16_t *x)
{
    for (int i = 0; i < 16; i++)
        acc.v[i] += w.v[2 * i] * x[0] + w.v[2 * i + 1] * x[1];
    return acc;
}
