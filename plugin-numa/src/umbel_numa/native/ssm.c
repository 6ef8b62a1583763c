/* State space models: the causal convolution and the selective scan of Mamba.
 *
 * Lanes are channels, so that sums run over taps and states in one order; the tokens of a
 * sequence go through one after the other, in tiles between which states are kept exactly. */
#include "strided.h"

enum { TILE = 32 }; /* tokens */

/* Rows of any memory as columns: out[j * UN_XL + i] is value j of row i, which begins off[i]
 * bytes from `from`. Rows beyond m are zeros. */
static void columns(float *out, const char *from, const int64_t *off, int64_t each, int m,
                    int64_t n)
{
    xf v[UN_XL];
    int64_t j = 0;
    for (; each == 4 && j + UN_XL <= n; j += UN_XL) {
        for (int i = 0; i < UN_XL; i++)
            v[i] = i < m ? xf_load((const float *)(from + off[i]) + j) : xf_zero();
        xf_transpose(v);
        for (int i = 0; i < UN_XL; i++)
            xf_store(out + (j + i) * UN_XL, v[i]);
    }
    for (; j < n; j++)
        for (int i = 0; i < UN_XL; i++)
            out[j * UN_XL + i] = i < m ? *(const float *)(from + off[i] + j * each) : 0;
}

/* The way back: m rows of n floats that follow each other. */
static void rows_again(float *out, const float *from, int m, int64_t n)
{
    xf v[UN_XL];
    int64_t j = 0;
    for (; j + UN_XL <= n; j += UN_XL) {
        for (int i = 0; i < UN_XL; i++)
            v[i] = xf_load(from + (j + i) * UN_XL);
        xf_transpose(v);
        for (int i = 0; i < m; i++)
            xf_store(out + i * n + j, v[i]);
    }
    for (; j < n; j++)
        for (int i = 0; i < m; i++)
            out[i * n + j] = from[j * UN_XL + i];
}

static inline void store_lanes(float *out, xf v, int m)
{
    if (m == UN_XL)
        xf_store(out, v);
    else
        xf_store_n(out, v, m);
}

/* ssm_conv: in[0] sx (S, C, L), in[1] kernel (C, K) to (S, L - K + 1, C): each channel against
 * its kernel, the taps in order. */
typedef struct {
    const char *x, *w;          /* the first channel's */
    int64_t x_off[UN_XL], w_off[UN_XL];
    int64_t x_each, w_each, taps, tokens, channels;
    float *out;
    int m;
    float *turned_x, *turned_w; /* room: (2 TILE + taps, XL) and (taps, XL) */
} conv;

/* A few tokens: one channel after the other. */
UN_INLINE void conv_short(const conv *c, const int64_t taps)
{
    for (int i = 0; i < c->m; i++)
        for (int64_t t = 0; t < c->tokens; t++) {
            const char *x = c->x + c->x_off[i] + t * c->x_each, *w = c->w + c->w_off[i];
            float y = *(const float *)x * *(const float *)w;
            for (int64_t k = 1; k < taps; k++)
                y = fmaf(*(const float *)(x + k * c->x_each),
                         *(const float *)(w + k * c->w_each), y);
            c->out[t * c->channels + i] = y;
        }
}

static void conv_long(const conv *c)
{
    columns(c->turned_w, c->w, c->w_off, c->w_each, c->m, c->taps);
    for (int64_t first = 0; first < c->tokens; first += 2 * TILE) {
        int64_t n = c->tokens - first < 2 * TILE ? c->tokens - first : 2 * TILE;
        columns(c->turned_x, c->x + first * c->x_each, c->x_off, c->x_each, c->m,
                n + c->taps - 1);
        for (int64_t t = 0; t < n; t++) {
            const float *x = c->turned_x + t * UN_XL, *w = c->turned_w;
            xf y = xf_mul(xf_load(x), xf_load(w));
            for (int64_t k = 1; k < c->taps; k++)
                y = xf_fma(xf_load(x + k * UN_XL), xf_load(w + k * UN_XL), y);
            store_lanes(c->out + (first + t) * c->channels, y, c->m);
        }
    }
}

