/* A piece of attention: some queries of the heads of some KV heads, and what it reads. */
#ifndef UN_PIECE_H
#define UN_PIECE_H

#include "few.h"

/* Where keys or values lie. */
typedef struct {
    const char *data;
    int64_t seq, row, head, step; /* bytes from one to the next; step: of values */
    int type;
    int64_t size;                 /* values of a head */
    int64_t in_row;               /* values from one head to the next within a row, or 0 */
    const un_tensor *table;
} source;

typedef struct {
    int64_t seqs, tokens, cells, heads, kv, group; /* S, T, L, H, Hkv, H / Hkv */
    int64_t hd, hv;                                /* padded to whole groups of 16 */
    const un_tensor *q, *mask, *sinks;
    int q_token, q_head;                           /* the axes of q */
    source k, v;
    char *out;
    int64_t out_seq, out_token, out_head;
    float scale, max_bias, softcap;
    int64_t first, own;                            /* KV heads of the thread's team */
    int64_t part, parts;                           /* the thread in it */
    char *partial;                                 /* NULL: chunks are merged at once */
} attention;

/* What there is for the rows of one KV head. Row r is head r % group of token r / group. */
typedef struct {
    float *q, *sum, *m, *l;
    float *scores, *acc, *chunk_m, *chunk_l, *parts; /* of the chunk at hand */
} rows_of;

typedef struct {
    const attention *a;
    int64_t seq, first, heads;  /* KV heads from the first on */
    int64_t token, tokens, rows, phase;
    int64_t kv, next;           /* the KV head at work; what is skipped after a chunk */
    rows_of all;                /* those of the KV heads one behind the other */
    rows_of its;                /* those of the KV head at work */
    float *fetched, *turned, *mask;
    const float **masks;        /* of each token: its row, or a copy that was filled up */
    const char *row[UN_BLOCK];  /* those that were found */
    const char *at[UN_BLOCK];   /* what was fetched of them, as `type` */
    const char *later[UN_BLOCK]; /* rows that will be next, */
    const char *ahead[UN_BLOCK]; /* and the head at work in them */
    int type;
    uint32_t *seen, *plain, any; /* of 16 positions: some are seen; the mask changes nothing */
    uint32_t *tiles;            /* seen by some of UN_ROWS rows */
} piece;

enum { FEW = 8 }; /* rows for which keys need not be turned */

static int64_t whole(int64_t n) { return un_whole(n, UN_LANES); }

static int64_t rest(int64_t n, int64_t most) { return n < most ? n : most; }

static const char *row_of(const source *x, int64_t seq, int64_t col)
{
    int64_t cell = col;
    if (x->table)
        cell = *(const int32_t *)(x->table->data + seq * x->table->s[2] + col * x->table->s[3]);
    return x->data + seq * x->seq + cell * x->row;
}

static int64_t bytes_of(const source *x, int64_t n)
{
    return x->type == UN_Q8_0 ? n / 32 * UN_Q8_BYTES : n * x->step;
}

/* Finds n <= UN_BLOCK rows from a column on. The last one stands for those that are not
 * there. */
static void find(const source *x, const piece *w, int64_t col, int64_t n, const char **row)
{
    for (int64_t k = 0; k < n; k++)
        row[k] = row_of(x, w->seq, col + k);
    for (int64_t k = n; k < UN_BLOCK; k++)
        row[k] = row[n - 1];
}

/* Where the head at work begins in a row. */
static int64_t begins(const source *x, const piece *w)
{
    return w->kv * x->head + bytes_of(x, w->kv * x->in_row);
}

/* Whether few.h can read heads where they lie. */
static int direct(const source *x)
{
    int plain = (x->type == UN_F32 && x->step == 4) || (x->type == UN_F16 && x->step == 2);
    return plain && x->size % UN_LANES == 0;
}

/* What the KV head at work has in the n rows that were found. Few rows of queries have it read
 * where it lies, if that is possible, others as floats `stride` apart; what fills a row up is
 * zeros, since keys and values of other sizes lay there before. */
static void fetch(const source *x, piece *w, int64_t n, int64_t stride)
{
    int64_t at = w->kv * x->in_row, offset = w->kv * x->head;
    int there = w->rows <= FEW && direct(x);
    w->type = there ? x->type : UN_F32;
    if (there)
        offset = begins(x, w);
    for (int64_t k = 0; k < UN_BLOCK; k++)
        w->at[k] = there ? w->row[k] + offset
                         : (const char *)(w->fetched + rest(k, n - 1) * stride);
    for (int64_t k = 0; k < n && !there; k++) {
        const char *row = w->row[k] + offset;
        float *out = w->fetched + k * stride;
        if (x->type == UN_F16 && x->step == 2)
            un_halves(UN_F16, (const uint16_t *)row + at, x->size, out);
        else if (x->type == UN_Q8_0 && (at | x->size) % 32 == 0)
            un_q8_blocks(row + bytes_of(x, at), x->size, out);
        else
            un_values(row, x->type, x->step, at, x->size, out);
        for (int64_t d = x->size; d < stride; d++)
            out[d] = 0;
    }
}

