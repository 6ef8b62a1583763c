/* Rows of a tensor or a cache as floats, and back: float32, float16, bfloat16 or q8_0. */
#ifndef UN_ROWS_H
#define UN_ROWS_H

#include "simd.h"

enum { UN_Q8_BYTES = 34 }; /* of a block of 32: a float16 scale and 32 int8 */

/* n float16 or bfloat16 side by side */
static inline void un_halves(int type, const uint16_t *p, int64_t n, float *out)
{
    int64_t k = 0;
    for (; k + UN_XL <= n; k += UN_XL)
        xf_store(out + k, type == UN_F16 ? xf_load_half(p + k) : xf_load_bf16(p + k));
    for (; k < n; k++)
        out[k] = type == UN_F16 ? un_half(p[k]) : un_bf16(p[k]);
}

static inline float un_scale(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
#ifdef __F16C__
    return _cvtsh_ss(h);
#else
    return un_half(h);
#endif
}

/* whole blocks of q8_0 */
static inline void un_q8_blocks(const char *p, int64_t n, float *out)
{
    for (; n > 0; n -= 32, p += UN_Q8_BYTES, out += 32) {
        const uint8_t *block = (const uint8_t *)p;
        xf d = xf_set1(un_scale(block));
        for (int k = 0; k < 32; k += UN_XL)
            xf_store(out + k, xf_mul(xf_of_xi(xi_load_s8(block + 2 + k)), d));
    }
}

/* n values of q8_0 blocks from the value `from` on */
static inline void un_q8_values(const char *row, int64_t from, int64_t n, float *out)
{
    const char *block = row + from / 32 * UN_Q8_BYTES;
    int64_t first = from % 32, k = 0;
    if (first == 0) {
        k = n / 32 * 32;
        un_q8_blocks(block, k, out);
    }
    for (; k < n; k++) {
        const char *p = block + (first + k) / 32 * UN_Q8_BYTES;
        out[k] = (float)(int8_t)p[2 + (first + k) % 32] * un_scale((const uint8_t *)p);
    }
}

/* n values of a row from the value `from` on; `step` bytes lie between neighbours. */
static inline void un_values(const char *row, int type, int64_t step, int64_t from, int64_t n,
                             float *out)
{
    const char *p = row + from * step;
    if (type == UN_Q8_0)
        un_q8_values(row, from, n, out);
    else if (type != UN_F32 && step == 2)
        un_halves(type, (const uint16_t *)p, n, out);
    else if (type == UN_F32 && step == 4)
        memcpy(out, p, (size_t)n * 4);
    else if (type == UN_F32)
        for (int64_t k = 0; k < n; k++)
            out[k] = *(const float *)(p + k * step);
    else
        for (int64_t k = 0; k < n; k++) {
            uint16_t h = *(const uint16_t *)(p + k * step);
            out[k] = type == UN_F16 ? un_half(h) : un_bf16(h);
        }
}

/* The last axis of a tensor as floats side by side: where they lie, or copied to `room`. */
static inline const float *un_floats(const un_tensor *t, const char *row, float *room)
{
    if (t->type == UN_F32 && t->s[3] == 4)
        return (const float *)row;
    un_values(row, t->type, t->s[3], 0, t->n[3], room);
    return room;
}

/* Rounded as the gguf package does it: halves away from zero, scale and inverse in float32. */
static inline void un_to_q8(char *block, const float *x)
{
    uint32_t most = 0; /* as integers: a NaN is larger than everything */
    for (int k = 0; k < 32; k++) {
        uint32_t size = un_bits_of(x[k]) & 0x7fffffff;
        most = size > most ? size : most;
    }
    float d = un_bits(most) / 127.0f, inverse = d == 0 ? 0 : 1.0f / d;
    uint16_t scale = un_to_half(d);
    memcpy(block, &scale, 2);
    for (int k = 0; k < 32; k++) {
        float v = x[k] * inverse, a = fabsf(v);
        float whole = a <= 128.0f ? (float)(int32_t)a : 0; /* neither NaN nor infinite */
        int32_t q = (int32_t)whole + (a - whole >= 0.5f);
        block[2 + k] = (char)(v < 0 ? -q : q);
    }
}

/* Writes n values as they are stored; of q8_0 whole blocks. */
static inline void un_put(char *row, int type, const float *x, int64_t n)
{
    int64_t k = 0;
    if (type == UN_F32)
        memcpy(row, x, (size_t)n * 4);
    else if (type == UN_Q8_0)
        for (; k < n; k += 32, row += UN_Q8_BYTES)
            un_to_q8(row, x + k);
    else {
        uint16_t *out = (uint16_t *)row;
        for (; k + UN_XL <= n; k += UN_XL)
            xf_store_half(out + k, xf_load(x + k));
        for (; k < n; k++)
            out[k] = un_to_half(x[k]);
    }
}

#endif
