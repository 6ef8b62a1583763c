/* A piece of attention: some queries of the heads of some KV heads, over one chunk after the
 * other. attention.c says what a chunk is, and what is the same whatever the pieces are. */
#ifndef UN_ATTEND_H
#define UN_ATTEND_H

#include "attention.h"
#include "rows.h"

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
    int64_t first, own;                            /* KV heads that the thread's team attends to */
    int64_t part, parts;                           /* the thread in its team */
    char *partial;                                 /* NULL: chunks are merged at once */
} attention;

/* Row r of a KV head is head r % group of token r / group. Of all KV heads there are queries
 * and results; scores, weights and what a chunk gives are of one at a time. */
typedef struct {
    const attention *a;
    int64_t seq, first, heads;  /* KV heads from the first on */
    int64_t token, tokens, rows, phase;
    int64_t kv, next;           /* the KV head at work; what is skipped after a chunk */
    float *all_q, *all_sum, *all_m, *all_l;
    float *q, *sum, *m, *l;     /* those of the KV head at work */
    float *scores, *acc, *chunk_m, *chunk_l, *parts;
    float *keys, *turned, *values, *mask;
    uint32_t *seen, *plain, any; /* of 16 positions: some are seen; the mask changes nothing */
} piece;

enum { FEW = 8 }; /* rows for which keys need not be turned */

static int64_t whole(int64_t n) { return (n + UN_LANES - 1) / UN_LANES * UN_LANES; }

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

/* Asks for a part of the next chunk while n rows from i on of one are fetched, so that memory
 * is busy all the time: each KV head for its share of what all of them will want. */
