/* Matrix products in float32: the sums of products that all matrix operators are made of. */
#ifndef OP_PRODUCT_H
#define OP_PRODUCT_H

#include "op.h"

enum { OP_LANES = 8, OP_TILE = 16 };

/* result(m, n) = sum over k of a(m, k) * column n of the other matrix. Rows of a and columns
   have `op_padded(k)` floats, the last ones 0. */
typedef struct {
    int64_t m, n, k;
    const float *a;
    /* Writes `count` columns, at most OP_TILE, from `first` on; the padding is 0 already. */
    void (*columns)(const void *source, int64_t first, int64_t count, float *to);
    const void *source;
    /* Takes `count` results of a row. */
    void (*take)(const void *sink, int64_t row, int64_t first, int64_t count, float *values);
    const void *sink;
} op_product;

void op_multiply(const op_product *product);
int64_t op_padded(int64_t k);
float op_dot(const float *a, const float *b, int64_t n); /* n: padded */

/* What a cube unit makes of float32 before it multiplies, from cubeMathType and the chip. */
typedef enum { OP_WHOLE, OP_F16, OP_HF32 } op_precision;

op_precision op_cube(const nnop_call *call, aclDataType dtype);
void op_round(float *values, int64_t n, op_precision precision);

/* Notes a cubeMathType that there is not, and keeps it for op_cube in call->integer[0]. */
void op_cube_math(op *o, int8_t type);

/* The element (row, column) of a matrix of so many rows in the layout FRACTAL_NZ. */
int64_t op_nz(aclDataType dtype, int64_t rows, int64_t row, int64_t column);
int64_t op_nz_elements(aclDataType dtype, int64_t rows, int64_t columns);

#endif
