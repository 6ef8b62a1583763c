/* Rows as floats: of plain types with any strides, of q8_0, and of the types that have no
 * packed layout, block by block. The values are, bit for bit, those of the gguf package: the
 * same factors, multiplied in the same order. The package's grids are handed over at run time.
 *
 * Types that have a packed layout are read here only where there was no memory for it. */
#include "rawrows.h"
#include "rows.h"

static uint16_t u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static uint32_t u32(const uint8_t *p) { return u16(p) | (uint32_t)u16(p + 2) << 16; }

/* 8 signs of which 7 are stored; the number of minus signs is even. */
static unsigned signs8(unsigned seven)
{
    return seven | (unsigned)__builtin_parity(seven) << 7;
}

/* n <= 8 values of a grid times a scale; bit i of `minus` is the sign of value i */
static void signed_grid(float scale, const int8_t *grid, unsigned minus, int n, float *out)
{
    for (int i = 0; i < n; i++)
        out[i] = scale * grid[i] * (minus >> i & 1 ? -1.0f : 1.0f);
}

static void iq2_xxs(const uint8_t *p, const int8_t *grid, float *out)
{
    float d = un_half(u16(p));
    for (int g = 0; g < 32; g++) {
        const uint8_t *q = p + 2 + g / 4 * 8;
        uint32_t rest = u32(q + 4);
        float scale = d * (0.5f + (float)(rest >> 28)) * 0.25f;
        unsigned minus = signs8(rest >> g % 4 * 7 & 127);
        signed_grid(scale, grid + 8 * q[g % 4], minus, 8, out + 8 * g);
    }
}

static void iq2_xs(const uint8_t *p, const int8_t *grid, float *out)
{
    float d = un_half(u16(p));
    for (int g = 0; g < 32; g++) {
        unsigned q = u16(p + 2 + 2 * g);
        float scale = d * (0.5f + (float)(p[66 + g / 4] >> g / 2 % 2 * 4 & 15)) * 0.25f;
        signed_grid(scale, grid + 8 * (q & 511), signs8(q >> 9), 8, out + 8 * g);
    }
}

static void iq2_s(const uint8_t *p, const int8_t *grid, float *out)
{
    float d = un_half(u16(p));
    for (int g = 0; g < 32; g++) {
        int q = p[2 + g] | (p[66 + g / 4] >> g % 4 * 2 & 3) << 8;
        float scale = d * (0.5f + (float)(p[74 + g / 4] >> g / 2 % 2 * 4 & 15)) * 0.25f;
        signed_grid(scale, grid + 8 * q, p[34 + g], 8, out + 8 * g);
    }
}

static void iq3_xxs(const uint8_t *p, const int8_t *grid, float *out)
{
    float d = un_half(u16(p));
    for (int g = 0; g < 64; g++) {
        uint32_t rest = u32(p + 66 + g / 8 * 4);
        float scale = d * (0.5f + (float)(rest >> 28)) * 0.5f;
        unsigned minus = signs8(rest >> g / 2 % 4 * 7 & 127) >> g % 2 * 4;
        signed_grid(scale, grid + 4 * p[2 + g], minus, 4, out + 4 * g);
    }
}

static void iq3_s(const uint8_t *p, const int8_t *grid, float *out)
{
    float d = un_half(u16(p));
    for (int g = 0; g < 64; g++) {
        int q = p[2 + g] | (p[66 + g / 8] >> g % 8 & 1) << 8;
        float scale = d * (float)(1 + 2 * (p[106 + g / 16] >> g / 8 % 2 * 4 & 15));
        signed_grid(scale, grid + 4 * q, p[74 + g / 2] >> g % 2 * 4, 4, out + 4 * g);
    }
}

/* 8 values of a grid, all moved by an eighth up or down */
static void moved_grid(float scale, const int8_t *grid, int down, float *out)
{
    for (int i = 0; i < 8; i++)
        out[i] = scale * (grid[i] + (down ? -0.125f : 0.125f));
}

static void iq1_s(const uint8_t *p, const int8_t *grid, float *out)
{
    float d = un_half(u16(p));
    for (int g = 0; g < 32; g++) {
        unsigned high = u16(p + 34 + g / 4 * 2);
        unsigned q = p[2 + g] | (high >> g % 4 * 3 & 7) << 8;
        float scale = d * (float)(2 * (high >> 12 & 7) + 1);
        moved_grid(scale, grid + 8 * q, high >> 15, out + 8 * g);
    }
}

