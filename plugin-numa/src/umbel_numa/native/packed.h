/* Matrices of packed weights: views of them, and the activations of single tokens. */
#ifndef UN_PACKED_H
#define UN_PACKED_H

#include "placed.h"
#include "products.h"

/* One matrix of a view: `rows` rows of one matrix of the weight, from `row` on. */
typedef struct un_matrix {
    const un_weight *w;
    int64_t index, row, rows;
    int64_t from, to; /* its groups, as the weight counts them */
} un_matrix;

/* Rows from `first` on, counted through all that are packed together; at most `rows`, and those
 * of one matrix. */
static inline un_matrix un_matrix_at(const un_weight *w, int64_t first, int64_t rows)
{
    int64_t row = first % w->rows, left = w->rows - row;
    un_matrix a = {.w = w, .index = first / w->rows, .row = row};
    a.rows = rows < left ? rows : left;
    a.from = a.row / UN_LANES;
    a.to = (a.row + a.rows + UN_LANES - 1) / UN_LANES;
    return a;
}

/* Matrix m of a view whose first row is `row`. */
static inline un_matrix un_matrix_of(const un_tensor *t, int64_t row, int64_t m)
{
    int64_t ahead = m / t->n[1] * t->s[0] + m % t->n[1] * t->s[1];
    return un_matrix_at(t->weight, row + ahead / t->s[2], t->n[2]);
}

/* Puts the lanes of group g that are rows of the matrix where they belong in a row of
 * results. */
static inline void un_matrix_store(const un_matrix *a, int64_t g, const float *lanes,
                                   float *out)
{
    int64_t first = g * UN_LANES - a->row, from = first < 0 ? -first : 0;
    int64_t to = a->rows - first < UN_LANES ? a->rows - first : UN_LANES;
    memcpy(out + first + from, lanes + from, (size_t)(to - from) * 4);
}

/* The prepared activations from row t on. The sums take 4 bytes for each block. */
static inline un_act un_act_from(un_act a, int form, int64_t t)
{
    a.q = (const char *)a.q + t * a.n * un_width(form);
    a.d += t * a.blocks;
    a.s += t * a.blocks;
    a.sum = (const void *)((const char *)a.sum + t * a.blocks * 4);
    return a;
}

/* Copies row t of one to row i of the other. */
static inline void un_act_copy(un_act to, int64_t i, un_act from, int64_t t, int form)
{
    un_act a = un_act_from(to, form, i), b = un_act_from(from, form, t);
    size_t each = (size_t)a.blocks * 4;
    memcpy((void *)a.q, b.q, (size_t)(a.n * un_width(form)));
    if (form == UN_ACT_F32)
        return;
    memcpy((void *)a.d, b.d, each);
    memcpy((void *)a.s, b.s, each);
    memcpy((void *)a.sum, b.sum, each);
}

/* See prepare.c. */
void UN_(prepare_row)(un_act to, int form, const float *x, const float *norm, float eps,
                      int64_t n, float *room);

#endif