static void expect(const source *x, const piece *w, int64_t from, int64_t i, int64_t n)
{
    int64_t turn = (w->kv - w->first) * UN_CHUNK + i, part = turn % w->heads;
    int64_t col = from + UN_CHUNK + w->next + turn / w->heads, bytes = bytes_of(x, x->size);
    int64_t apart = x->in_row ? bytes_of(x, x->in_row) : x->head;
    for (; n > 0 && col < w->a->cells; n--) {
        const char *p = row_of(x, w->seq, col) + (w->first + part) * apart;
        for (int64_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(p + at, 0, 2);
        if (++part == w->heads)
            part = 0, col++;
    }
}

/* n <= UN_BLOCK rows of the KV head at work, as floats: those from i on of the chunk that
 * begins at column `from`. */
static void fetch(const source *x, const piece *w, int64_t from, int64_t i, int64_t n,
                  int64_t stride, float *out)
{
    const char *rows[UN_BLOCK];
    int64_t first = w->kv * x->in_row;
    for (int64_t k = 0; k < n; k++)
        rows[k] = row_of(x, w->seq, from + i + k) + w->kv * x->head;
    if (w->rows <= FEW)
        expect(x, w, from, i, n);
    if (x->type == UN_F16 && x->step == 2)
        for (int64_t k = 0; k < n; k++)
            un_halves((const uint16_t *)rows[k] + first, x->size, out + k * stride);
    else if (x->type == UN_Q8_0 && (first | x->size) % 32 == 0)
        for (int64_t k = 0; k < n; k++)
            un_q8_blocks(rows[k] + bytes_of(x, first), x->size, out + k * stride);
    else
        for (int64_t k = 0; k < n; k++)
            un_values(rows[k], x->type, x->step, first, x->size, out + k * stride);
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
    int64_t rows = tokens * a->group, all = rows * heads;
    int64_t n = all * (a->hd + a->hv) + rows * (UN_CHUNK + a->hv);
    n += whole(rows) * (2 * heads + 2 + UN_XL);
    n += UN_BLOCK * (2 * a->hd + a->hv) + tokens * (UN_CHUNK + 2) + 16 * UN_LANES;
    float *at = un_scratch_get(task, (size_t)n * 4);
    if (!at)
        return 0;
    memset(at, 0, (size_t)n * 4); /* what rows are padded with stays 0 */
    *w = (piece){.a = a, .seq = -1};
    w->all_q = take(&at, all * a->hd);
    w->all_sum = take(&at, all * a->hv);
    w->all_m = take(&at, whole(rows) * heads);
    w->all_l = take(&at, whole(rows) * heads);
    w->scores = take(&at, rows * UN_CHUNK);
    w->acc = take(&at, rows * a->hv);
    w->chunk_m = take(&at, rows);
    w->chunk_l = take(&at, rows);
    w->parts = take(&at, whole(rows) * UN_XL);
    w->keys = take(&at, UN_BLOCK * a->hd);
    w->turned = take(&at, UN_BLOCK * a->hd);
    w->values = take(&at, UN_BLOCK * a->hv);
    w->mask = take(&at, tokens * UN_CHUNK);
    w->seen = (uint32_t *)take(&at, tokens);
    w->plain = (uint32_t *)take(&at, tokens);
    return 1;
}

static void turn_to(piece *w, int64_t kv)
{
    int64_t row = (kv - w->first) * w->rows;
    w->kv = kv;
    w->q = w->all_q + row * w->a->hd;
    w->sum = w->all_sum + row * w->a->hv;
    w->m = w->all_m + (kv - w->first) * whole(w->rows);
    w->l = w->all_l + (kv - w->first) * whole(w->rows);
}

/* The queries of the KV head at work, times the scale; there is no result yet. */
static void load_queries(piece *w)
{
    const attention *a = w->a;
    for (int64_t r = 0; r < w->rows; r++) {
        const char *row = a->q->data + w->seq * a->q->s[0];
        row += (w->token + r / a->group) * a->q->s[a->q_token];
        row += (w->kv * a->group + r % a->group) * a->q->s[a->q_head];
        float *q = w->q + r * a->hd;
        un_values(row, a->q->type, a->q->s[3], 0, a->q->n[3], q);
        for (int64_t d = 0; d < a->hd; d++)
            q[d] *= a->scale;
        w->m[r] = UN_LOWEST, w->l[r] = 0;
    }
    memset(w->sum, 0, (size_t)(w->rows * a->hv) * 4);
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

/* A token's mask in the chunk; its bits, since compilers compare integers in vectors: those of
 * a negative number are larger the lower it is. */
static void look_at(const float *mask, uint32_t *seen, uint32_t *plain)
{
    const uint32_t least = un_bits_of(UN_SEEN);
    *seen = *plain = 0;
    for (int b = 0; b < UN_KEY_BLOCKS; b++, mask += UN_LANES) {
        uint32_t some = 0, odd = 0;
        for (int k = 0; k < UN_LANES; k++) {
            uint32_t u = un_bits_of(mask[k]);
            some |= u <= least;
            odd |= u << 1;
        }
        *seen |= some << b;
        *plain |= (uint32_t)!odd << b;
    }
}

/* The masks of the tokens for columns [from, to), and what is seen there at all. */
static void look(piece *w, int64_t from, int64_t to)
{
    const un_tensor *mask = w->a->mask;
    int64_t n = to - from;
    w->any = 0;
    for (int64_t t = 0; t < w->tokens; t++) {
        float *m = w->mask + t * UN_CHUNK;
        if (mask) {
            const char *row = mask->data + (mask->n[0] > 1 ? w->seq : 0) * mask->s[0];
            row += (w->token + t) * mask->s[2];
            un_values(row, mask->type, mask->s[3], from, n, m);
        } else
            memset(m, 0, (size_t)n * 4);
        for (int64_t k = n; k < UN_CHUNK; k++)
            m[k] = 2 * UN_SEEN;
        look_at(m, &w->seen[t], &w->plain[t]);
        w->any |= w->seen[t];
    }
}

/* Which of rows r .. r + n - 1 see what. */
static uint32_t seen_by(const piece *w, int64_t r, int64_t n)
{
    uint32_t seen = 0;
    for (int64_t t = r / w->a->group; t <= (r + n - 1) / w->a->group; t++)
        seen |= w->seen[t];
    return seen;
}

enum { PER_BLOCK = UN_BLOCK / UN_LANES, ALL = (1 << PER_BLOCK) - 1 };

static int has(uint32_t seen, int64_t key) { return (seen >> key / UN_LANES & ALL) != 0; }

/* Scores of a chunk, a block of keys at a time. */
static void score(piece *w, int64_t from, int64_t to)
{
    const attention *a = w->a;
    for (int64_t b = 0; from + b < to; b += UN_BLOCK) {
        if (!has(w->any, b))
            continue;
        fetch(&a->k, w, from, b, rest(to - from - b, UN_BLOCK), a->hd, w->keys);
        if (w->rows > FEW)
            un_turn_keys(w->keys, a->hd, w->turned);
        for (int64_t r = 0; r < w->rows; r += UN_ROWS) {
            int n = (int)rest(w->rows - r, UN_ROWS);
            float *out = w->scores + r * UN_CHUNK + b;
            if (!has(seen_by(w, r, n), b))
                continue;
            if (w->rows > FEW)
                un_score_tile(w->q + r * a->hd, w->turned, a->hd, out, n);
            else
                for (int i = 0; i < n; i++)
                    un_score_row(w->q + (r + i) * a->hd, w->keys, a->hd, out + i * UN_CHUNK);
        }
    }
}

/* cap tanh(s / cap) */
static inline xf capped(xf s, float cap)
{
    xf x = xf_div(s, xf_set1(cap)), one = xf_set1(1.0f), negative = xf_sub(xf_zero(), x);
    xf e = xf_exp(xf_mul(xf_max(x, negative), xf_set1(-2.0f)));
    xf t = xf_mul(xf_div(xf_sub(one, e), xf_add(one, e)), xf_set1(cap));
    return xf_sub(xf_keep_ge(t, x, 0), xf_keep_ge(t, negative, 1e-45f));
}

/* The scores of a row, capped and with the mask, in place; the largest of them. */
static float masked(const piece *w, int64_t r, float *s)
{
    const attention *a = w->a;
    const float *mask = w->mask + r / a->group * UN_CHUNK;
    uint32_t seen = w->seen[r / a->group], plain = w->plain[r / a->group];
    xf slope = xf_set1(un_slope(w->kv * a->group + r % a->group, a->heads, a->max_bias));
    xf most[UN_PARTS];
    for (int p = 0; p < UN_PARTS; p++)
        most[p] = xf_set1(UN_LOWEST);
    for (int k = 0; k < UN_CHUNK; k += UN_XL) {
        if (!(seen >> k / UN_LANES & 1))
            continue;
        xf v = xf_load(s + k), *top = &most[k / UN_XL % UN_PARTS];
        int changes = a->softcap != 0 || !(plain >> k / UN_LANES & 1);
        if (a->softcap != 0)
            v = capped(v, a->softcap);
        if (!(plain >> k / UN_LANES & 1)) {
            xf bias = xf_load(mask + k);
            v = un_hide(xf_add(v, xf_mul(bias, slope)), bias);
        }
        *top = xf_max(v, *top);
        if (changes)
            xf_store(s + k, v);
    }
    return un_most(most);
}

/* The scores of a row to weights, in place: of what it does not see 0. Their sum is left in
 * partial sums, so that those of several rows are added at once. */
static void weights(piece *w, int64_t r)
{
    float *s = w->scores + r * UN_CHUNK, m = masked(w, r, s);
    uint32_t seen = w->seen[r / w->a->group];
    xf sum[UN_PARTS];
    for (int p = 0; p < UN_PARTS; p++)
        sum[p] = xf_zero();
    for (int k = 0; k < UN_CHUNK; k += UN_XL) {
        xf e = xf_zero(), *part = &sum[k / UN_XL % UN_PARTS];
        if (seen >> k / UN_LANES & 1)
            e = xf_exp(xf_sub(xf_load(s + k), xf_set1(m)));
        *part = xf_add(*part, e);
        xf_store(s + k, e);
    }
    w->chunk_m[r] = m;
    xf_store(w->parts + r * UN_XL, xf_fold(sum));
}

static void add_weights(piece *w)
{
    for (int64_t r = 0; r < w->rows; r += UN_XL) {
        xf parts[UN_XL];
        for (int i = 0; i < UN_XL; i++)
            parts[i] = xf_load(w->parts + (r + i) * UN_XL);
        xf_store(w->chunk_l + r, xf_sums(parts));
    }
}

/* The row again, without what has no weight: there is a value that is not finite. */
static void weigh_finite(piece *w, int64_t r, int64_t from, int64_t to)
{
    const attention *a = w->a;
    float *acc = w->acc + r * a->hv;
    memset(acc, 0, (size_t)a->hv * 4);
    for (int64_t k = 0; from + k < to; k++) {
        float p = w->scores[r * UN_CHUNK + k];
        if (p == 0)
            continue;
        fetch(&a->v, w, from, k, 1, 0, w->values);
        for (int64_t d = 0; d < a->hv; d += UN_XL)
            xf_store(acc + d, xf_fma(xf_set1(p), xf_load(w->values + d), xf_load(acc + d)));
    }
}

static int all_finite(const float *x, int64_t n)
{
    uint32_t odd = 0;
    for (int64_t i = 0; i < n; i++)
        odd |= (un_bits_of(x[i]) & 0x7f800000) == 0x7f800000;
    return !odd;
}

/* Weighted values of a chunk, a block of keys at a time. */
static void weigh(piece *w, int64_t from, int64_t to)
{
    const attention *a = w->a;
    memset(w->acc, 0, (size_t)(w->rows * a->hv) * 4);
    for (int64_t b = 0; from + b < to; b += UN_BLOCK) {
        int count = (int)rest(to - from - b, UN_BLOCK);
        if (!has(w->any, b))
            continue;
        fetch(&a->v, w, from, b, count, a->hv, w->values);
        for (int64_t r = 0; r < w->rows; r += UN_ROWS) {
            int n = (int)rest(w->rows - r, UN_ROWS);
            if (has(seen_by(w, r, n), b))
                un_weigh(w->scores + r * UN_CHUNK + b, w->values, count, a->hv,
                         w->acc + r * a->hv, n);
        }
    }
    for (int64_t r = 0; r < w->rows; r++)
        if (!all_finite(w->acc + r * a->hv, a->hv))
            weigh_finite(w, r, from, to);
}

/* Of the KV head at work what the chunk gives: acc, chunk_m and chunk_l. */
static void attend(piece *w, int64_t from, int64_t to)
{
    score(w, from, to);
    for (int64_t r = 0; r < w->rows; r++)
        weights(w, r);
    add_weights(w);
    weigh(w, from, to);
}

#endif
