/* The arithmetic of products: eight running sums, in one order for every row and column. */
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "op_product.h"

typedef float lanes __attribute__((vector_size(4 * OP_LANES), aligned(4)));

int64_t op_padded(int64_t k)
{
    return (k + OP_LANES - 1) / OP_LANES * OP_LANES;
}

/* rows x columns results; both are constants where this is inlined. */
static inline __attribute__((always_inline)) void block(int rows, int columns, const float *a,
                                                        const float *b, int64_t k, float *c)
{
    lanes sum[4][4] = {0};
    for (int64_t i = 0; i < k; i += OP_LANES)
        for (int r = 0; r < rows; r++)
            for (int s = 0; s < columns; s++)
                sum[r][s] += *(const lanes *)(a + r * k + i) * *(const lanes *)(b + s * k + i);
    for (int r = 0; r < rows; r++)
        for (int s = 0; s < columns; s++) {
            float total = 0;
            for (int i = 0; i < OP_LANES; i++)
                total += sum[r][s][i];
            c[r * OP_TILE + s] = total;
        }
}

/* All rows of a with a tile of columns. */
OP_FAST static void tile(const float *a, int64_t m, const float *b, int64_t k, float *c)
{
    int64_t row = 0;
    for (; row + 4 <= m; row += 4)
        for (int s = 0; s < OP_TILE; s += 2)
            block(4, 2, a + row * k, b + s * k, k, c + row * OP_TILE + s);
    for (; row < m; row++)
        for (int s = 0; s < OP_TILE; s += 4)
            block(1, 4, a + row * k, b + s * k, k, c + row * OP_TILE + s);
}

OP_FAST float op_dot(const float *a, const float *b, int64_t n)
{
    float c[OP_TILE];
    block(1, 1, a, b, n, c);
    return c[0];
}

void op_multiply(const op_product *p)
{
    int64_t k = op_padded(p->k);
    float *b = calloc((size_t)(OP_TILE * k) + OP_LANES, sizeof *b);
    float *c = op_buffer((size_t)p->m * OP_TILE, sizeof *c);
    if (b == NULL)
        abort();
    for (int64_t first = 0; first < p->n; first += OP_TILE) {
        int64_t count = p->n - first < OP_TILE ? p->n - first : OP_TILE;
        p->columns(p->source, first, count, b);
        tile(p->a, p->m, b, k, c);
        for (int64_t row = 0; row < p->m; row++)
            p->take(p->sink, row, first, count, c + row * OP_TILE);
    }
    free(b);
    free(c);
}

op_precision op_cube(const nnop_call *call, aclDataType dtype)
{
    const char *down = sim_chip("rule f32-down");
    int64_t type = call->integer[0];
    if (dtype != ACL_FLOAT || type == 0 || type > 3)
        return OP_WHOLE;
    if (type == 2 || (down != NULL && strcmp(down, "f16") == 0))
        return OP_F16;
    return OP_HF32;
}

void op_round(float *values, int64_t n, op_precision precision)
{
    for (int64_t i = 0; precision == OP_F16 && i < n; i++)
        values[i] = half_to_float(float_to_half(values[i]));
    for (int64_t i = 0; precision == OP_HF32 && i < n; i++) { /* 11 bits of fraction */
        uint32_t bits = bits_of_float(values[i]);
        values[i] = float_of_bits((bits + 0x7ffu + (bits >> 12 & 1)) & ~0xfffu);
    }
}

void op_cube_math(op *o, int8_t type)
{
    op_need(o, type >= 0 && type <= 4, "cubeMathType %d", type);
    if (o->code == 0)
        o->call->integer[0] = type;
}

/* Blocks of 16 rows, and of as many columns as fit into 32 bytes; blocks that stand below each
   other come one after the other. */
static int64_t nz_width(aclDataType dtype)
{
    return 32 / (int64_t)nnop_size(dtype, 1);
}

int64_t op_nz(aclDataType dtype, int64_t rows, int64_t row, int64_t column)
{
    int64_t width = nz_width(dtype), tall = (rows + 15) / 16 * 16;
    return (column / width * tall + row) * width + column % width;
}

int64_t op_nz_elements(aclDataType dtype, int64_t rows, int64_t columns)
{
    int64_t width = nz_width(dtype);
    return (rows + 15) / 16 * 16 * ((columns + width - 1) / width * width);
}
