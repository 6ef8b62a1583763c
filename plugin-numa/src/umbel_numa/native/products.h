/* What products with packed weights share: where prepared activations lie, and rows of x. */
#ifndef UN_PRODUCTS_H
#define UN_PRODUCTS_H

#include "simd.h"

/* Bytes of a prepared value. */
static inline int64_t un_width(int form)
{
    return form == UN_ACT_F32 ? 4 : form == UN_ACT_I16 ? 2 : 1;
}

/* Where the parts of prepared activations lie, from `at` in a node's wdata. */
static inline un_act un_act_at(char *at, int form, int64_t rows, int64_t n)
{
    int64_t blocks = (n + 31) / 32, width = un_width(form);
    un_act a = {.n = (form == UN_ACT_I16 ? 64 : 32) * blocks, .blocks = blocks};
    a.q = at;
    at += rows * a.n * width;
    a.d = (float *)at;
    a.s = a.d + rows * blocks;
    a.sum = (int16_t *)(a.s + rows * blocks);
    return a;
}

/* Bytes of those. */
static inline int64_t un_act_bytes(int form, int64_t rows, int64_t n)
{
    un_act a = un_act_at(NULL, form, rows, n);
    return rows * (a.n * un_width(form) + 12 * a.blocks);
}

/* Row t of x, counted through all axes but the last. */
static inline const char *un_row(const un_tensor *x, int64_t t)
{
    int64_t i = t % x->n[2], rest = t / x->n[2];
    return x->data + i * x->s[2] + rest % x->n[1] * x->s[1] + rest / x->n[1] * x->s[0];
}

#endif
