/* Attention's arithmetic, in float32: for each query softmax(q . k * scale + shift) . v. */
#include <stdlib.h>
#include <string.h>

#include "op_attention.h"
#include "op_product.h"

op_heads op_heads_of(const nnop_view *v, int64_t layout, int64_t heads)
{
    const int64_t *n = v->shape, *s = v->strides;
    if (layout == BSH) {
        int64_t width = heads > 0 ? n[2] / heads : 0;
        return (op_heads){n[0], n[1], heads, width, s[0], s[1], width * s[2], s[2]};
    }
    if (layout == BSND)
        return (op_heads){n[0], n[1], n[2], n[3], s[0], s[1], s[2], s[3]};
    return (op_heads){n[0], n[2], n[1], n[3], s[0], s[2], s[1], s[3]};
}

typedef struct {
    const nnop_call *call;
    void *at[LSE + 1]; /* of each slot that is there */
    op_heads q, k, v, out;
    int64_t length, stride; /* keys of this sequence, and floats of a padded row */
    float *key, *value, *query, *score, *sum;
} work;

/* Keys or values of one head, row by row; through the table where there is one. */
static bool gather(const work *w, int slot, const op_heads *h, int64_t batch, int64_t head,
                   float *to)
{
    const nnop_call *call = w->call;
    const nnop_view *table = &call->slot[TABLE].view, *from = &call->slot[slot].view;
    int64_t block = call->integer[BLOCK];
    for (int64_t i = 0; i < w->length; i++) {
        int64_t in = batch, token = i;
        if (w->at[TABLE] != NULL) {
            double found;
            op_read(table->dtype, w->at[TABLE],
                    batch * table->strides[0] + i / block * table->strides[1], 1, 1, &found);
            in = (int64_t)found;
            token = i % block;
            if (in < 0 || in >= h->batch) {
                sim_task_fault(507015, "aclnn%s: block %lld of %lld", call->name, (long long)in,
                               (long long)h->batch);
                return false;
            }
        }
        op_read_f32(from->dtype, w->at[slot],
                    in * h->by_batch + token * h->by_token + head * h->by_head, h->by_value,
                    h->width, to + i * w->stride);
    }
    return true;
}

/* A row of the mask or the shift, whose leading axes are optional. */
static void row_of(const work *w, int slot, int64_t batch, int64_t head, int64_t token,
                   float *to)
{
    const nnop_view *v = &w->call->slot[slot].view;
    int axes = v->axes;
    int64_t first = token * (op_dim(v, -2) == 1 ? 0 : v->strides[axes - 2]);
    if (axes == 4 && v->shape[1] > 1)
        first += head * v->strides[1];
    if (axes >= 3 && v->shape[0] > 1)
        first += batch * v->strides[0];
    op_read_f32(v->dtype, w->at[slot], first, v->strides[axes - 1], w->length, to);
}

/* Scores become weights; the logarithm of their sum is returned. A row without a key that may
   be seen is 0 with the row fix (innerPrecise 2 and 3), else an average of all. */
static float weigh(work *w, const float *hidden)
{
    int64_t n = w->length, seen = 0;
    float most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        seen += hidden == NULL || hidden[i] == 0;
    for (int64_t i = 0; i < n; i++) {
        if (hidden != NULL && hidden[i] != 0)
            w->score[i] = seen > 0 ? -INFINITY : 0;
        most = fmaxf(most, w->score[i]);
    }
    if (n == 0 || most == -INFINITY || (seen == 0 && w->call->integer[PRECISE] >= 2)) {
        memset(w->score, 0, (size_t)n * sizeof(float));
        return INFINITY;
    }
    for (int64_t i = 0; i < n; i++)
        sum += w->score[i] = expf(w->score[i] - most);
    for (int64_t i = 0; i < n; i++)
        w->score[i] /= sum;
    return most + logf(sum);
}

