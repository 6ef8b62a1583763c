/* The inner loops of attention: scores of queries and keys, weights times values.
 *
 * Keys go through in chunks of UN_CHUNK positions, and those in blocks of UN_BLOCK whose rows
 * have been made floats. Rows (one query of one head each) are padded with zeros to whole
 * groups of 16.
 *
 * A score is the sum of 16 partial sums over the head's dimensions (un_sum16), whether its
 * lanes are dimensions (few rows: few.h) or keys (many: un_score_tile). What a row gets
 * depends on nothing but its query, its keys, and where these lie in their chunk. */
#ifndef UN_ATTENTION_H
#define UN_ATTENTION_H

#include "softmax.h"

enum { UN_CHUNK = 128, UN_BLOCK = 32, UN_KEY_BLOCKS = UN_CHUNK / UN_LANES };

/* The keys of a block with their dimensions one behind the other: [hd][UN_BLOCK]. */
static void un_turn_keys(const float *keys, int64_t hd, float *turned)
{
    for (int64_t d = 0; d < hd; d += UN_XL)
        for (int i = 0; i < UN_BLOCK; i += UN_XL) {
            xf v[UN_XL];
            for (int k = 0; k < UN_XL; k++)
                v[k] = xf_load(keys + (i + k) * hd + d);
            xf_transpose(v);
            for (int k = 0; k < UN_XL; k++)
                xf_store(turned + (d + k) * UN_BLOCK + i, v[k]);
        }
}

/* The scores of R rows and a block of turned keys. Lanes are keys; the partial sums come in the
 * order in which un_sum16 adds them, so that two of equal size meet: sum[i] is of 2^i. */
UN_INLINE void un_score_tile_of(const float *q, const float *turned, int64_t hd, float *scores,
                                const int R)
{
    enum { V = 2 };
    for (int block = 0; block < UN_BLOCK; block += V * UN_XL) {
        const float *keys = turned + block;
        xf sum[5][8];
        UN_UNROLL for (int j = 0; j < 16; j++) {
            const int first = (j & 1) << 3 | (j & 2) << 1 | (j & 4) >> 1 | j >> 3;
            xf acc[8];
            UN_UNROLL for (int i = 0; i < R * V; i++)
                acc[i] = xf_zero();
            for (int64_t d = first; d < hd; d += UN_LANES) {
                xf k[V];
                UN_UNROLL for (int v = 0; v < V; v++)
                    k[v] = xf_load(keys + d * UN_BLOCK + v * UN_XL);
                UN_UNROLL for (int r = 0; r < R; r++)
                    UN_UNROLL for (int v = 0; v < V; v++)
                        acc[r * V + v] = xf_fma(k[v], xf_set1(q[r * hd + d]), acc[r * V + v]);
            }
            UN_UNROLL for (int i = 0; i < R * V; i++) {
                xf a = acc[i];
                if (j & 1)
                    a = xf_add(sum[0][i], a);
                if ((j & 3) == 3)
                    a = xf_add(sum[1][i], a);
                if ((j & 7) == 7)
                    a = xf_add(sum[2][i], a);
                sum[j == 15 ? 4 : (j & 7) == 7 ? 3 : (j & 3) == 3 ? 2 : j & 1][i] =
                    j == 15 ? xf_add(sum[3][i], a) : a;
            }
        }
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++)
                xf_store(scores + r * UN_CHUNK + block + v * UN_XL, sum[4][r * V + v]);
    }
}

/* acc[r] += sum over n keys, in their order, of p[r][key] values[key]: R rows, N vectors. */
UN_INLINE void un_weigh_of(const float *p, const float *values, int n, int64_t hv, float *acc,
                           const int R, const int N)
{
    xf a[16];
    UN_UNROLL for (int i = 0; i < R * N; i++)
        a[i] = xf_load(acc + i / N * hv + i % N * UN_XL);
    for (int k = 0; k < n; k++, values += hv) {
        xf v[4];
        UN_UNROLL for (int i = 0; i < N; i++)
            v[i] = xf_load(values + i * UN_XL);
        UN_UNROLL for (int r = 0; r < R; r++) {
            xf w = xf_set1(p[r * UN_CHUNK + k]);
            UN_UNROLL for (int i = 0; i < N; i++)
                a[r * N + i] = xf_fma(w, v[i], a[r * N + i]);
        }
    }
    UN_UNROLL for (int i = 0; i < R * N; i++)
        xf_store(acc + i / N * hv + i % N * UN_XL, a[i]);
}

enum { UN_ROWS = 4 }; /* rows of a tile */

/* As above for up to UN_ROWS rows, of any length. */
UN_INLINE void un_weigh_rows(const float *p, const float *values, int n, int64_t hv, float *acc,
                             const int R)
{
    enum { N = UN_PARTS == 1 ? 4 : 2 };
    int64_t d = 0;
    for (; d + N * UN_XL <= hv; d += N * UN_XL)
        un_weigh_of(p, values + d, n, hv, acc + d, R, N);
    for (; d < hv; d += UN_XL)
        un_weigh_of(p, values + d, n, hv, acc + d, R, 1);
}

static void un_weigh(const float *p, const float *values, int n, int64_t hv, float *acc,
                     int rows)
{
    switch (rows) {
    case 4: un_weigh_rows(p, values, n, hv, acc, 4); break;
    case 3: un_weigh_rows(p, values, n, hv, acc, 3); break;
    case 2: un_weigh_rows(p, values, n, hv, acc, 2); break;
    default: un_weigh_rows(p, values, n, hv, acc, 1);
    }
}

static void un_score_tile(const float *q, const float *turned, int64_t hd, float *scores,
                          int rows)
{
    if (UN_PARTS > 1) { /* fewer registers */
        for (; rows >= 2; rows -= 2, q += 2 * hd, scores += 2 * UN_CHUNK)
            un_score_tile_of(q, turned, hd, scores, 2);
    } else if (rows == 4) {
        un_score_tile_of(q, turned, hd, scores, 4);
        return;
    }
    for (; rows > 0; rows--, q += hd, scores += UN_CHUNK)
        un_score_tile_of(q, turned, hd, scores, 1);
}

#endif
