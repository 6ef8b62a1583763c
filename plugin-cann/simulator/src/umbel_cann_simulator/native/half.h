/* float16 and bfloat16 from and to float32, rounded to the nearest, ties to even. */
#ifndef HALF_H
#define HALF_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float half_to_float(uint16_t half)
{
    uint32_t rest = half & 0x7fffu, sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t bits = bits_of_float(float_of_bits(rest << 13) * 0x1p112f); /* also subnormals */
    bits |= rest >= 0x7c00u ? 0x7f800000u : 0; /* Inf and NaN */
    return float_of_bits(bits | sign);
}

static inline uint16_t float_to_half(float value)
{
    uint32_t bits = bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    uint32_t small = bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000u;
    uint32_t normal = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13;
    uint32_t half = rest < 0x38800000u ? small : normal;
    half = rest >= 0x477ff000u ? 0x7c00u : half;
    half = rest > 0x7f800000u ? 0x7e00u : half;
    return (uint16_t)(half | sign);
}

static inline float bf16_to_float(uint16_t half)
{
    return float_of_bits((uint32_t)half << 16);
}

static inline uint16_t float_to_bf16(float value)
{
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

#endif