static void one_query(work *w, int64_t batch, int64_t head, int64_t token)
{
    const nnop_call *call = w->call;
    const op_heads *q = &w->q, *o = &w->out;
    float *more = w->sum + w->stride;
    op_read_f32(call->slot[QUERY].view.dtype, w->at[QUERY],
                batch * q->by_batch + token * q->by_token + head * q->by_head, q->by_value,
                q->width, w->query);
    for (int64_t i = 0; i < w->length; i++)
        w->score[i] = op_dot(w->query, w->key + i * w->stride, w->stride) *
                      (float)call->number[0];
    if (w->at[SHIFT] != NULL) {
        row_of(w, SHIFT, batch, head, token, more);
        for (int64_t i = 0; i < w->length; i++)
            w->score[i] += more[i];
    }
    if (w->at[MASK] != NULL)
        row_of(w, MASK, batch, head, token, more);
    float lse = weigh(w, w->at[MASK] != NULL ? more : NULL);
    memset(w->sum, 0, (size_t)w->stride * sizeof(float));
    for (int64_t i = 0; i < w->length; i++)
        for (int64_t d = 0; d < w->stride; d++)
            w->sum[d] += w->score[i] * w->value[i * w->stride + d];
    op_write_f32(call->slot[OUT].view.dtype, w->at[OUT],
                 batch * o->by_batch + token * o->by_token + head * o->by_head, o->by_value,
                 o->width, w->sum);
    if (call->integer[WITH_LSE] != 0) {
        const int64_t *s = call->slot[LSE].view.strides;
        op_write_f32(ACL_FLOAT, w->at[LSE], batch * s[0] + head * s[1] + token * s[2], 1, 1,
                     &lse);
    }
}

/* A given length of a sequence: one for all, or one for each. */
static int64_t length(const nnop_call *call, int count, int place, int64_t batch,
                      int64_t otherwise)
{
    int64_t n = call->integer[count];
    return n == 0 ? otherwise : call->array[place + (n > 1 ? batch : 0)];
}

static bool find(work *w)
{
    const nnop_call *call = w->call;
    for (int i = 0; i <= LSE; i++) {
        if (call->slot[i].handle == NULL || (i == LSE && call->integer[WITH_LSE] == 0))
            continue;
        w->at[i] = op_at(call, i);
        if (w->at[i] == NULL)
            return false;
    }
    return true;
}

static bool one_sequence(work *w, int64_t batch)
{
    int64_t group = w->call->integer[HEADS] / w->call->integer[KV_HEADS];
    int64_t queries = length(w->call, Q_LENGTHS, 0, batch, w->q.tokens);
    w->length = length(w->call, KV_LENGTHS, LENGTHS, batch, w->k.tokens);
    for (int64_t kv = 0; kv < w->call->integer[KV_HEADS]; kv++) {
        if (!gather(w, KEY, &w->k, batch, kv, w->key) ||
            !gather(w, VALUE, &w->v, batch, kv, w->value))
            return false;
        for (int64_t head = kv * group; head < (kv + 1) * group; head++)
            for (int64_t token = 0; token < queries && token < w->q.tokens; token++)
                one_query(w, batch, head, token);
    }
    return true;
}

void op_attend(const nnop_call *call)
{
    const int64_t *n = call->integer;
    work w = {.call = call};
    if (!find(&w))
        return;
    w.q = op_heads_of(&call->slot[QUERY].view, n[LAYOUT], n[HEADS]);
    w.out = op_heads_of(&call->slot[OUT].view, n[LAYOUT], n[HEADS]);
    w.k = op_heads_of(&call->slot[KEY].view, n[KV_LAYOUT], n[KV_HEADS]);
    w.v = op_heads_of(&call->slot[VALUE].view, n[KV_LAYOUT], n[KV_HEADS]);
    int64_t longest = w.k.tokens;
    for (int64_t b = 0; b < w.q.batch; b++) {
        int64_t these = length(call, KV_LENGTHS, LENGTHS, b, 0);
        longest = these > longest ? these : longest;
    }
    w.stride = op_padded(w.q.width);
    float *room = calloc((size_t)(longest * (2 * w.stride + 2) + 3 * w.stride) + 16,
                         sizeof *room);
    if (room == NULL)
        abort();
    w.key = room;
    w.value = w.key + longest * w.stride;
    w.score = w.value + longest * w.stride;
    w.query = w.score + longest;
    w.sum = w.query + w.stride; /* and behind it a row of the mask */
    for (int64_t b = 0; b < w.q.batch && one_sequence(&w, b); b++)
        ;
    free(room);
}
