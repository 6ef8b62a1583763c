/* The linear layers of a model: products with packed weights, and what is done along with them.
 *
 * linear: i[2] products with the same x; each has three tensors: packed weight (out, n), result
 * (N, out), what is added to it, (out) or (N, out), or the result itself where there is nothing
 * (bit p of i[5] says). i[0], i[1] are those of prepare; i[0] is -1 where each thread prepares
 * the one row, which lies side by side, for itself: then x, and with i[4] the weight of the
 * norm, stand in front of the products. i[3] is the operation of a gated linear unit, whose
 * gate and up are the two products and whose result is `out`; else -1. i[6], i[7] the sizes of
 * x: N, n. */
#include "floats.h"
#include "functions.h"
#include "packed.h"

/* The products of a step, for one thread. */
typedef struct {
    const un_tensor *w[3], *out[3], *add[3];
    int count, form, glu;
    un_act x;
    int64_t tokens;
    const un_tensor *unit; /* the result of the gated unit */
} layers;

/* n results; most groups are whole, and a call to copy so little would take longer. */
static inline void put(float *to, const float *from, int64_t n)
{
    if (n == UN_LANES)
        memcpy(to, from, UN_LANES * 4);
    else
        memcpy(to, from, (size_t)n * 4);
}

/* Where 16 results of one token and group go, and what is added to them. */
static void store(const layers *l, int p, int64_t row, int64_t t, const float *acc)
{
    const un_tensor *out = l->out[p], *add = l->add[p];
    int64_t rows = l->w[p]->weight->rows, n = rows - row < UN_LANES ? rows - row : UN_LANES;
    float *to = (float *)(out->data + t * out->s[2]) + row;
    if (!add) {
        put(to, acc, n);
        return;
    }
    const char *line = add->data + (add->n[0] * add->n[1] * add->n[2] > 1 ? t * add->s[2] : 0);
    const float *from = (const float *)line + row;
    int64_t i = 0;
    for (; i + UN_XL <= n; i += UN_XL)
        xf_store(to + i, xf_add(xf_load(acc + i), xf_load(from + i)));
    for (; i < n; i++)
        to[i] = acc[i] + from[i];
}

/* acc (n tokens, 16 rows) of one or two groups from g on = group times the tokens from t on;
 * the second group's are UN_MANY tokens further on. */
static void dot(const layers *l, const un_weight *w, int node, int64_t g, int groups, int64_t t,
                int n, float *acc)
{
    un_dot d = {.group = un_group_of(w, node, 0, g), .group_bytes = w->group_bytes,
                .groups = groups, .to = l->x.blocks, .tokens = n, .acc = acc};
    d.x = un_act_from(l->x, l->form, t);
    if (l->form == UN_ACT_F32)
        UN_(dot_floats)(w->format, &d);
    else
        w->format->dot(&d);
}

static void store_unit(const layers *l, int64_t row, int64_t t, const float *gate)
{
    int64_t rows = l->w[0]->weight->rows, n = rows - row < UN_LANES ? rows - row : UN_LANES;
    float *to = (float *)(l->unit->data + t * l->unit->s[2]) + row;
    put(to, gate, n);
}

/* One or two groups of a product, or of both that make a unit, against n tokens. */
static void tile(const layers *l, int p, int node, int64_t g, int groups, int64_t t, int n)
{
    _Alignas(64) float acc[2 * UN_MANY * UN_LANES], up[2 * UN_MANY * UN_LANES];
    dot(l, l->w[p]->weight, node, g, groups, t, n, acc);
    if (l->glu >= 0)
        dot(l, l->w[1]->weight, node, g, groups, t, n, up);
    for (int i = 0; i < groups; i++) {
        float *sums = acc + i * UN_MANY * UN_LANES;
        if (l->glu >= 0)
            UN_(glu)(l->glu, sums, up + i * UN_MANY * UN_LANES, n * UN_LANES);
        for (int k = 0; k < n; k++)
            if (l->glu >= 0)
                store_unit(l, (g + i) * UN_LANES, t + k, sums + k * UN_LANES);
            else
                store(l, p, (g + i) * UN_LANES, t + k, sums + k * UN_LANES);
    }
}

static void products(const layers *l, int p, int node, int64_t from, int64_t to)
{
    int groups;
    for (int64_t t = 0; t < l->tokens; t += UN_MANY) {
        int n = (int)(l->tokens - t < UN_MANY ? l->tokens - t : UN_MANY);
        for (int64_t g = from; g < to; g += groups) {
            groups = g + 2 <= to ? 2 : 1;
            tile(l, p, node, g, groups, t, n);
        }
    }
}

/* All products as one row of groups, so that shares are even however many there are of each. */
static void all_products(const un_task *task, const layers *l)
{
    int64_t groups = 0, from, to;
    int count = l->glu < 0 ? l->count : 1;
    un_own own[3]; /* all weights of a step are cut alike */
    for (int p = 0; p < count; p++) {
        own[p] = un_own_of(task, l->w[p]->weight, 0);
        groups += own[p].to - own[p].from;
    }
    un_share(groups, own[0].part, own[0].parts, &from, &to);
    for (int p = 0; p < count && from < to; p++) {
        int64_t here = own[p].to - own[p].from, end = to < here ? to : here;
        if (from < here)
            products(l, p, own[p].node, own[p].from + from, own[p].from + end);
        from = from > here ? from - here : 0;
        to -= here;
    }
}

/* The one row of x, prepared by this thread for itself. */
static int prepare_alone(const un_task *task, layers *l, int64_t n)
{
    const un_step *step = task->step;
    const float *x = (const float *)un_in(task, 0)->data;
    const float *norm = step->i[4] ? (const float *)un_in(task, 1)->data : NULL;
    int64_t bytes = un_whole(un_act_bytes(l->form, 1, n), 64);
    char *room = un_scratch_get(task, (size_t)(bytes + (n + UN_LANES) * 4));
    if (!room)
        return 0;
    l->x = un_act_at(room, l->form, 1, n);
    float *normed = (float *)(room + bytes);
    UN_(prepare_row)(l->x, l->form, x, norm, step->f[0], n, normed);
    return 1;
}

void UN_(linear)(const un_task *task)
{
    const un_step *step = task->step;
    layers l = {.count = (int)step->i[2], .form = (int)step->i[1], .glu = (int)step->i[3]};
    int64_t n = step->i[7];
    int at = step->i[0] >= 0 ? 0 : step->i[4] ? 2 : 1;
    l.tokens = step->i[6];
    l.unit = step->out >= 0 ? un_out(task) : NULL;
    for (int p = 0; p < l.count; p++, at += 3) {
        l.w[p] = un_in(task, at);
        l.out[p] = un_in(task, at + 1);
        l.add[p] = step->i[5] >> p & 1 ? un_in(task, at + 2) : NULL;
    }
    if (step->i[0] < 0) {
        if (!prepare_alone(task, &l, n))
            return;
    } else {
        l.x = un_act_at(task->wdata[task->node] + step->i[0], l.form, l.tokens, n);
    }
    all_products(task, &l);
}
