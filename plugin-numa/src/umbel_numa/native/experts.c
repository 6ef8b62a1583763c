/* mul_mat_id: in[0] w (experts, out, in), packed or as dense.h takes it; in[1] x (n, own, in)
 * float32, own 1 or used; in[2] ids (n, used) int32; of a packed w i[0] to i[2] as of mul_mat.
 *
 * What is asked for is a list of pairs (token, place), sorted by expert, so that the rows of an
 * expert are read once for all of its pairs. Threads share the rows of all chosen experts, by
 * what they cost: as much as their pairs, and a little for reading them. */
#include "blocks.h"
#include "dense.h"
#include "floats.h"
#include "packed.h"

typedef struct {
    const un_task *task;
    const un_tensor *w, *x, *ids, *out;
    int64_t used, pairs;
    int64_t row;       /* of a packed w: the first of the view */
    int form, node;    /* of a packed w: how x is prepared, whose groups are read */
    un_act act;        /* of a packed w: all rows of x */
    int32_t *first;    /* of each expert's pairs; experts + 1 */
    int32_t *sorted;   /* pairs, by expert */
    const float **from;
    float **to, *copies;
    char *room;
} job;

static int32_t expert_of(const job *j, int64_t pair)
{
    const un_tensor *ids = j->ids;
    const char *row = ids->data + pair / j->used * ids->s[2] + pair % j->used * ids->s[3];
    return *(const int32_t *)row;
}

static int64_t row_of_x(const job *j, int64_t pair)
{
    return j->x->n[2] == j->used ? pair : pair / j->used;
}

static float *result(const job *j, int64_t pair)
{
    return (float *)un_row(j->out, pair);
}

/* The pairs by expert; those of an expert in their order. */
static void sort(job *j)
{
    int64_t experts = j->w->n[1];
    memset(j->first, 0, (size_t)(experts + 1) * 4);
    for (int64_t i = 0; i < j->pairs; i++)
        j->first[expert_of(j, i) + 1]++;
    for (int64_t e = 0; e < experts; e++)
        j->first[e + 1] += j->first[e];
    for (int64_t i = 0; i < j->pairs; i++)
        j->sorted[j->first[expert_of(j, i)]++] = (int32_t)i;
    for (int64_t e = experts; e > 0; e--) /* each has moved on to where the next begins */
        j->first[e] = j->first[e - 1];
    j->first[0] = 0;
}

/* The activations of up to UN_TILE pairs side by side. */
static un_act gathered(const job *j, const int32_t *pairs, int n)
{
    if (n == 1)
        return un_act_from(j->act, j->form, row_of_x(j, pairs[0]));
    un_act to = un_act_at(j->room, j->form, UN_TILE, 32 * j->act.blocks);
    for (int i = 0; i < n; i++)
        un_act_copy(to, i, j->act, row_of_x(j, pairs[i]), j->form);
    return to;
}

static void packed_tile(const job *j, const un_matrix *m, const int32_t *pairs, int n,
                        int64_t from, int64_t to)
{
    _Alignas(64) float acc[(UN_MANY + UN_TILE) * UN_LANES];
    un_dot d = {.group_bytes = m->w->group_bytes, .to = j->act.blocks, .tokens = n, .acc = acc};
    d.x = gathered(j, pairs, n);
    for (int64_t g = from; g < to; g += d.groups) {
        d.groups = g + 2 <= to ? 2 : 1;
        d.group = un_group_of(m->w, j->node, m->index, g);
        if (j->form == UN_ACT_F32)
            UN_(dot_floats)(m->w->format, &d);
        else
            m->w->format->dot(&d);
        for (int k = 0; k < d.groups; k++)
            for (int i = 0; i < n; i++)
                un_matrix_store(m, g + k, acc + (k * UN_MANY + i) * UN_LANES,
                                result(j, pairs[i]));
    }
}

enum { CACHED = 256 << 10 }; /* bytes of groups that stay in the cache for all pairs */

static void packed_expert(const job *j, int64_t e, int64_t from, int64_t to)
{
    un_matrix m = un_matrix_of(j->w, j->row, e);
    int64_t bytes = m.w->group_bytes, step = CACHED / bytes > 1 ? CACHED / bytes : 1;
    for (int64_t g = from; g < to; g += step)
        for (int32_t i = j->first[e]; i < j->first[e + 1]; i += UN_TILE) {
            int32_t n = j->first[e + 1] - i < UN_TILE ? j->first[e + 1] - i : UN_TILE;
            packed_tile(j, &m, j->sorted + i, n, g, g + step < to ? g + step : to);
        }
}

