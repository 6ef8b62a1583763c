/* Attention in one pass over the keys, which never makes a matrix of scores.
 *
 * flash_attn_ext: in[0] q (S, H, T, hd), in[1] k (S, Hkv, L, hd), in[2] v (S, Hkv, L, hv),
 * in[3] mask (S, 1, T, L), or none, in[4] sinks (H), or none; out (S, T, H, hv).
 * kv_attention: in[0] q (S, T, H, hd), in[1], in[2] caches (cells, Hkv*hd), (cells, Hkv*hv), or
 * with the heads in front, (Hkv, cells, hd), (Hkv, cells, hv); in[3] table (S, L), in[4] mask,
 * in[5] sinks, or none; out (S*T, H*hv). i[0] Hkv; i[1] -1, or where in the wdata of the first
 * node (i[2]: of each) the partial results of each chunk are left for kv_merge, which has the
 * same inputs and makes `out` of them. i[2]: the heads were dealt over the nodes, each of which
 * attends to its own.
 * f[0] scale, f[1] max_bias, f[2] logit_softcap.
 *
 * A chunk has UN_CHUNK positions, counted from the first entry of the table that is not padding
 * (cell 0). Within it a row's weights are exp(score - m) of the chunk's own maximum m; l is
 * their sum (of 16 partial sums), acc the sum of weighted values in order. Chunks are merged in
 * order, so the bits of a row depend neither on what is computed beside it nor on by whom.
 * What has weight 0 gives exactly nothing, be there NaN in its cell. */
#include "attend.h"

/* Rows that have m and l so far get a chunk's: *m and *l become those of both, and what the
 * weighted values of each are to be multiplied by are left in *old and *new. */
static inline void merge(xf *m, xf *l, xf chunk_m, xf chunk_l, xf *old, xf *new)
{
    xf top = xf_max(chunk_m, *m);
    *old = xf_exp(xf_sub(*m, top));
    *new = xf_exp(xf_sub(chunk_m, top));
    *m = top;
    *l = xf_fma(chunk_l, *new, xf_mul(*l, *old));
}

static void add_values(float *sum, float old, const float *acc, float new, int64_t hv)
{
    for (int64_t d = 0; d < hv; d += UN_XL) {
        xf kept = xf_mul(xf_load(sum + d), xf_set1(old));
        xf_store(sum + d, xf_fma(xf_load(acc + d), xf_set1(new), kept));
    }
}

/* Adds what a chunk gives the rows of the KV head at work to what they have. */
static void add_chunk(piece *w)
{
    int64_t hv = w->a->hv;
    for (int64_t r = 0; r < w->rows; r += UN_XL) {
        float olds[UN_XL], news[UN_XL];
        xf m = xf_load(w->its.m + r), l = xf_load(w->its.l + r), old, new;
        merge(&m, &l, xf_load(w->its.chunk_m + r), xf_load(w->its.chunk_l + r), &old, &new);
        xf_store(w->its.m + r, m);
        xf_store(w->its.l + r, l);
        xf_store(olds, old);
        xf_store(news, new);
        for (int64_t i = r; i < r + UN_XL && i < w->rows; i++)
            if (w->its.chunk_l[i] != 0)
                add_values(w->its.sum + i * hv, olds[i - r], w->its.acc + i * hv, news[i - r],
                           hv);
    }
}

/* One row's result; a sink takes a share of the weights and gives nothing. */
static void finish(const attention *a, int64_t seq, int64_t token, int64_t head, float *sum,
                   float m, float l)
{
    float factor = 1.0f;
    if (a->sinks) {
        float sink = *(const float *)(a->sinks->data + head * a->sinks->s[3]);
        float top = sink > m ? sink : m;
        factor = un_exp(m - top);
        l = l * factor + un_exp(sink - top);
    }
    factor = l != 0 ? factor / l : 0;
    for (int64_t d = 0; d < a->hv; d += UN_XL) /* + 0: never minus zero */
        xf_store(sum + d, xf_add(xf_mul(xf_load(sum + d), xf_set1(factor)), xf_zero()));
    char *out = a->out + seq * a->out_seq + token * a->out_token + head * a->out_head;
    memcpy(out, sum, (size_t)a->v.size * 4);
}