void UN_(ssm_conv)(const un_task *task)
{
    const un_tensor *out = un_out(task), *sx = un_in(task, 0), *w = un_in(task, 1);
    int64_t channels = out->n[3], blocks = (channels + UN_XL - 1) / UN_XL, from, to;
    conv c = {.x_each = sx->s[3], .w_each = w->s[3], .taps = w->n[3]};
    c.tokens = out->n[2], c.channels = channels;
    un_share(c.tokens ? out->n[1] * blocks : 0, task->thread, task->threads, &from, &to);
    if (from == to)
        return;
    for (int i = 0; i < UN_XL; i++)
        c.x_off[i] = i * sx->s[2], c.w_off[i] = i * w->s[2];
    c.turned_x = un_scratch_get(task, (size_t)(2 * TILE + 2 * c.taps) * UN_XL * 4);
    if (!c.turned_x)
        return;
    c.turned_w = c.turned_x + (2 * TILE + c.taps) * UN_XL;
    for (int64_t u = from; u < to; u++) {
        int64_t s = u / blocks, first = u % blocks * UN_XL;
        c.m = (int)(channels - first < UN_XL ? channels - first : UN_XL);
        c.x = sx->data + s * sx->s[1] + first * sx->s[2];
        c.w = w->data + first * w->s[2];
        c.out = (float *)out->data + s * c.tokens * channels + first;
        if (c.tokens >= 4)
            conv_long(&c);
        else if (c.taps == 4) /* as all models have it */
            conv_short(&c, 4);
        else
            conv_short(&c, c.taps);
    }
}

/* ssm_scan: in[0] state (slots, H, P, N) f32, f16 or bf16, in[1] x (S, T, H, P), in[2] dt
 * (S, T, H), in[3] A (H, 1 or N), in[4] B and in[5] C (S, T, G, N), in[6] ids (S); the result
 * is y (S, T, H, P) and after it the final states (S, H, P, N). With d = softplus(dt),
 *     h = exp(d A) h + (d x) B,      y = sum over n of h C
 * The sum is made of those over 8 states in order; what is left of N is added one by one. */
enum { TOGETHER = 8, STATES = UN_XL == 16 ? 16 : 8 }; /* how many registers hold of h */

typedef struct {
    const un_tensor *state, *x, *dt, *a, *b, *c;
    int64_t tokens, heads, size, groups, n;
    int64_t seq, group, first;   /* the block: its sequence, group and first channel */
    int64_t slot;
    int m;                       /* channels of the block */
    int64_t head[UN_XL], part[UN_XL]; /* of each lane: its head, and which channel of that */
    int64_t off[UN_XL];          /* for `columns` */
    const char *tile_b, *tile_c; /* of the first token of the tile, values side by side */
    int64_t b_token, c_token;    /* bytes from token to token */
    float *h, *decays;           /* (N, XL): states, A */
    float *dx, *decay, *y;       /* (TILE, XL): d x; exp(d A), or d where A has N; sums */
    float *rows, *room_b, *room_c; /* (XL, N), (TILE, N) */
} scan;

static float *room_of(const un_task *task, scan *s)
{
    int64_t n = s->n + 1, states = n * UN_XL, tile = TILE * UN_XL;
    float *at = un_scratch_get(task, (size_t)(3 * states + 3 * tile + 2 * TILE * n) * 4);
    s->h = at, s->decays = at + states, s->rows = at + 2 * states;
    s->dx = at + 3 * states, s->decay = s->dx + tile, s->y = s->decay + tile;
    s->room_b = s->y + tile, s->room_c = s->room_b + TILE * n;
    return at;
}

static float as_float(const char *at, int32_t type)
{
    uint16_t half;
    if (type == UN_F32)
        return *(const float *)at;
    memcpy(&half, at, 2);
    return type == UN_F16 ? un_half(half) : un_bf16(half);
}

