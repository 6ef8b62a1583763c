/* What a piece of attention does with one chunk after the other. attention.c says what a chunk
 * is, and what is the same whatever the pieces are. */
#ifndef UN_ATTEND_H
#define UN_ATTEND_H

#include "piece.h"

/* Of n masks, a multiple of 16, whether some are seen, and whether the mask changes nothing. */
static int look_through(const float *mask, int n, int *plain)
{
    xf top = xf_load(mask), low = top;
    for (int k = UN_XL; k < n; k += UN_XL) {
        top = xf_max(top, xf_load(mask + k));
        low = xf_min(low, xf_load(mask + k));
    }
    float most = xf_most(top);
    *plain = most == 0 && xf_most(xf_neg(low)) == 0;
    return most >= UN_SEEN;
}

/* A token's mask in the chunk; mostly all of it is alike. */
static void look_at(const float *mask, uint32_t *seen, uint32_t *plain)
{
    const uint32_t all = (1u << UN_KEY_BLOCKS) - 1;
    int still, some = look_through(mask, UN_CHUNK, &still);
    *seen = some ? all : 0;
    *plain = still ? all : 0;
    for (int b = 0; some && !still && b < UN_KEY_BLOCKS; b++) {
        int here;
        if (!look_through(mask + b * UN_LANES, UN_LANES, &here))
            *seen &= ~(1u << b);
        *plain |= (uint32_t)here << b;
    }
}

/* A token's mask for n columns: where it lies, or a copy that is filled up. */
static const float *mask_of(const piece *w, int64_t t, int64_t from, int64_t n)
{
    const un_tensor *mask = w->a->mask;
    float *m = w->mask + t * UN_CHUNK;
    if (mask) {
        const char *row = mask->data + (mask->n[0] > 1 ? w->seq : 0) * mask->s[0];
        row += (w->token + t) * mask->s[2];
        if (n == UN_CHUNK && mask->type == UN_F32 && mask->s[3] == 4)
            return (const float *)row + from;
        un_values(row, mask->type, mask->s[3], from, n, m);
    } else
        memset(m, 0, (size_t)n * 4);
    for (int64_t k = n; k < UN_CHUNK; k++)
        m[k] = 2 * UN_SEEN;
    return m;
}

/* The masks of the tokens for columns [from, to), and what is seen there at all. */
static void look(piece *w, int64_t from, int64_t to)
{
    w->any = 0;
    memset(w->tiles, 0, (size_t)(w->rows + UN_ROWS - 1) / UN_ROWS * 4);
    for (int64_t t = 0, r = 0; t < w->tokens; t++) {
        w->masks[t] = mask_of(w, t, from, to - from);
        look_at(w->masks[t], &w->seen[t], &w->plain[t]);
        w->any |= w->seen[t];
        for (int64_t end = r + w->a->group; r < end; r++)
            w->tiles[r / UN_ROWS] |= w->seen[t];
    }
}

enum { PER_BLOCK = UN_BLOCK / UN_LANES, ALL = (1 << PER_BLOCK) - 1 };

static int has(uint32_t seen, int64_t key) { return (seen >> key / UN_LANES & ALL) != 0; }

