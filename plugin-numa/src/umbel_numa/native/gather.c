/* get_rows: in[0] a (R, C), in[1] ids int32 of any shape; or a (*B, R, C) and ids (*B, n), each
 * row of which names rows of its own matrix; i[0] the first of the rows of a, where they are
 * packed. The result is float32, a row for each id. */
#include "packed.h"
#include "rawrows.h"

/* Row r of a packed weight, counted through all matrices. */
static void unpack(const un_weight *w, int near, int64_t r, int64_t n, float *room, float *out)
{
    int64_t matrix = r / w->rows, g = r % w->rows / UN_LANES;
    float *to = n % w->format->block ? room : out;
    const uint8_t *group = un_group_of(w, un_holder(w, near, matrix, g), matrix, g);
    w->format->row(group, (int)(r % w->rows % UN_LANES), w->cols, to);
    if (to == room)
        memcpy(out, room, (size_t)n * 4);
}

void UN_(get_rows)(const un_task *task)
{
    const un_tensor *a = un_in(task, 0), *ids = un_in(task, 1), *result = un_out(task);
    int64_t n = a->n[3], count = ids->n[0] * ids->n[1] * ids->n[2] * ids->n[3], from, to;
    float *room = NULL;
    if (!a->data && !(room = un_scratch_get(task, (size_t)(n + 255) * 4)))
        return;
    un_share(count, task->thread, task->threads, &from, &to);
    for (int64_t i = from; i < to; i++) {
        int64_t last = i % ids->n[3], before = i / ids->n[3];
        int32_t r;
        memcpy(&r, un_row(ids, before) + last * ids->s[3], 4);
        int64_t batch = a->axes > 2 ? before : 0;
        int64_t at = batch / a->n[1] * a->s[0] + batch % a->n[1] * a->s[1] + r * a->s[2];
        float *out = (float *)un_row(result, i);
        if (!a->data) {
            unpack(a->weight, task->node, task->step->i[0] + at / a->s[2], n, room, out);
            continue;
        }
        const char *row = a->data + at;
        if (un_plain(a))
            memcpy(out, row, (size_t)n * 4);
        else
            UN_(row_floats)(a->type, row, a->s[3], n, out);
    }
}
