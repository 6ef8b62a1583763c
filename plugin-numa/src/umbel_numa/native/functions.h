/* Pieces of operations that fused steps use as well: the same code, and so the same bits. */
#ifndef UN_FUNCTIONS_H
#define UN_FUNCTIONS_H

#include "un.h"

/* gate = the gated linear unit of gate and up, n values; op is UN_OP_swiglu or the like */
void UN_(glu)(int op, float *gate, const float *up, int64_t n);

/* x / sqrt(mean(x^2) + eps) * weight, of one row of n values */
void UN_(rms_norm_row)(float *out, const float *x, const float *weight, int64_t n, float eps);

/* A head of `size` values whose first `dims` are turned: neighbours are pairs, or halves. x and
 * out may be the same. */
void UN_(turn_head)(float *out, const float *x, const float *cosine, const float *sine,
                    int64_t dims, int64_t size, int neighbours);

#endif