/* Scores of a block of keys. */
static void score(piece *w, int64_t b)
{
    const attention *a = w->a;
    if (w->rows > FEW)
        un_turn_keys(w->fetched, a->hd, w->turned);
    for (int64_t r = 0; r < w->rows; r += UN_ROWS) {
        int n = (int)rest(w->rows - r, UN_ROWS);
        float *out = w->its.scores + r * UN_CHUNK + b;
        if (!has(w->tiles[r / UN_ROWS], b))
            continue;
        if (w->rows > FEW)
            un_score_tile(w->its.q + r * a->hd, w->turned, a->hd, out, n);
        else
            un_score_few(w->its.q + r * a->hd, w->at, w->ahead, w->type, a->hd, out, n);
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

/* Scores capped and with the mask, in place, of row i of token t; the largest of them. */
static xf masked(const piece *w, int64_t t, int64_t i, float *s)
{
    const attention *a = w->a;
    xf slope = xf_set1(un_slope(w->kv * a->group + i, a->heads, a->max_bias));
    xf most = xf_set1(UN_LOWEST);
    for (int k = 0; k < UN_CHUNK; k += UN_XL) {
        if (!(w->seen[t] >> k / UN_LANES & 1))
            continue;
        xf v = xf_load(s + k);
        if (a->softcap != 0)
            v = capped(v, a->softcap);
        if (!(w->plain[t] >> k / UN_LANES & 1)) {
            xf bias = xf_load(w->masks[t] + k);
            v = un_hide(xf_add(v, xf_mul(bias, slope)), bias);
        }
        most = xf_max(v, most);
        xf_store(s + k, v);
    }
    return most;
}

/* The largest score of each row of token t, of what it sees. */
static void find_largest(piece *w, int64_t t)
{
    uint32_t seen = w->seen[t];
    for (int64_t i = 0, r = t * w->a->group; i < w->a->group; i++, r++) {
        float *s = w->its.scores + r * UN_CHUNK;
        xf most = xf_set1(UN_LOWEST);
        if (w->a->softcap != 0 || (seen & ~w->plain[t]))
            most = masked(w, t, i, s);
        else
            for (int k = 0; k < UN_CHUNK; k += UN_XL)
                if (seen >> k / UN_LANES & 1)
                    most = xf_max(xf_load(s + k), most);
        w->its.chunk_m[r] = xf_most(most);
    }
}

/* The scores of token t to weights, in place: of what it does not see 0. Their sums are left in
 * partial sums, so that those of several rows are added at once. */
static void find_weights(piece *w, int64_t t)
{
    uint32_t seen = w->seen[t];
    for (int64_t i = 0, r = t * w->a->group; i < w->a->group; i++, r++) {
        float *s = w->its.scores + r * UN_CHUNK;
        xf sum[UN_PARTS], m = xf_set1(w->its.chunk_m[r]);
        for (int p = 0; p < UN_PARTS; p++)
            sum[p] = xf_zero();
        for (int k = 0; k < UN_CHUNK; k += UN_XL) {
            xf e = xf_zero(), *part = &sum[k / UN_XL % UN_PARTS];
            if (seen >> k / UN_LANES & 1)
                e = un_exp_below(xf_sub(xf_load(s + k), m));
            *part = xf_add(*part, e);
            xf_store(s + k, e);
        }
        xf_store(w->its.parts + r * UN_XL, xf_fold(sum));
    }
}

enum { ABREAST = 8 }; /* tokens, so that the largest of a row is known when it is wanted */

static void weights(piece *w)
{
    for (int64_t from = 0; from < w->tokens; from += ABREAST) {
        int64_t to = rest(w->tokens, from + ABREAST);
        for (int64_t t = from; t < to; t++)
            find_largest(w, t);
        for (int64_t t = from; t < to; t++)
            find_weights(w, t);
    }
}

static void add_weights(piece *w)
{
    for (int64_t r = 0; r < w->rows; r += UN_XL) {
        xf parts[UN_XL];
        for (int i = 0; i < UN_XL; i++)
            parts[i] = xf_load(w->its.parts + (r + i) * UN_XL);
        xf_store(w->its.chunk_l + r, xf_sums(parts));
    }
}

/* The row again, without what has no weight: there is a value that is not finite. */
static void weigh_finite(piece *w, int64_t r, int64_t from, int64_t to)
{
    const attention *a = w->a;
    float *acc = w->its.acc + r * a->hv;
    memset(acc, 0, (size_t)a->hv * 4);
    for (int64_t k = 0; from + k < to; k++) {
        float p = w->its.scores[r * UN_CHUNK + k];
        if (p == 0)
            continue;
        find(&a->v, w, from + k, 1, w->row);
        fetch(&a->v, w, 1, a->hv);
        for (int64_t d = 0; d < a->hv; d += UN_XL)
            xf_store(acc + d, xf_fma(un_take(w->at[0], w->type, d), xf_set1(p),
                                     xf_load(acc + d)));
    }
}

static int all_finite(const float *x, int64_t n)
{
    uint32_t odd = 0;
    for (int64_t i = 0; i < n; i++)
        odd |= (un_bits_of(x[i]) & 0x7f800000) == 0x7f800000;
    return !odd;
}

/* Weighted values of a block. */
static void weigh(piece *w, int64_t b, int count)
{
    const attention *a = w->a;
    for (int64_t r = 0; r < w->rows; r += UN_ROWS) {
        int n = (int)rest(w->rows - r, UN_ROWS);
        const float *p = w->its.scores + r * UN_CHUNK + b;
        if (!has(w->tiles[r / UN_ROWS], b))
            continue;
        if (w->rows > FEW)
            un_weigh(p, w->fetched, count, a->hv, w->its.acc + r * a->hv, n);
        else
            un_weigh_few(p, w->at, w->ahead, w->type, count, a->hv, w->its.acc + r * a->hv, n);
    }
}

/* Scores, or weighted values, of one block after the other and of each KV head. Few rows wait
 * for memory: meanwhile each asks for what comes after its block, or after them all (`after`,
 * from column `then` on). Where nothing comes they ask for what is there. */
static void walk(piece *w, int64_t from, int64_t to, const source *x, const source *after,
                 int64_t then, int64_t stride)
{
    for (int64_t b = 0; from + b < to; b += UN_BLOCK) {
        int count = (int)rest(to - from - b, UN_BLOCK), last = from + b + UN_BLOCK >= to;
        int64_t next = last ? then : from + b + UN_BLOCK, left = w->a->cells - next;
        const source *y = last ? after : x;
        if (!has(w->any, b))
            continue;
        find(x, w, from + b, count, w->row);
        if (w->rows <= FEW && left > 0)
            find(y, w, next, rest(left, UN_BLOCK), w->later);
        else
            memcpy(w->later, w->row, sizeof w->later);
        for (turn_to(w, w->first); w->kv < w->first + w->heads; turn_to(w, w->kv + 1)) {
            fetch(x, w, count, stride);
            for (int k = 0; k < UN_BLOCK && w->rows <= FEW; k++)
                w->ahead[k] = w->later[k] + begins(y, w);
            if (x == &w->a->k)
                score(w, b);
            else
                weigh(w, b, count);
        }
    }
}

/* What the chunk gives each KV head: acc, chunk_m and chunk_l. */
static void attend(piece *w, int64_t from, int64_t to)
{
    const attention *a = w->a;
    int64_t end = w->first + w->heads;
    walk(w, from, to, &a->k, &a->v, from, a->hd);
    for (turn_to(w, w->first); w->kv < end; turn_to(w, w->kv + 1)) {
        weights(w);
        add_weights(w);
    }
    memset(w->all.acc, 0, (size_t)(w->heads * w->rows * a->hv) * 4);
    walk(w, from, to, &a->v, &a->k, to + w->next, a->hv);
    for (turn_to(w, w->first); w->kv < end; turn_to(w, w->kv + 1))
        if (!all_finite(w->its.acc, w->rows * a->hv))
            for (int64_t r = 0; r < w->rows; r++)
                if (!all_finite(w->its.acc + r * a->hv, a->hv))
                    weigh_finite(w, r, from, to);
}

#endif