/* The states before the first token, and A where each state has its own. */
static void begin_block(scan *s)
{
    const un_tensor *state = s->state, *a = s->a;
    const char *from = state->data + s->slot * state->s[0];
    int64_t each = state->s[3];
    int64_t head = s->first / s->size, part = s->first % s->size;
    for (int i = 0; i < UN_XL; i++) { /* lanes beyond m repeat the last channel */
        s->head[i] = head, s->part[i] = part;
        s->off[i] = head * state->s[1] + part * state->s[2];
        if (i < s->m - 1 && ++part == s->size)
            head++, part = 0;
    }
    if (state->type != UN_F32) {
        for (int i = 0; i < s->m; i++)
            for (int64_t n = 0; n < s->n; n++)
                s->rows[i * s->n + n] = as_float(from + s->off[i] + n * each, state->type);
        for (int i = 0; i < s->m; i++)
            s->off[i] = i * s->n * 4;
        from = (const char *)s->rows, each = 4;
    }
    columns(s->h, from, s->off, each, s->m, s->n);
    for (int i = 0; i < UN_XL; i++)
        s->off[i] = s->head[i] * a->s[2];
    columns(s->decays, a->data, s->off, a->s[3], UN_XL, a->n[3]);
}

/* One value for each lane, from the heads or channels of the block. */
static inline xf lanes_at(const char *at, const int64_t *off, int side_by_side)
{
    float v[UN_XL];
    if (side_by_side)
        return xf_load((const float *)(at + off[0]));
    for (int i = 0; i < UN_XL; i++)
        v[i] = *(const float *)(at + off[i]);
    return xf_load(v);
}

static int side_by_side(const int64_t *off)
{
    for (int i = 1; i < UN_XL; i++)
        if (off[i] != off[0] + 4 * i)
            return 0;
    return 1;
}

/* d x and the decays where all lanes are of one head: the functions for 32 tokens at once. */
static void tile_of_head(scan *s, int64_t first, int64_t count, const int64_t *off, int plain)
{
    float d[TILE] = {0}, decay[TILE];
    const un_tensor *x = s->x, *dt = s->dt;
    un_gather(d, dt->data + s->seq * dt->s[1] + first * dt->s[2] + s->head[0] * dt->s[3],
              dt->s[2], count);
    for (int t = 0; t < TILE; t += UN_XL) {
        xf v = xf_softplus(xf_load(d + t));
        xf_store(d + t, v);
        if (s->a->n[3] == 1)
            v = xf_exp(xf_mul(v, xf_set1(s->decays[0])));
        xf_store(decay + t, v);
    }
    const char *at = x->data + s->seq * x->s[0] + first * x->s[1];
    for (int64_t t = 0; t < count; t++) {
        xf value = lanes_at(at + t * x->s[1], off, plain);
        xf_store(s->dx + t * UN_XL, xf_mul(value, xf_set1(d[t])));
        xf_store(s->decay + t * UN_XL, xf_set1(decay[t]));
    }
}

static void tile_of_heads(scan *s, int64_t first, int64_t count, const int64_t *off, int plain)
{
    int64_t dt_off[UN_XL];
    const un_tensor *x = s->x, *dt = s->dt;
    for (int i = 0; i < UN_XL; i++)
        dt_off[i] = s->head[i] * dt->s[3];
    int dt_plain = side_by_side(dt_off);
    const char *at = x->data + s->seq * x->s[0], *step = dt->data + s->seq * dt->s[1];
    for (int64_t t = 0; t < count; t++) {
        xf d = xf_softplus(lanes_at(step + (first + t) * dt->s[2], dt_off, dt_plain));
        xf value = lanes_at(at + (first + t) * x->s[1], off, plain);
        xf_store(s->dx + t * UN_XL, xf_mul(value, d));
        if (s->a->n[3] == 1)
            d = xf_exp(xf_mul(d, xf_load(s->decays)));
        xf_store(s->decay + t * UN_XL, d);
    }
}

/* The values of B or C of a tile, side by side. */
static const char *tile_values(const scan *s, const un_tensor *b, int64_t first, int64_t count,
                               float *room, int64_t *token)
{
    const char *at = b->data + s->seq * b->s[0] + first * b->s[1] + s->group * b->s[2];
    *token = b->s[1];
    if (b->s[3] == 4 || s->n == 1)
        return at;
    for (int64_t t = 0; t < count; t++)
        un_gather(room + t * s->n, at + t * b->s[1], b->s[3], s->n);
    *token = s->n * 4;
    return (const char *)room;
}

