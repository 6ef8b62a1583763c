/* Products with packed weights that are stacks, or windows on the rows of one; linear.c has the
 * usual ones.
 *
 * mul_mat: in[0] packed weight (..., out, n), in[1] x (..., N, n) float, whose values were
 * prepared (prepare.c); i[0] where in the wdata of each node, i[1] the form (UN_ACT_*), i[2]
 * the first of the weight's rows, of all that are packed together. */
#include "floats.h"
#include "packed.h"

/* A product of some rows of one packed matrix with tokens that lie together. */
typedef struct {
    un_matrix m;
    un_act x;
    int form;
    int64_t tokens;
    char *out;              /* (tokens, rows) */
    int64_t out_stride;
} product;

/* One or two groups against up to UN_MANY tokens. */
static void tile(const product *p, const uint8_t *group, int64_t g, int groups, int64_t t,
                 int n)
{
    const un_weight *w = p->m.w;
    _Alignas(64) float acc[2 * UN_MANY * UN_LANES];
    un_dot d = {.group = group, .groups = groups, .group_bytes = w->group_bytes,
                .to = p->x.blocks, .tokens = n, .acc = acc};
    d.x = un_act_from(p->x, p->form, t);
    if (p->form == UN_ACT_F32)
        UN_(dot_floats)(w->format, &d);
    else
        w->format->dot(&d);
    for (int i = 0; i < groups; i++)
        for (int k = 0; k < n; k++)
            un_matrix_store(&p->m, g + i, acc + (i * UN_MANY + k) * UN_LANES,
                            (float *)(p->out + (t + k) * p->out_stride));
}

/* The groups that fall to this thread, of those that its node holds. */
static void multiply(const un_task *task, const product *p)
{
    const un_matrix *m = &p->m;
    un_own own = un_own_of(task, m->w, m->index);
    int64_t from = m->from > own.from ? m->from : own.from;
    int64_t to = m->to < own.to ? m->to : own.to, share_from, share_to;
    if (from >= to)
        return;
    un_share(to - from, own.part, own.parts, &share_from, &share_to);
    for (int64_t t = 0; t < p->tokens; t += UN_MANY) {
        int n = (int)(p->tokens - t < UN_MANY ? p->tokens - t : UN_MANY), groups;
        for (int64_t g = from + share_from; g < from + share_to; g += groups) {
            groups = g + 2 <= from + share_to ? 2 : 1;
            tile(p, un_group_of(m->w, own.node, m->index, g), g, groups, t, n);
        }
    }
}

/* Rows of x from `t` on times `rows` packed rows from `row` on, across packed matrices. */
static void multiply_rows(const un_task *task, product p, int64_t t, int64_t row, int64_t rows)
{
    const un_tensor *out = un_out(task);
    char *to = out->data + t * out->s[2];
    for (int64_t done = 0; done < rows; done += p.m.rows) {
        p.m = un_matrix_at(un_in(task, 0)->weight, row + done, rows - done);
        p.out = to + 4 * done;
        multiply(task, &p);
    }
}

void UN_(mul_mat)(const un_task *task)
{
    const un_tensor *x = un_in(task, 1), *weight = un_in(task, 0), *out = un_out(task);
    int64_t row = task->step->i[2], rows = weight->n[2], all = un_rows(x);
    product p = {.out_stride = out->s[2], .tokens = all, .form = (int)task->step->i[1]};
    char *at = task->wdata[task->node] + task->step->i[0];
    p.x = un_act_at(at, p.form, all, x->n[3]);
    if (weight->n[0] * weight->n[1] <= 1) {
        multiply_rows(task, p, 0, row, rows);
        return;
    }
    un_act every = p.x;
    p.tokens = x->n[2];
    for (int64_t i = 0; i < x->n[0] * x->n[1]; i++) { /* batch i of x meets one matrix */
        int64_t outer = i / x->n[1] * weight->n[0] / x->n[0];
        int64_t inner = i % x->n[1] * weight->n[1] / x->n[1], t = i * p.tokens;
        p.x = un_act_from(every, p.form, t);
        int64_t away = outer * weight->s[0] + inner * weight->s[1];
        multiply_rows(task, p, t, row + away / weight->s[2], rows);
    }
}
