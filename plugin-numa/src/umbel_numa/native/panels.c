/* Unpacked blocks: against many tokens, and as floats. */
#include "blocks.h"
#ifdef UN_I8MM
#include "blocks_i8mm.h"
#define UN_TO_ALL(k, d, start) un_paired(k, d, start)
#else
#define UN_TO_ALL(k, d, start) un_groups(k, d, 1, start)
#endif

UN_INLINE xb panel_vec(const uint8_t *group, int64_t b, int part, int j)
{
    return xb_load(((const un_panel *)group)[b].w[j] + 4 * UN_XL * part);
}

UN_INLINE un_scales panel_scales(const uint8_t *group, int64_t b, int part)
{
    const un_panel *p = (const un_panel *)group + b;
    return (un_scales){.d = {xf_load(p->d[0] + UN_XL * part), xf_load(p->d[1] + UN_XL * part)},
                       .m = xf_load(p->m + UN_XL * part),
                       .pair = xh_load(p->pair + 2 * UN_XL * part)};
}

/* The fields of un_type; a zero of 1 stands for any. */
#define PANEL(NAME, ...) \
    void UN_(panel_##NAME)(const un_dot *d, const int32_t *start) \
    { \
        static const un_type type = {panel_vec, panel_scales, __VA_ARGS__, 0}; \
        UN_TO_ALL(type, d, start); \
    }
PANEL(nibbles, 1, 8, 1, UN_NO_MIN)
PANEL(nibbles_min, 0, 8, 1, UN_MIN)
PANEL(sixths, 1, 2, 2, UN_NO_MIN)
PANEL(pairs, 0, 2, 1, UN_PAIR)

/* Where sums of products have 32 bits at once it is the same how many make a run, and with an
 * offset for signed weights these are as others. */
#define ALIKE(NAME, OTHER) \
    void UN_(panel_##NAME)(const un_dot *d, const int32_t *start) \
    { \
        UN_(panel_##OTHER)(d, start); \
    }
#if defined(UN_AVX2) && !defined(UN_AVXVNNI)
PANEL(fifths, 1, 4, 1, UN_NO_MIN)
PANEL(fifths_min, 0, 4, 1, UN_MIN)
#else
ALIKE(fifths, nibbles)
ALIKE(fifths_min, nibbles_min)
#endif
#if defined(UN_AVX512) || defined(UN_AVXVNNI)
ALIKE(signs, nibbles)
#else
PANEL(signs, 128, 1, 1, UN_NO_MIN)
#endif

/* What un_begin gives for `count` blocks of all tokens, where un_first asks for it. */
static void begin(const un_type *k, const un_dot *d, int64_t b, int count, int32_t *start)
{
    const int32_t zero = k->zero == 128 ? UN_DOT8_OFFSET : k->zero;
    for (int t = 0; zero && t < d->tokens; t++, start += 2 * UN_DEPTH) {
        const int16_t *sum = d->x.sum + 2 * (t * d->x.blocks + b);
        for (int i = 0; k->halves == 2 && i < 2 * count; i++)
            start[i] = UN_MAGIC - zero * sum[i];
        for (int i = 0; k->halves == 1 && i < count; i++)
            start[i] = UN_MAGIC - zero * (sum[2 * i] + sum[2 * i + 1]);
    }
}

void UN_(many)(const un_type *k, un_unpacker *unpack, un_panel_dot *dot, const un_dot *d)
{
    _Alignas(64) un_panel panel[2][UN_DEPTH];
    _Alignas(64) int32_t start[UN_MANY * 2 * UN_DEPTH];
    un_dot part = *d;
    part.group = (const uint8_t *)panel;
    part.group_bytes = sizeof panel[0];
    part.from = 0;
    for (int64_t b = d->from; b < d->to; b += UN_DEPTH) {
        int count = (int)(d->to - b < UN_DEPTH ? d->to - b : UN_DEPTH);
        for (int g = 0; g < d->groups; g++)
            for (int i = 0; i < count; i++)
                unpack(d->group + g * d->group_bytes, b + i, &panel[g][i]);
        begin(k, d, b, count, start);
        part.to = count;
        part.x.q = (const int8_t *)d->x.q + 32 * b;
        part.x.d = d->x.d + b;
        part.x.s = d->x.s + b;
        part.x.sum = d->x.sum + 2 * b;
        part.more = d->more || b > d->from;
        dot(&part, start);
    }
}

void UN_(panel_floats)(const un_type *k, un_unpacker *unpack, const uint8_t *group, int64_t b,
                       float *out)
{
    un_panel p;
    unpack(group, b, &p);
    for (int i = 0; i < 32; i++)
        for (int r = 0; r < UN_LANES; r++) {
            int h = i / 16;
            int q = p.w[i / 4][4 * r + i % 4] - k->zero;
            float v = (float)q * p.d[k->halves == 2 ? h : 0][r];
            if (k->min == UN_MIN)
                v += p.m[r];
            if (k->min == UN_PAIR)
                v += (float)p.pair[2 * r + h] * p.m[r];
            out[i * UN_LANES + r] = v;
        }
}

void UN_(panel_row)(const un_type *k, un_unpacker *unpack, const uint8_t *group, int lane,
                    int64_t cols, float *out)
{
    float all[32 * UN_LANES];
    for (int64_t b = 0; b < cols / 32; b++) {
        UN_(panel_floats)(k, unpack, group, b, all);
        for (int i = 0; i < 32; i++)
            out[32 * b + i] = all[i * UN_LANES + lane];
    }
}
