/* Unpacked blocks against many tokens. */
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

#define PANEL(NAME, ...) \
    void UN_(panel_##NAME)(const un_dot *d, const int32_t *start) \
    { \
        static const un_type type = {panel_vec, panel_scales, __VA_ARGS__, 0}; \
        UN_TO_ALL(type, d, start); \
    }
UN_PANELS(PANEL)