/* The states n .. n + count of all lanes through the tokens of a tile. */
UN_INLINE void through(const scan *s, int64_t n, const int count, int64_t tokens, const int own)
{
    const int group = count < TOGETHER ? count : TOGETHER;
    xf h[STATES];
    UN_UNROLL for (int i = 0; i < count; i++)
        h[i] = xf_load(s->h + (n + i) * UN_XL);
    for (int64_t t = 0; t < tokens; t++) {
        const float *b = (const float *)(s->tile_b + t * s->b_token) + n;
        const float *c = (const float *)(s->tile_c + t * s->c_token) + n;
        xf dx = xf_load(s->dx + t * UN_XL), y = xf_load(s->y + t * UN_XL), sum = y;
        xf decay = xf_load(s->decay + t * UN_XL);
        UN_UNROLL for (int i = 0; i < count; i++) {
            xf by = own ? xf_exp(xf_mul(decay, xf_load(s->decays + (n + i) * UN_XL))) : decay;
            h[i] = xf_fma(h[i], by, xf_mul(dx, xf_set1(b[i])));
            xf value = xf_set1(c[i]);
            sum = i % group ? xf_fma(h[i], value, sum) : xf_mul(h[i], value);
            if (i % group == group - 1)
                y = xf_add(y, sum);
        }
        xf_store(s->y + t * UN_XL, y);
    }
    UN_UNROLL for (int i = 0; i < count; i++)
        xf_store(s->h + (n + i) * UN_XL, h[i]);
}

UN_INLINE void all_states(const scan *s, int64_t tokens, const int own)
{
    int64_t n = 0;
    for (; n + STATES <= s->n; n += STATES)
        through(s, n, STATES, tokens, own);
    for (; n + TOGETHER <= s->n; n += TOGETHER)
        through(s, n, TOGETHER, tokens, own);
    for (; n < s->n; n++)
        through(s, n, 1, tokens, own);
}

static void scan_block(scan *s, float *out, float *end)
{
    int64_t off[UN_XL], width = s->heads * s->size;
    begin_block(s);
    for (int i = 0; i < UN_XL; i++)
        off[i] = s->head[i] * s->x->s[2] + s->part[i] * s->x->s[3];
    int plain = side_by_side(off), one_head = s->size % UN_XL == 0;
    for (int64_t first = 0; first < s->tokens; first += TILE) {
        int64_t count = s->tokens - first < TILE ? s->tokens - first : TILE;
        (one_head ? tile_of_head : tile_of_heads)(s, first, count, off, plain);
        s->tile_b = tile_values(s, s->b, first, count, s->room_b, &s->b_token);
        s->tile_c = tile_values(s, s->c, first, count, s->room_c, &s->c_token);
        memset(s->y, 0, sizeof(float) * UN_XL * (size_t)count);
        if (s->a->n[3] == 1)
            all_states(s, count, 0);
        else
            all_states(s, count, 1);
        float *to = out + (s->seq * s->tokens + first) * width + s->first;
        for (int64_t t = 0; t < count; t++)
            store_lanes(to + t * width, xf_load(s->y + t * UN_XL), s->m);
    }
    rows_again(end + (s->seq * width + s->first) * s->n, s->h, s->m, s->n);
}

void UN_(ssm_scan)(const un_task *task)
{
    scan s = {.state = un_in(task, 0), .x = un_in(task, 1), .dt = un_in(task, 2)};
    s.a = un_in(task, 3), s.b = un_in(task, 4), s.c = un_in(task, 5);
    const int32_t *in = task->step->in;
    const un_tensor *x = &task->tensors[in[1]], *ids = &task->tensors[in[6]];
    s.tokens = x->n[1], s.heads = x->n[2], s.size = x->n[3];
    s.groups = s.b->n[2], s.n = s.b->n[3];
    int64_t width = s.groups ? s.heads / s.groups * s.size : 0;  /* channels of a group */
    int64_t blocks = (width + UN_XL - 1) / UN_XL, from, to;
    un_share(x->n[0] * s.groups * blocks, task->thread, task->threads, &from, &to);
    if (from == to || !room_of(task, &s))
        return;
    float *out = (float *)un_out(task)->data;
    float *end = out + x->n[0] * s.tokens * s.heads * s.size;
    for (int64_t u = from; u < to; u++) {
        int64_t first = u % blocks * UN_XL;
        s.seq = u / blocks / s.groups, s.group = u / blocks % s.groups;
        s.first = s.group * width + first;
        s.m = (int)(width - first < UN_XL ? width - first : UN_XL);
        s.slot = *(const int32_t *)(ids->data + s.seq * ids->s[3]);
        scan_block(&s, out, end);
    }
}