/* How many entries of the padding in front of the table do not fill a chunk. */
static int64_t phase_of(const attention *a, int64_t seq)
{
    const un_tensor *t = a->k.table;
    int64_t n = 0;
    if (!t)
        return 0;
    const char *row = t->data + seq * t->s[2];
    for (int32_t some = 0; t->s[3] == 4 && !some && n + UN_LANES <= a->cells; n += UN_LANES)
        for (int k = 0; k < UN_LANES; k++)
            some |= ((const int32_t *)row)[n + k];
    n = n > UN_LANES ? n - UN_LANES : 0; /* which may have been the first with some */
    while (n < a->cells && *(const int32_t *)(row + n * t->s[3]) == 0)
        n++;
    return n % UN_CHUNK;
}

static int64_t chunks(const attention *a) { return a->cells / UN_CHUNK + 2; }

/* The columns of chunk c: [*from, *to). */
static void chunk_of(const attention *a, int64_t phase, int64_t c, int64_t *from, int64_t *to)
{
    *from = rest(c ? phase + (c - 1) * UN_CHUNK : 0, a->cells);
    *to = rest(phase + c * UN_CHUNK, a->cells);
}

static float *take(float **at, int64_t n) { return *at += whole(n), *at - whole(n); }

/* Room for pieces of up to so many KV heads and tokens; 0 when there is none. */
static int make_room(const un_task *task, const attention *a, int64_t heads, int64_t tokens,
                     piece *w)
{
    int64_t rows = tokens * a->group, all = rows * heads, padded = whole(rows) * heads;
    int64_t wide = a->hd > a->hv ? a->hd : a->hv;
    int64_t n = all * (a->hd + 2 * a->hv + UN_CHUNK) + padded * (4 + UN_XL);
    n += UN_BLOCK * (wide + a->hd) + tokens * (UN_CHUNK + 4) + rows + 18 * UN_LANES;
    float *at = un_scratch_get(task, (size_t)n * 4);
    if (!at)
        return 0;
    memset(at, 0, (size_t)n * 4); /* what rows are padded with stays 0 */
    *w = (piece){.a = a, .seq = -1};
    w->all.q = take(&at, all * a->hd);
    w->all.sum = take(&at, all * a->hv);
    w->all.acc = take(&at, all * a->hv);
    w->all.scores = take(&at, all * UN_CHUNK);
    w->all.m = take(&at, padded);
    w->all.l = take(&at, padded);
    w->all.chunk_m = take(&at, padded);
    w->all.chunk_l = take(&at, padded);
    w->all.parts = take(&at, padded * UN_XL);
    w->fetched = take(&at, UN_BLOCK * wide);
    w->turned = take(&at, UN_BLOCK * a->hd);
    w->mask = take(&at, tokens * UN_CHUNK);
    w->masks = (const float **)take(&at, tokens * (int64_t)(sizeof *w->masks / sizeof *at));
    w->seen = (uint32_t *)take(&at, tokens);
    w->plain = (uint32_t *)take(&at, tokens);
    w->tiles = (uint32_t *)take(&at, rows);
    return 1;
}

static void turn_to(piece *w, int64_t kv)
{
    int64_t row = (kv - w->first) * w->rows, padded = (kv - w->first) * whole(w->rows);
    const rows_of *all = &w->all;
    w->kv = kv;
    w->its = (rows_of){
        .q = all->q + row * w->a->hd,
        .sum = all->sum + row * w->a->hv,
        .acc = all->acc + row * w->a->hv,
        .scores = all->scores + row * UN_CHUNK,
        .m = all->m + padded,
        .l = all->l + padded,
        .chunk_m = all->chunk_m + padded,
        .chunk_l = all->chunk_l + padded,
        .parts = all->parts + padded * UN_XL,
    };
}

/* The queries of the KV head at work, times the scale; there is no result yet. */
static void load_queries(piece *w)
{
    const attention *a = w->a;
    for (int64_t r = 0; r < w->rows; r++) {
        const char *row = a->q->data + w->seq * a->q->s[0];
        row += (w->token + r / a->group) * a->q->s[a->q_token];
        row += (w->kv * a->group + r % a->group) * a->q->s[a->q_head];
        float *q = w->its.q + r * a->hd;
        un_values(row, a->q->type, a->q->s[3], 0, a->q->n[3], q);
        for (int64_t d = 0; d < a->hd; d++)
            q[d] *= a->scale;
        w->its.m[r] = UN_LOWEST, w->its.l[r] = 0;
    }
    memset(w->its.sum, 0, (size_t)(w->rows * a->hv) * 4);
}

static void begin(piece *w, int64_t seq, int64_t first, int64_t heads, int64_t token,
                  int64_t tokens)
{
    if (seq != w->seq)
        w->phase = phase_of(w->a, seq);
    w->seq = seq, w->first = first, w->heads = heads, w->token = token, w->tokens = tokens;
    w->rows = tokens * w->a->group;
    for (int64_t kv = first; kv < first + heads; kv++) {
        turn_to(w, kv);
        load_queries(w);
    }
}

#endif
