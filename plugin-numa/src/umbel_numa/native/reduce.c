/* What makes one number, or a few, of each row.
 *
 * sum_rows: in[0] x (..., n) to (..., 1).
 * top_k: in[0] x (..., n) to (..., k) int32: where its largest are, the largest first, of equal
 * ones the first; NaN is less than all. */
#include "strided.h"

void UN_(sum_rows)(const un_task *task)
{
    const un_tensor *out = un_out(task), *x = un_in(task, 0);
    int64_t n = x->n[3], from, to;
    un_share_rows(task, un_rows(x), &from, &to);
    if (from == to)
        return;
    float *room = un_scratch_get(task, (size_t)(n + 1) * 4);
    for (int64_t r = from; room && r < to; r++)
        *(float *)un_row_at(out, x, r) = un_row_sum(un_row_of(x, x, r, room), n, 0, 0);
}

/* Value and place in one number: the larger, the earlier in the result. No two are equal. */
static inline uint64_t key_of(float x, int64_t place)
{
    uint32_t u = un_bits_of(x + 0.0f); /* -0 becomes 0 */
    uint32_t order = u >> 31 ? ~u : u | 0x80000000u;
    if (x != x)
        order = 0;
    return (uint64_t)order << 32 | (0xffffffffu - (uint32_t)place);
}

/* Puts a key into a heap of n, whose least is at the top, from the free place `at` on. */
static void sift(uint64_t *heap, int64_t n, int64_t at, uint64_t key)
{
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (heap[child] >= key)
            break;
        heap[at] = heap[child];
    }
    heap[at] = key;
}

static void largest(const char *x, int64_t stride, int64_t n, int64_t k, uint64_t *heap,
                    int32_t *out)
{
    for (int64_t j = 0; j < k; j++)
        heap[j] = key_of(*(const float *)(x + j * stride), j);
    for (int64_t j = k / 2; j-- > 0;)
        sift(heap, k, j, heap[j]);
    for (int64_t j = k; j < n; j++) {
        uint64_t key = key_of(*(const float *)(x + j * stride), j);
        if (key > heap[0])
            sift(heap, k, 0, key);
    }
    for (int64_t left = k; left-- > 0;) {
        out[left] = (int32_t)(0xffffffffu - (uint32_t)heap[0]);
        sift(heap, left, 0, heap[left]);
    }
}

void UN_(top_k)(const un_task *task)
{
    const un_tensor *out = un_out(task), *x = un_in(task, 0);
    int64_t k = out->n[3], from, to;
    un_share_rows(task, un_rows(x), &from, &to);
    if (from == to)
        return;
    uint64_t *heap = un_scratch_get(task, (size_t)k * 8);
    for (int64_t r = from; heap && r < to; r++)
        largest(un_row_at(x, x, r), x->s[3], x->n[3], k, heap, (int32_t *)un_row_at(out, x, r));
}
