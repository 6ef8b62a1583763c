/* Tensors as rows of elements, whatever their strides: how elementwise work is walked and
 * shared, how a row comes to lie in one piece, and how it is summed. */
#ifndef UN_STRIDED_H
#define UN_STRIDED_H

#include "simd.h"

enum { UN_WALKED = 3 }; /* tensors that are walked together */

/* The result and up to two operands, with as few axes as their strides allow: what is
 * contiguous everywhere is one long row. Rows are shared by whole pieces of 16 elements. */
typedef struct un_walk {
    int64_t n[4], s[UN_WALKED][4]; /* bytes; 0 where an operand is broadcast */
    char *data[UN_WALKED];
    int64_t unit, end, per_row;    /* the pieces of this thread, and those of a row */
    int count;
} un_walk;

/* Neighbouring rows that are treated alike: `rows` of n elements, from `at` on. The strides are
 * those of the walk's last two axes. */
typedef struct un_piece {
    char *at[UN_WALKED];
    int64_t rows, n;
} un_piece;

static inline void un_walk_add(un_walk *w, const un_tensor *t)
{
    int64_t *s = w->s[w->count];
    for (int i = 0; i < 4; i++)
        s[i] = t->n[i] == 1 ? 0 : t->s[i];
    w->data[w->count++] = t->data;
}

static inline int un_walk_merges(const un_walk *w, int outer, int inner)
{
    for (int k = 0; k < w->count; k++)
        if (w->s[k][outer] != w->s[k][inner] * w->n[inner])
            return 0;
    return 1;
}

static inline void un_walk_move(un_walk *w, int from, int to)
{
    w->n[to] = w->n[from];
    for (int k = 0; k < w->count; k++)
        w->s[k][to] = w->s[k][from];
}

static inline void un_walk_merge(un_walk *w)
{
    int to = 3;
    for (int i = 2; i >= 0; i--) {
        if (w->n[i] == 1)
            continue;
        if (w->n[to] == 1)
            un_walk_move(w, i, to);
        else if (un_walk_merges(w, i, to))
            w->n[to] *= w->n[i];
        else if (--to != i)
            un_walk_move(w, i, to);
    }
    while (to > 0)
        w->n[--to] = 1;
}

/* What this thread walks of the elements of `out`. The operands broadcast to it or are NULL. */
static inline un_walk un_walk_of(const un_task *task, const un_tensor *out, const un_tensor *a,
                                 const un_tensor *b)
{
    un_walk w;
    w.count = 0;
    memcpy(w.n, out->n, sizeof w.n);
    un_walk_add(&w, out);
    un_walk_add(&w, a);
    if (b)
        un_walk_add(&w, b);
    un_walk_merge(&w);
    w.per_row = (w.n[3] + UN_LANES - 1) / UN_LANES;
    int64_t units = w.n[0] * w.n[1] * w.n[2] * w.per_row;
    un_share(units, task->thread, task->threads, &w.unit, &w.end);
    return w;
}

/* The next piece; false after the last. */
static inline int un_walk_next(un_walk *w, un_piece *p)
{
    int64_t left = w->end - w->unit, row = 0, col = w->unit, i[3] = {0, 0, 0};
    if (left <= 0)
        return 0;
    if (w->per_row * w->n[2] * w->n[1] * w->n[0] != w->per_row) {
        row = w->unit / w->per_row, col = w->unit % w->per_row;
        i[2] = row % w->n[2], i[1] = row / w->n[2] % w->n[1], i[0] = row / w->n[2] / w->n[1];
    }
    p->rows = 1;
    if (col == 0 && left >= w->per_row) {
        int64_t whole = left / w->per_row, here = w->n[2] - i[2];
        p->rows = whole < here ? whole : here;
        left = w->per_row;
    } else if (left > w->per_row - col) {
        left = w->per_row - col;
    }
    w->unit += p->rows * left;
    p->n = (col + left) * UN_LANES < w->n[3] ? left * UN_LANES : w->n[3] - col * UN_LANES;
    for (int k = 0; k < w->count; k++) {
        const int64_t *s = w->s[k];
        p->at[k] = w->data[k] + i[0] * s[0] + i[1] * s[1] + i[2] * s[2] + col * UN_LANES * s[3];
    }
    return 1;
}