/* Where the partial result of a row and a chunk lies: acc, then m and l. */
static float *partial(const attention *a, int64_t seq, int64_t token, int64_t head, int64_t c)
{
    int64_t row = (seq * a->tokens + token) * a->heads + head;
    return (float *)a->partial + (row * chunks(a) + c) * (a->hv + UN_LANES);
}

/* Leaves what a chunk gives for kv_merge. */
static void leave_chunk(piece *w, int64_t c)
{
    const attention *a = w->a;
    for (int64_t r = 0; r < w->rows; r++) {
        int64_t head = w->kv * a->group + r % a->group;
        float *out = partial(a, w->seq, w->token + r / a->group, head, c);
        out[a->hv] = w->its.chunk_m[r];
        out[a->hv + 1] = w->any ? w->its.chunk_l[r] : 0;
        memcpy(out, w->its.acc + r * a->hv, w->any ? (size_t)a->hv * 4 : 0);
    }
}

static void do_chunk(piece *w, int64_t c)
{
    int64_t from, to;
    chunk_of(w->a, w->phase, c, &from, &to);
    w->any = 0;
    if (from < to)
        look(w, from, to);
    if (w->any)
        attend(w, from, to);
    for (int64_t kv = w->first; kv < w->first + w->heads; kv++) {
        turn_to(w, kv);
        if (w->a->partial)
            leave_chunk(w, c);
        else if (w->any)
            add_chunk(w);
    }
}

static void finish_all(piece *w)
{
    const attention *a = w->a;
    for (int64_t kv = w->first; kv < w->first + w->heads; kv++) {
        turn_to(w, kv);
        for (int64_t r = 0; r < w->rows; r++)
            finish(a, w->seq, w->token + r / a->group, kv * a->group + r % a->group,
                   w->its.sum + r * a->hv, w->its.m[r], w->its.l[r]);
    }
}

/* the steps */

enum { TILE = 192 }; /* rows of a KV head in a piece, about: they share what is fetched */

/* Tokens of a piece: fewer where there would not be work for all threads. */
static int64_t tile_of(const attention *a)
{
    int64_t n = rest(a->tokens, TILE / a->group > 1 ? TILE / a->group : 1);
    while (n > 1 && n * a->group > 2 * FEW &&
           (a->tokens + n - 1) / n * a->seqs * a->own < 4 * a->parts)
        n = (n + 1) / 2;
    return n;
}

/* Pieces are dealt to and fro, those with the longest way back first. */
static int is_own(const attention *a, int64_t piece)
{
    int64_t round = piece / a->parts, at = piece % a->parts;
    return (round & 1 ? a->parts - 1 - at : at) == a->part;
}

/* Each chunk is a piece; of all KV heads, which lie side by side, if there are enough. */
static void run_chunks(const un_task *task, const attention *a)
{
    int64_t n = chunks(a), heads = a->seqs * n >= 2 * a->parts ? a->own : 1;
    int64_t parts = a->own / heads;
    piece w;
    if (!make_room(task, a, heads, a->tokens, &w))
        return;
    w.next = (a->parts / parts - 1) * UN_CHUNK;
    w.next = w.next > 0 ? w.next : 0;
    for (int64_t i = a->part; i < a->seqs * n * parts; i += a->parts) {
        begin(&w, i / parts / n, a->first + i % parts * heads, heads, 0, a->tokens);
        do_chunk(&w, i / parts % n);
    }
}

/* A piece has all chunks of some tokens; where there are few, of all KV heads. */
static void run_tiles(const un_task *task, const attention *a)
{
    int few = a->tokens * a->group <= 2 * FEW;
    int64_t heads = few && (a->seqs >= 4 * a->parts || a->parts == 1) ? a->own : 1;
    int64_t tile = tile_of(a), tiles = (a->tokens + tile - 1) / tile;
    int64_t parts = a->seqs * a->own / heads;
    piece w;
    if (!make_room(task, a, heads, tile, &w))
        return;
    for (int64_t i = 0; i < tiles * parts; i++) {
        int64_t token = (tiles - 1 - i / parts) * tile, kv = i % parts * heads;
        if (!is_own(a, i))
            continue;
        begin(&w, kv / a->own, a->first + kv % a->own, heads, token,
              rest(a->tokens - token, tile));
        for (int64_t c = 0; c < chunks(a); c++)
            do_chunk(&w, c);
        finish_all(&w);
    }
}