static void dense_expert(const job *j, int64_t e, int64_t from, int64_t to)
{
    const un_tensor *w = j->w, *x = j->x;
    int64_t tokens = j->first[e + 1] - j->first[e], n = w->n[3], rows = w->n[2];
    for (int64_t i = 0; i < tokens; i++) {
        int64_t pair = j->sorted[j->first[e] + i];
        j->from[i] = un_floats_at(x, un_row(x, row_of_x(j, pair)), j->copies + i * n);
        j->to[i] = result(j, pair);
    }
    to = to * UN_LANES < rows ? to * UN_LANES : rows;
    un_dense d = {w, w->data + e * w->s[1], from * UN_LANES, to, tokens, j->from, j->to,
                  (float *)j->room};
    UN_(dense_rows)(&d);
}

static int prepare(const un_task *task, job *j)
{
    const un_weight *w = j->w->weight;
    int64_t n = j->w->n[3], pairs = j->pairs, first = un_whole((j->w->n[1] + 1) * 4, 64);
    int64_t sorted = un_whole(pairs * 4, 64), list = un_whole(pairs * 8, 64);
    int64_t dense = w ? 0 : (int64_t)UN_(dense_room)(j->w);
    int64_t room = w ? UN_TILE * (n + 31) / 32 * (4 * 32 + 12) + 64 : un_whole(dense, 64);
    int64_t copies = w || un_plain(j->x) ? 0 : pairs * n * 4;
    char *at = un_scratch_get(task, (size_t)(first + sorted + 2 * list + room + copies));
    if (!at)
        return 0;
    j->first = (int32_t *)at;
    j->sorted = (int32_t *)(at += first);
    j->from = (const float **)(at += sorted);
    j->to = (float **)(at += list);
    j->room = at += list;
    j->copies = (float *)(at + room);
    if (w) {
        char *act = task->wdata[task->node] + task->step->i[0];
        j->form = (int)task->step->i[1];
        j->row = task->step->i[2];
        j->node = un_own_of(task, w, 0).node;
        j->act = un_act_at(act, j->form, un_rows(j->x), n);
    }
    return 1;
}

/* The groups of 16 rows of an expert that this thread shares with others, none if nobody chose
 * it. */
static void groups(const job *j, int64_t e, int64_t *from, int64_t *to)
{
    const un_task *task = j->task;
    int64_t first = task->thread - task->rank, all = (j->w->n[2] + UN_LANES - 1) / UN_LANES;
    *from = *to = 0;
    if (j->first[e + 1] == j->first[e])
        return;
    if (!j->w->weight) { /* the node's part of the rows, which lie there: weights.py */
        *from = all * first / task->threads;
        *to = all * (first + task->size) / task->threads;
        return;
    }
    un_matrix m = un_matrix_of(j->w, j->row, e);
    un_own own = un_own_of(task, m.w, m.index);
    *from = m.from > own.from ? m.from : own.from;
    *to = m.to < own.to ? m.to : own.to;
    *to = *to > *from ? *to : *from;
}

/* For the report: `chosen` has one number for each matrix that is packed together. */
static void count(const job *j)
{
    const un_weight *w = j->w->weight;
    if (!w || !w->chosen || j->task->thread)
        return;
    for (int64_t e = 0; e < j->w->n[1]; e++)
        w->chosen[un_matrix_of(j->w, j->row, e).index] += j->first[e + 1] - j->first[e];
}

/* What a group of an expert costs. */
static int64_t cost(const job *j, int64_t e) { return j->first[e + 1] - j->first[e] + 2; }

/* How many of `count` groups that cost `each` begin before `share`, `done` lying before
 * them. */
static int64_t before(int64_t share, int64_t done, int64_t each, int64_t count)
{
    int64_t n = share > done ? (share - done + each - 1) / each : 0;
    return n < count ? n : count;
}

void UN_(mul_mat_id)(const un_task *task)
{
    job j = {.task = task, .w = un_in(task, 0), .x = un_in(task, 1), .ids = un_in(task, 2)};
    j.out = un_out(task);
    j.used = j.ids->n[3];
    j.pairs = j.ids->n[2] * j.used;
    if (!j.pairs || !j.w->n[2] || !prepare(task, &j))
        return;
    sort(&j);
    count(&j);
    un_own own = {.part = task->rank, .parts = task->size};
    if (j.w->weight) /* how threads share is the same for all experts */
        own = un_own_of(task, j.w->weight, 0);
    int64_t all = 0, done = 0, from, to, begin, end;
    for (int64_t e = 0; e < j.w->n[1]; e++) {
        groups(&j, e, &from, &to);
        all += cost(&j, e) * (to - from);
    }
    un_share(all, own.part, own.parts, &begin, &end);
    for (int64_t e = 0; e < j.w->n[1] && done < end; e++) {
        groups(&j, e, &from, &to);
        int64_t each = cost(&j, e), count = to - from;
        int64_t some = before(begin, done, each, count), last = before(end, done, each, count);
        if (some < last)
            (j.w->weight ? packed_expert : dense_expert)(&j, e, from + some, from + last);
        done += each * count;
    }
}
