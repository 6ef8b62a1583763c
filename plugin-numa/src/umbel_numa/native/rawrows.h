/* Rows of matrices that are not packed, as floats. */
#ifndef UN_RAWROWS_H
#define UN_RAWROWS_H

#include "simd.h"

/* The tables of the types that have some, by number of the type; Python hands them over. */
extern const int8_t *un_tables[64];

/* n values of a row of any type that raw.c knows, `stride` bytes from block to block. */
void UN_(row_floats)(int type, const char *row, int64_t stride, int64_t n, float *out);

/* Whether rows of this tensor can be read as they lie. */
static inline int un_plain(const un_tensor *t) { return t->type == UN_F32 && t->s[3] == 4; }

/* A row of the tensor: where it lies, or copied to `room`. */
static inline const float *un_floats_at(const un_tensor *t, const char *row, float *room)
{
    if (un_plain(t))
        return (const float *)row;
    UN_(row_floats)(t->type, row, t->s[3], t->n[3], room);
    return room;
}

#endif