static void run(const un_task *task, const attention *a)
{
    if (!a->seqs || !a->own || !a->tokens)
        return;
    if (a->partial)
        run_chunks(task, a);
    else
        run_tiles(task, a);
}

/* `dealt`: this node's threads share what its heads have to do. */
static void settings(const un_task *task, attention *a, int dealt)
{
    a->part = task->thread, a->parts = task->threads, a->own = a->kv;
    if (dealt) {
        int64_t end;
        a->part = task->rank, a->parts = task->size;
        un_share(a->kv, task->node, task->nodes, &a->first, &end);
        a->own = end - a->first;
    }
    a->group = a->kv ? a->heads / a->kv : 1;
    a->hd = whole(a->k.size);
    a->hv = whole(a->v.size);
    a->scale = task->step->f[0];
    a->max_bias = task->step->f[1];
    a->softcap = task->step->f[2];
    a->out = un_out(task)->data;
}

static source dense(const un_tensor *x)
{
    return (source){x->data, x->s[0], x->s[2], x->s[1], x->s[3], x->type, x->n[3], 0, NULL};
}

void UN_(flash_attn_ext)(const un_task *task)
{
    const un_tensor *q = un_in(task, 0), *k = un_in(task, 1), *out = un_out(task);
    attention a = {.seqs = q->n[0], .heads = q->n[1], .tokens = q->n[2], .cells = k->n[2]};
    a.kv = k->n[1];
    a.q = q, a.q_head = 1, a.q_token = 2;
    a.k = dense(k), a.v = dense(un_in(task, 2));
    a.mask = un_in(task, 3), a.sinks = un_in(task, 4);
    a.out_seq = out->s[0], a.out_token = out->s[1], a.out_head = out->s[2];
    settings(task, &a, 0);
    run(task, &a);
}

static source cached(const un_tensor *x, const un_tensor *table, int64_t heads)
{
    if (x->axes == 3)
        return (source){x->data, 0, x->s[2], x->s[1], x->s[3], x->type, x->n[3], 0, table};
    int64_t size = x->n[3] / heads;
    return (source){x->data, 0, x->s[2], 0, x->s[3], x->type, size, size, table};
}

/* Of kv_attention and kv_merge. */
static attention over_caches(const un_task *task)
{
    const un_tensor *q = un_in(task, 0), *table = un_in(task, 3), *out = un_out(task);
    attention a = {.seqs = q->n[0], .tokens = q->n[1], .heads = q->n[2], .cells = table->n[3]};
    a.kv = task->step->i[0];
    a.q = q, a.q_token = 1, a.q_head = 2;
    a.k = cached(un_in(task, 1), table, a.kv), a.v = cached(un_in(task, 2), table, a.kv);
    a.mask = un_in(task, 4), a.sinks = un_in(task, 5);
    a.out_head = a.v.size * 4;
    a.out_token = out->s[2], a.out_seq = a.tokens * a.out_token;
    if (task->step->i[1] >= 0)
        a.partial = task->wdata[task->step->i[2] ? task->node : 0] + task->step->i[1];
    settings(task, &a, task->step->i[2] != 0);
    return a;
}

void UN_(kv_attention)(const un_task *task)
{
    attention a = over_caches(task);
    run(task, &a);
}

void UN_(kv_merge)(const un_task *task)
{
    attention a = over_caches(task);
    int64_t from, to;
    float *sum = un_scratch_get(task, (size_t)a.hv * 4);
    int64_t heads = a.own * a.group;
    un_share(a.seqs * a.tokens * heads, a.part, a.parts, &from, &to);
    for (int64_t i = from; sum && i < to; i++) {
        int64_t head = a.first * a.group + i % heads, token = i / heads % a.tokens;
        int64_t seq = i / heads / a.tokens;
        xf m = xf_set1(UN_LOWEST), l = xf_zero(), old, new;
        memset(sum, 0, (size_t)a.hv * 4);
        for (int64_t c = 0; c < chunks(&a); c++) {
            const float *part = partial(&a, seq, token, head, c);
            if (part[a.hv + 1] == 0)
                continue;
            merge(&m, &l, xf_set1(part[a.hv]), xf_set1(part[a.hv + 1]), &old, &new);
            add_values(sum, un_first(old), part, un_first(new), a.hv);
        }
        finish(&a, seq, token, head, sum, un_first(m), un_first(l));
    }
}
