/* mul_mat_dense: in[0] w (..., out, in) of floats with any strides, or of a type that raw.c
 * reads; in[1] x (..., n, in) float32.
 *
 * Rows are taken in blocks that stay in the second level of the cache, so that each is read
 * (and decoded) once for all tokens; in them tiles of rows and tokens fill the registers. */
#include "blocks.h"
#include "dense.h"

/* IN_REGISTER: what several products read is loaded once, not by each of them. */
#if defined(UN_AVX512)
enum { ROWS = 4, TOKENS = 4 };
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#elif defined(UN_AVX2)
enum { ROWS = 2, TOKENS = 3 };
#define IN_REGISTER(v) __asm__("" : "+x"(v))
#elif defined(UN_NEON)
enum { ROWS = 2, TOKENS = 2 };
#else
enum { ROWS = 2, TOKENS = 2 };
#endif
#ifndef IN_REGISTER
#define IN_REGISTER(v) (void)0
#endif
enum { CACHED = 256 << 10 }; /* bytes of a block of rows, as floats */

/* The sum of 16 partial sums, in the order of un_sum16. */
#if defined(UN_AVX512) || defined(UN_AVX2)
UN_INLINE float sum16(const xf *v)
{
#ifdef UN_AVX512
    __m256 high = _mm512_extractf32x8_ps(v[0], 1);
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v[0]), high);
#else
    __m256 a = _mm256_add_ps(v[0], v[1]);
#endif
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
#else
UN_INLINE float sum16(const xf *v)
{
    float part[UN_LANES];
    for (int p = 0; p < UN_PARTS; p++)
        xf_store(part + p * UN_XL, v[p]);
    return un_sum16(part);
}
#endif

/* n - k values from a[k] on, at most a vector; the others are zeros */
UN_INLINE xf rest(const float *a, int64_t k, int64_t n)
{
    return n - k >= UN_XL ? xf_load(a + k) : xf_load_n(a + k, n > k ? n - k : 0);
}

UN_INLINE void tile(const float *const *w, const float *const *x, int64_t n, float *const *out,
                    int64_t row, const int R, const int T)
{
    xf acc[ROWS * TOKENS * UN_PARTS];
    int64_t k = 0;
    for (int i = 0; i < R * T * UN_PARTS; i++)
        acc[i] = xf_zero();
    for (; k + UN_LANES <= n; k += UN_LANES)
        UN_UNROLL for (int p = 0; p < UN_PARTS; p++) {
            xf token[TOKENS];
            UN_UNROLL for (int t = 0; t < T; t++) {
                token[t] = xf_load(x[t] + k + p * UN_XL);
                IN_REGISTER(token[t]);
            }
            UN_UNROLL for (int r = 0; r < R; r++) {
                xf v = xf_load(w[r] + k + p * UN_XL);
                IN_REGISTER(v);
                UN_UNROLL for (int t = 0; t < T; t++) {
                    xf *a = &acc[(r * T + t) * UN_PARTS + p];
                    *a = xf_fma(v, token[t], *a);
                }
            }
        }
    if (k < n)
        for (int i = 0; i < R * T; i++)
            for (int p = 0; p < UN_PARTS; p++) {
                xf *a = &acc[i * UN_PARTS + p];
                *a = xf_fma(rest(w[i / T], k + p * UN_XL, n), rest(x[i % T], k + p * UN_XL, n),
                            *a);
            }
    for (int r = 0; r < R; r++)
        for (int t = 0; t < T; t++)
            out[t][row + r] = sum16(&acc[(r * T + t) * UN_PARTS]);
}

/* `rows` rows w, the first of which is `row`, times all tokens */
static void block(const un_dense *d, const float *const *w, int64_t row, int64_t rows)
{
    int64_t n = d->w->n[3], t = 0, r;
    for (; t + TOKENS <= d->tokens; t += TOKENS) {
        for (r = 0; r + ROWS <= rows; r += ROWS)
            tile(w + r, d->x + t, n, d->out + t, row + r, ROWS, TOKENS);
        for (; r < rows; r++)
            tile(w + r, d->x + t, n, d->out + t, row + r, 1, TOKENS);
    }
    for (; t < d->tokens; t++) {
        for (r = 0; r + ROWS <= rows; r += ROWS)
            tile(w + r, d->x + t, n, d->out + t, row + r, ROWS, 1);
        for (; r < rows; r++)
            tile(w + r, d->x + t, n, d->out + t, row + r, 1, 1);
    }
}

static int64_t rows_of_block(int64_t n)
{
    int64_t rows = CACHED / (4 * (n > 0 ? n : 1)) / ROWS * ROWS;
    return rows < ROWS ? ROWS : rows > 256 ? 256 : rows;
}

