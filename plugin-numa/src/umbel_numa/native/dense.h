/* Products with rows of floats, and of what is read as floats row by row. */
#ifndef UN_DENSE_H
#define UN_DENSE_H

#include "rawrows.h"

/* Rows from <= r < to of a matrix (the row 0 is at `matrix`; n[3], s[2], s[3] and the type are
 * those of w) times a list of tokens: out[t][r] = the sum over k of w[r][k] x[t][k], in 16
 * partial sums (un_dot_f32's order). `room` holds un_dense_room(w) bytes. */
typedef struct un_dense {
    const un_tensor *w;
    const char *matrix;
    int64_t from, to;
    int64_t tokens;
    const float *const *x;
    float *const *out;
    float *room;
} un_dense;

void UN_(dense_rows)(const un_dense *d);

size_t UN_(dense_room)(const un_tensor *w);

#endif