static inline void un_gather(float *out, const char *from, int64_t stride, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        out[j] = *(const float *)(from + j * stride);
}

/* Where row r of a tensor begins, counted over the rows of `like`, to which it broadcasts. */
static inline const char *un_row_at(const un_tensor *t, const un_tensor *like, int64_t r)
{
    if (r == 0)
        return t->data;
    int64_t i[3] = {r / like->n[2] / like->n[1], r / like->n[2] % like->n[1], r % like->n[2]};
    const char *at = t->data;
    for (int k = 0; k < 3; k++)
        at += t->n[k] == 1 ? 0 : i[k] * t->s[k];
    return at;
}

/* That row as n floats side by side: where it lies, or gathered into `room`. */
static inline const float *un_row_of(const un_tensor *t, const un_tensor *like, int64_t r,
                                     float *room)
{
    const char *at = un_row_at(t, like, r);
    int64_t stride = t->n[3] == 1 ? 0 : t->s[3], n = like->n[3];
    if (stride == 4 || n <= 1)
        return (const float *)at;
    un_gather(room, at, stride, n);
    return room;
}

/* Whether t has the shape and the strides of the result of a step, which is contiguous. */
static inline int un_lies_like(const un_tensor *t, const un_tensor *out)
{
    return !memcmp(t->n, out->n, sizeof t->n) && !memcmp(t->s, out->s, sizeof t->s);
}

/* The rows of this thread; where there are fewer than threads, the first ones take one each. */
static inline void un_share_rows(const un_task *task, int64_t rows, int64_t *from, int64_t *to)
{
    if (rows < task->threads) {
        *from = task->thread < rows ? task->thread : rows;
        *to = task->thread < rows ? task->thread + 1 : rows;
    } else {
        un_share(rows, task->thread, task->threads, from, to);
    }
}

/* Sums over a row of n floats: of the values less `mean`, or of the squares of that. Of whole
 * 64s, element j belongs to partial sum j % 64; these are added to 16, to which come 16 of what
 * is left, and those are added as un_sum16 does. */
enum { UN_CHAINS = 4 };

UN_INLINE float un_row_sum(const float *x, int64_t n, float mean, const int squares)
{
    float part[UN_LANES] = {0}, rest[UN_LANES] = {0};
    xf acc[UN_CHAINS * UN_PARTS], less = xf_set1(mean);
    const int step = UN_CHAINS * UN_LANES, vectors = UN_CHAINS * UN_PARTS;
    int64_t j = 0;
    for (int v = 0; v < vectors; v++)
        acc[v] = xf_zero();
    for (; j + step <= n; j += step) {
        UN_UNROLL for (int v = 0; v < vectors; v++) {
            xf d = xf_sub(xf_load(x + j + v * UN_XL), less);
            acc[v] = squares ? xf_fma(d, d, acc[v]) : xf_add(acc[v], d);
        }
    }
    for (int v = 0; v < UN_PARTS; v++) {
        xf one = xf_add(acc[v], acc[v + 2 * UN_PARTS]);
        xf two = xf_add(acc[v + UN_PARTS], acc[v + 3 * UN_PARTS]);
        xf_store(part + v * UN_XL, xf_add(one, two));
    }
    for (int i = 0; j < n; j++, i = (i + 1) % UN_LANES) {
        float d = x[j] - mean;
        rest[i] = squares ? fmaf(d, d, rest[i]) : rest[i] + d;
    }
    for (int i = 0; i < UN_LANES; i++)
        part[i] += rest[i];
    return un_sum16(part);
}

#endif
