/* Attention of few rows, whose time is that of reading keys and values: they become floats in
 * registers, once for up to UN_ROWS rows of a KV head. The bits are those of attention.h's
 * other forms. */
#ifndef UN_FEW_H
#define UN_FEW_H

#include "attention.h"
#include "rows.h"

/* The values from d on of a head that lies at p, as float32 or float16. */
UN_INLINE xf un_take(const char *p, const int type, int64_t d)
{
    return type == UN_F16 ? xf_load_half((const uint16_t *)p + d)
                          : xf_load((const float *)p + d);
}

/* Asks for a row that comes later, while another is at work: one at a time, so that memory is
 * busy all the time and never has more to fetch than it can. */
UN_INLINE void un_ask(const char *row, int64_t n, const int type)
{
    for (int64_t at = 0; at < n * (type == UN_F16 ? 2 : 4); at += 64)
        __builtin_prefetch(row + at);
}

/* The scores of R rows and UN_BLOCK keys. */
UN_INLINE void un_score_few_of(const float *q, const char *const *keys, const char *const *next,
                               int64_t hd, float *scores, const int type, const int R)
{
    for (int k = 0; k < UN_BLOCK; k += UN_XL) {
        xf sums[UN_ROWS][UN_XL];
        for (int j = 0; j < UN_XL; j++) {
            un_ask(next[k + j], hd, type);
            xf part[UN_ROWS][UN_PARTS];
            UN_UNROLL for (int r = 0; r < R; r++)
                for (int p = 0; p < UN_PARTS; p++)
                    part[r][p] = xf_zero();
            for (int64_t d = 0; d < hd; d += UN_LANES)
                for (int p = 0; p < UN_PARTS; p++) {
                    xf key = un_take(keys[k + j], type, d + p * UN_XL);
                    UN_UNROLL for (int r = 0; r < R; r++)
                        part[r][p] =
                            xf_fma(key, xf_load(q + r * hd + d + p * UN_XL), part[r][p]);
                }
            UN_UNROLL for (int r = 0; r < R; r++)
                sums[r][j] = xf_fold(part[r]);
        }
        UN_UNROLL for (int r = 0; r < R; r++)
            xf_store(scores + r * UN_CHUNK + k, xf_sums(sums[r]));
    }
}

/* acc[r] += sum over n keys, in their order, of p[r][key] values[key]: R rows, N vectors from
 * d on. */
UN_INLINE void un_weigh_few_of(const float *p, const char *const *values,
                               const char *const *next, int n, int64_t hv, int64_t d,
                               float *acc, const int type, const int R, const int N)
{
    xf a[16];
    UN_UNROLL for (int i = 0; i < R * N; i++)
        a[i] = xf_load(acc + i / N * hv + d + i % N * UN_XL);
    for (int k = 0; k < n; k++) {
        xf v[4];
        un_ask(next[k] + d * (type == UN_F16 ? 2 : 4), N * UN_XL, type);
        UN_UNROLL for (int i = 0; i < N; i++)
            v[i] = un_take(values[k], type, d + i * UN_XL);
        UN_UNROLL for (int r = 0; r < R; r++) {
            xf w = xf_set1(p[r * UN_CHUNK + k]);
            UN_UNROLL for (int i = 0; i < N; i++)
                a[r * N + i] = xf_fma(w, v[i], a[r * N + i]);
        }
    }
    UN_UNROLL for (int i = 0; i < R * N; i++)
        xf_store(acc + i / N * hv + d + i % N * UN_XL, a[i]);
}

UN_INLINE void un_weigh_few_rows(const float *p, const char *const *values,
                                 const char *const *next, int n, int64_t hv, float *acc,
                                 const int type, const int R)
{
    enum { N = UN_PARTS == 1 ? 4 : 2 };
    int64_t d = 0;
    for (; d + N * UN_XL <= hv; d += N * UN_XL)
        un_weigh_few_of(p, values, next, n, hv, d, acc, type, R, N);
    for (; d < hv; d += UN_XL)
        un_weigh_few_of(p, values, next, n, hv, d, acc, type, R, 1);
}

#define UN_FEW_ROWS(X, type) \
    switch (rows) { \
    case 4: X(type, 4); break; \
    case 3: X(type, 3); break; \
    case 2: X(type, 2); break; \
    default: X(type, 1); \
    }
#define UN_FEW_OF(X) \
    if (type == UN_F16) \
        UN_FEW_ROWS(X, UN_F16) \
    else \
        UN_FEW_ROWS(X, UN_F32)

static void un_score_few(const float *q, const char *const *keys, const char *const *next,
                         int type, int64_t hd, float *scores, int rows)
{
#define OF(type, R) un_score_few_of(q, keys, next, hd, scores, type, R)
    UN_FEW_OF(OF)
#undef OF
}

static void un_weigh_few(const float *p, const char *const *values, const char *const *next,
                         int type, int n, int64_t hv, float *acc, int rows)
{
#define OF(type, R) un_weigh_few_rows(p, values, next, n, hv, acc, type, R)
    UN_FEW_OF(OF)
#undef OF
}

#endif
