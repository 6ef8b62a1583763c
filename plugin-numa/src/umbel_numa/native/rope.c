/* Rotary position embedding: a table of cosines and sines, and the turning of heads by it.
 *
 * rope_cos_sin: in[0] positions (n), in[1] factors (half), or none; to out (2, n, half), or
 * where there is none, to i[1] in the wdata of each node. i[0] n_dims; as bits of doubles i[2]
 * the base, i[3] freq_scale, i[4] ext_factor (0: no YaRN), i[5] what cosines and sines are
 * multiplied by; i[6], i[7] the pairs between which YaRN mixes.
 * rope: in[0] x (n, heads, head_dim); i[0] n_dims, i[1] where the table is in the node's wdata,
 * i[2] 1: neighbours are a pair, else halves are. */
#include "functions.h"
#include "rows.h"

static double real(int64_t bits)
{
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

/* The angle of each pair per position. */
static void frequencies(const un_task *task, int64_t half, double *out)
{
    const int64_t *i = task->step->i;
    const un_tensor *factors = un_in(task, 1);
    double base = real(i[2]), scale = real(i[3]), ext = real(i[4]);
    double width = i[7] > i[6] ? (double)(i[7] - i[6]) : 0.001;
    for (int64_t k = 0; k < half; k++) {
        out[k] = pow(base, -2.0 * (double)k / (double)i[0]);
        double along = ((double)k - (double)i[6]) / width;
        double kept = ext * (1 - (along < 0 ? 0 : along > 1 ? 1 : along));
        out[k] *= ext == 0 ? scale : scale * (1 - kept) + kept;
        if (factors) {
            float factor;
            un_values(factors->data, factors->type, factors->s[3], k, 1, &factor);
            out[k] /= factor;
        }
    }
}

void UN_(rope_cos_sin)(const un_task *task)
{
    const un_tensor *positions = un_in(task, 0);
    int64_t n = positions->n[3], half = task->step->i[0] / 2, from, to;
    int shared = task->step->out >= 0; /* else a table for each node */
    float *cosines = shared ? (float *)un_out(task)->data
                            : (float *)(task->wdata[task->node] + task->step->i[1]);
    double *frequency = un_scratch_get(task, (size_t)half * 8), size = real(task->step->i[5]);
    un_share(n, shared ? task->thread : task->rank, shared ? task->threads : task->size, &from,
             &to);
    if (!frequency || from == to)
        return;
    frequencies(task, half, frequency);
    for (int64_t t = from; t < to; t++) {
        double position = *(const int32_t *)(positions->data + t * positions->s[3]);
        for (int64_t k = 0; k < half; k++) {
            double angle = position * frequency[k];
            cosines[t * half + k] = (float)(cos(angle) * size);
            cosines[(n + t) * half + k] = (float)(sin(angle) * size);
        }
    }
}

enum { PAIRS = 64 }; /* turned at a time */

/* x and out may be the same. `apart` values lie between the two of a pair, `step` between
 * pairs. */
static inline void turn(const float *x, const float *cosine, const float *sine, int n,
                        int64_t apart, int step, float *out)
{
    float a[PAIRS], b[PAIRS];
    for (int k = 0; k < n; k++) {
        float one = x[step * k], two = x[step * k + apart];
        a[k] = one * cosine[k] - two * sine[k];
        b[k] = one * sine[k] + two * cosine[k];
    }
    for (int k = 0; k < n; k++) {
        out[step * k] = a[k];
        out[step * k + apart] = b[k];
    }
}

void UN_(turn_head)(float *out, const float *x, const float *cosine, const float *sine,
                    int64_t dims, int64_t size, int neighbours)
{
    int64_t half = dims / 2;
    for (int64_t k = 0; k < half; k += PAIRS) {
        int n = (int)(half - k < PAIRS ? half - k : PAIRS);
        if (neighbours)
            turn(x + 2 * k, cosine + k, sine + k, n, 1, 2, out + 2 * k);
        else
            turn(x + k, cosine + k, sine + k, n, half, 1, out + k);
    }
    if (x != out)
        memcpy(out + dims, x + dims, (size_t)(size - dims) * 4);
}

void UN_(rope)(const un_task *task)
{
    const un_tensor *x = un_in(task, 0), *out = un_out(task);
    int64_t n = x->n[1], heads = x->n[2], dims = task->step->i[0], from, to;
    const float *table = (const float *)(task->wdata[task->node] + task->step->i[1]);
    float *room = un_scratch_get(task, (size_t)x->n[3] * 4);
    un_share(n * heads, task->thread, task->threads, &from, &to);
    for (int64_t i = from; room && i < to; i++) {
        int64_t t = i / heads, h = i % heads;
        const float *head = un_floats(x, x->data + t * x->s[1] + h * x->s[2], room);
        const float *cosine = table + t * dims / 2;
        UN_(turn_head)((float *)(out->data + t * out->s[1] + h * out->s[2]), head, cosine,
                       cosine + n * dims / 2, dims, x->n[3], task->step->i[2] != 0);
    }
}
