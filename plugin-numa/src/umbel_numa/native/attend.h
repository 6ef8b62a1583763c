/* What a piece of attention does with one chunk after the other. attention.c says what a chunk
 * is, and what is the same whatever the pieces are. */
#ifndef UN_ATTEND_H
#define UN_ATTEND_H

#include "piece.h"

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

/* Scores of a block of keys. */
static void score(piece *w, int64_t b)
{
    const attention *a = w->a;
    if (w->rows > FEW)
        un_turn_keys(w->fetched, a->hd, w->turned);
    for (int64_t r = 0; r < w->rows; r += UN_ROWS) {
        int n = (int)rest(w->rows - r, UN_ROWS);
        float *out = w->its.scores + r * UN_CHUNK + b;
        if (!has(seen_by(w, r, n), b))
            continue;
        if (w->rows > FEW)
            un_score_tile(w->its.q + r * a->hd, w->turned, a->hd, out, n);
        else
            un_score_few(w->its.q + r * a->hd, w->at, w->type, a->hd, out, n);
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
    float *s = w->its.scores + r * UN_CHUNK, m = masked(w, r, s);
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
    w->its.chunk_m[r] = m;
    xf_store(w->its.parts + r * UN_XL, xf_fold(sum));
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
        find(&a->v, w, from + k, 1);
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
        if (!has(seen_by(w, r, n), b))
            continue;
        if (w->rows > FEW)
            un_weigh(p, w->fetched, count, a->hv, w->its.acc + r * a->hv, n);
        else
            un_weigh_few(p, w->at, w->type, count, a->hv, w->its.acc + r * a->hv, n);
    }
}

/* Scores, or weighted values, of one block after the other and of each KV head; what comes
 * after a block, or after them all (`after`, from column `then` on), is asked for meanwhile. */
static void walk(piece *w, int64_t from, int64_t to, const source *x, const source *after,
                 int64_t then, int64_t stride)
{
    for (int64_t b = 0; from + b < to; b += UN_BLOCK) {
        int count = (int)rest(to - from - b, UN_BLOCK);
        if (w->rows <= FEW) {
            int last = from + b + UN_BLOCK >= to;
            expect(last ? after : x, w, last ? then : from + b + UN_BLOCK, UN_BLOCK);
        }
        if (!has(w->any, b))
            continue;
        find(x, w, from + b, count);
        for (turn_to(w, w->first); w->kv < w->first + w->heads; turn_to(w, w->kv + 1)) {
            fetch(x, w, count, stride);
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
        for (int64_t r = 0; r < w->rows; r++)
            weights(w, r);
        add_weights(w);
    }
    memset(w->all.acc, 0, (size_t)(w->heads * w->rows * a->hv) * 4);
    walk(w, from, to, &a->v, &a->k, to + w->next, a->hv);
    for (turn_to(w, w->first); w->kv < end; turn_to(w, w->kv + 1))
        for (int64_t r = 0; r < w->rows; r++)
            if (!all_finite(w->its.acc + r * a->hv, a->hv))
                weigh_finite(w, r, from, to);
}

#endif