/* The scale's 16 bits are the highest 4 of each of the 4 words of small scales. */
static void iq1_m(const uint8_t *p, const int8_t *grid, float *out)
{
    unsigned bits = 0;
    for (int i = 0; i < 4; i++)
        bits |= u16(p + 48 + 2 * i) >> 12 << 4 * i;
    float d = un_half((uint16_t)bits);
    for (int g = 0; g < 32; g++) {
        unsigned high = p[32 + g / 2] >> g % 2 * 4, small = u16(p + 48 + g / 8 * 2);
        float scale = d * (float)(2 * (small >> g / 2 % 4 * 3 & 7) + 1);
        moved_grid(scale, grid + 8 * (p[g] | (high & 7) << 8), high & 8, out + 8 * g);
    }
}

/* `bytes` bytes of `digits` digits of base 3 each, the first digits of all bytes first */
static float *digits3(float d, const uint8_t *p, int bytes, int digits, float *out)
{
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    for (int m = 0; m < digits; m++)
        for (int i = 0; i < bytes; i++)
            *out++ = d * (float)(((uint8_t)(p[i] * powers[m]) * 3 >> 8) - 1);
    return out;
}

static void tq1_0(const uint8_t *p, const int8_t *grid, float *out)
{
    float d = un_half(u16(p + 52));
    out = digits3(d, p, 32, 5, out);
    out = digits3(d, p + 32, 16, 5, out);
    digits3(d, p + 48, 4, 4, out);
}

static void tq2_0(const uint8_t *p, const int8_t *grid, float *out)
{
    float d = un_half(u16(p + 64));
    for (int k = 0; k < 256; k++)
        out[k] = d * (float)((p[k / 128 * 32 + k % 32] >> k / 32 % 4 * 2 & 3) - 1);
}

/* Half of an unsigned float with 4 bits of exponent and 3 of mantissa. */
static float e4m3(uint8_t x)
{
    int exponent = x >> 3 & 15, mantissa = x & 7;
    if (x == 0x7f)
        return 0;
    if (!exponent)
        return (float)mantissa * 0x1p-10f;
    return ldexpf(1.0f + (float)mantissa / 8.0f, exponent - 8);
}

static void nvfp4(const uint8_t *p, const int8_t *values, float *out)
{
    for (int k = 0; k < 64; k++) {
        uint8_t byte = p[4 + k / 16 * 8 + k % 8];
        out[k] = e4m3(p[k / 16]) * (float)values[k % 16 < 8 ? byte & 15 : byte >> 4];
    }
}

static void q8_0(const uint8_t *p, const int8_t *grid, float *out)
{
    un_q8_blocks((const char *)p, 32, out);
}

typedef void decoder(const uint8_t *block, const int8_t *table, float *out);

static const struct {
    decoder *decode;
    int values;
} decoders[64] = {
    [8] = {q8_0, 32},     [16] = {iq2_xxs, 256}, [17] = {iq2_xs, 256}, [18] = {iq3_xxs, 256},
    [19] = {iq1_s, 256},  [21] = {iq3_s, 256},   [22] = {iq2_s, 256},  [29] = {iq1_m, 256},
    [34] = {tq1_0, 256},  [35] = {tq2_0, 256},   [40] = {nvfp4, 64},
};

enum { GROUP = 16 * 256 }; /* more than a block of 16 rows takes, of any type */
extern const un_kernels UN_(kernels);

/* A row by way of a packed group for each block, so that there is one decoder of each type. */
static void packed_blocks(int type, const char *row, int64_t stride, int64_t n, float *out)
{
    const un_format *const *f = UN_(kernels).formats;
    _Alignas(64) uint8_t group[GROUP];
    while ((*f)->type != type)
        f++;
    for (int64_t k = 0; k < n; k += (*f)->block, row += stride) {
        memset(group, 0, (size_t)(UN_LANES * (*f)->bytes));
        (*f)->pack(row, 0, 1, (*f)->block, group);
        (*f)->row(group, 0, (*f)->block, out + k);
    }
}

void UN_(row_floats)(int type, const char *row, int64_t stride, int64_t n, float *out)
{
    if (type == UN_F32 || type == UN_F16 || type == UN_BF16) {
        un_values(row, type, stride, 0, n, out);
        return;
    }
    if (!decoders[type].decode) {
        packed_blocks(type, row, stride, n, out);
        return;
    }
    int values = decoders[type].values;
    for (int64_t k = 0; k < n; k += values, row += stride)
        decoders[type].decode((const uint8_t *)row, un_tables[type], out + k);
}