size_t UN_(dense_room)(const un_tensor *w)
{
    return un_plain(w) ? 0 : (size_t)(rows_of_block(w->n[3]) * w->n[3]) * 4;
}

void UN_(dense_rows)(const un_dense *d)
{
    const float *w[256];
    int64_t n = d->w->n[3], most = rows_of_block(n);
    for (int64_t row = d->from; row < d->to; row += most) {
        int64_t rows = d->to - row < most ? d->to - row : most;
        for (int64_t r = 0; r < rows; r++)
            w[r] = un_floats_at(d->w, d->matrix + (row + r) * d->w->s[2], d->room + r * n);
        block(d, w, row, rows);
    }
}

/* The tokens that meet one matrix of w: those of `ahead` times `behind` neighbours on the
 * leading axes of x, `each` of them from one place there. */
typedef struct {
    int64_t ahead, behind, each, tokens;
} neighbours;

static neighbours neighbours_of(const un_tensor *w, const un_tensor *x)
{
    int64_t ahead = w->n[0] ? x->n[0] / w->n[0] : 0, behind = w->n[1] ? x->n[1] / w->n[1] : 0;
    return (neighbours){ahead, behind, x->n[2], ahead * behind * x->n[2]};
}

/* The row of x or the result for token i of matrix (m0, m1). */
static char *row_at(const un_tensor *t, const neighbours *b, int64_t m0, int64_t m1, int64_t i)
{
    int64_t first = m0 * b->ahead + i / (b->behind * b->each);
    int64_t second = m1 * b->behind + i / b->each % b->behind;
    return t->data + first * t->s[0] + second * t->s[1] + i % b->each * t->s[2];
}

/* How many parts the tokens are cut into, so that each thread has some of few rows. */
static int64_t parts_of(int64_t units, int64_t tokens, int threads)
{
    int64_t parts = 1;
    while (units * parts < 2 * threads && tokens / (2 * parts) >= 2 * TOKENS)
        parts *= 2;
    return parts;
}

typedef struct {
    const un_tensor *w, *x, *out;
    neighbours near;
    const float **from;  /* a token's row, of x and of the result */
    float **to, *copies; /* of rows of x that cannot be read as they lie */
    float *room;
} product;

/* Rows [first, last) of matrix m with the tokens [start, stop). */
static void rectangle(const product *p, int64_t m, int64_t first, int64_t last, int64_t start,
                      int64_t stop)
{
    const un_tensor *w = p->w;
    int64_t m0 = m / w->n[1], m1 = m % w->n[1];
    const char *matrix = w->data + m0 * w->s[0] + m1 * w->s[1];
    for (int64_t t = start; t < stop; t++) {
        const char *row = row_at(p->x, &p->near, m0, m1, t);
        p->from[t - start] = un_floats_at(p->x, row, p->copies + (t - start) * w->n[3]);
        p->to[t - start] = (float *)row_at(p->out, &p->near, m0, m1, t);
    }
    un_dense d = {w, matrix, first, last, stop - start, p->from, p->to, p->room};
    UN_(dense_rows)(&d);
}

static int prepare(const un_task *task, product *p)
{
    size_t lists = (size_t)p->near.tokens * sizeof(char *), room = UN_(dense_room)(p->w);
    size_t copies = un_plain(p->x) ? 0 : (size_t)(p->near.tokens * p->w->n[3]) * 4;
    char *scratch = un_scratch_get(task, 2 * lists + room + copies + 1);
    p->from = (const float **)scratch;
    p->to = (float **)(scratch + lists);
    p->room = (float *)(scratch + 2 * lists);
    p->copies = (float *)(scratch + 2 * lists + room);
    return scratch != NULL;
}

void UN_(mul_mat_dense)(const un_task *task)
{
    product p = {.w = un_in(task, 0), .x = un_in(task, 1), .out = un_out(task)};
    p.near = neighbours_of(p.w, p.x);
    int64_t rows = p.w->n[2], tokens = p.near.tokens, units = (rows + ROWS - 1) / ROWS;
    int64_t all = p.w->n[0] * p.w->n[1] * units, parts = parts_of(all, tokens, task->threads);
    int64_t from, to;
    if (!rows || !tokens || !prepare(task, &p))
        return;
    un_share(all * parts, task->thread, task->threads, &from, &to);
    for (int64_t end; from < to; from = end) { /* one matrix and one part of the tokens */
        int64_t first = from % units, start, stop;
        end = from - first + units < to ? from - first + units : to;
        int64_t last = (first + end - from) * ROWS;
        un_share(tokens, from / all, parts, &start, &stop);
        rectangle(&p, from % all / units, first * ROWS, last < rows ? last : rows, start, stop);
    }
}
