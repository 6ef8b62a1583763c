/* What only moves values, or rounds them to another type.
 *
 * cast: in[0] x (...) to the type of the result; cont: x side by side; concat: in[0] a, in[1] b
 * (...), which differ in axis i[0] (of four) and follow each other there. Types: f32, f16, bf16
 * and i32. A weight that memory holds as float32, whatever the graph says, is rounded. */
#include "strided.h"

enum { CHUNK = 256 };

static inline int64_t width_of(int32_t type)
{
    return type == UN_F32 || type == UN_I32 ? 4 : 2;
}

/* As NumPy has it on x86: towards zero; what does not fit, and NaN, is the least integer. */
static inline int32_t to_int(float x)
{
    return x >= -2147483648.0f && x < 2147483648.0f ? (int32_t)x : INT32_MIN;
}

static const float *read_floats(float *room, const char *from, int64_t each, int32_t type,
                                int64_t n)
{
    uint16_t half[CHUNK] = {0};
    if (type == UN_F32 && each == 4)
        return (const float *)from;
    if (type == UN_F32) {
        un_gather(room, from, each, n);
    } else if (type == UN_I32) {
        for (int64_t j = 0; j < n; j++)
            room[j] = (float)*(const int32_t *)(from + j * each);
    } else {
        for (int64_t j = 0; j < n; j++)
            half[j] = *(const uint16_t *)(from + j * each);
        for (int64_t j = 0; j < n; j += UN_XL) {
            const uint16_t *h = half + j;
            xf_store(room + j, type == UN_F16 ? xf_load_half(h) : xf_load_bf16(h));
        }
    }
    return room;
}

static void write_halves(char *to, int64_t each, int32_t type, const float *x, int64_t n)
{
    uint16_t room[CHUNK], *half = each == 2 ? (uint16_t *)to : room;
    int64_t j = 0;
    for (; type == UN_F16 && j + UN_XL <= n; j += UN_XL)
        xf_store_half(half + j, xf_load(x + j));
    for (; type == UN_F16 && j < n; j++)
        half[j] = un_to_half(x[j]);
    for (; j < n; j++)
        half[j] = un_to_bf16(x[j]);
    for (j = 0; each != 2 && j < n; j++)
        *(uint16_t *)(to + j * each) = half[j];
}

static void write_floats(char *to, int64_t each, int32_t type, const float *x, int64_t n)
{
    if (type == UN_F32)
        for (int64_t j = 0; j < n; j++)
            *(float *)(to + j * each) = x[j];
    else if (type == UN_I32)
        for (int64_t j = 0; j < n; j++)
            *(int32_t *)(to + j * each) = to_int(x[j]);
    else
        write_halves(to, each, type, x, n);
}

typedef struct {
    char *to;
    const char *from;
    int64_t rows, n;
    int64_t to_row, to_each, from_row, from_each; /* strides */
} block;

static void convert(const block *b, int32_t to_type, int32_t from_type)
{
    float room[CHUNK];
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t j = 0; j < b->n; j += CHUNK) {
            int64_t m = b->n - j < CHUNK ? b->n - j : CHUNK;
            const char *from = b->from + r * b->from_row + j * b->from_each;
            char *to = b->to + r * b->to_row + j * b->to_each;
            const float *x = read_floats(room, from, b->from_each, from_type, m);
            write_floats(to, b->to_each, to_type, x, m);
        }
}

/* The same bits elsewhere. Columns that lie side by side are read a few lines of the cache at a
 * time, each of which then serves several rows. */
#define COPY(NAME, TYPE) \
    static void NAME(const block *b) \
    { \
        int64_t strip = b->from_row < b->from_each ? 16 : b->n; \
        for (int64_t first = 0; first < b->n; first += strip) { \
            int64_t last = first + strip < b->n ? first + strip : b->n; \
            for (int64_t r = 0; r < b->rows; r++) { \
                char *to = b->to + r * b->to_row; \
                const char *from = b->from + r * b->from_row; \
                for (int64_t j = first; j < last; j++) \
                    *(TYPE *)(to + j * b->to_each) = *(const TYPE *)(from + j * b->from_each); \
            } \
        } \
    }
COPY(copy_words, uint32_t)
COPY(copy_halves, uint16_t)

/* Columns of words that lie side by side become rows. */
static void turn(const block *b)
{
    int64_t r = 0, j;
    for (; r + UN_XL <= b->rows; r += UN_XL) {
        for (j = 0; j + UN_XL <= b->n; j += UN_XL) {
            xf v[UN_XL];
            for (int i = 0; i < UN_XL; i++)
                v[i] = xf_load((const float *)(b->from + r * 4 + (j + i) * b->from_each));
            xf_transpose(v);
            for (int i = 0; i < UN_XL; i++)
                xf_store((float *)(b->to + (r + i) * b->to_row + j * 4), v[i]);
        }
        block rest = *b;
        rest.to += r * b->to_row + j * 4, rest.from += r * 4 + j * b->from_each;
        rest.rows = UN_XL, rest.n -= j;
        copy_words(&rest);
    }
    block rest = *b;
    rest.to += r * b->to_row, rest.from += r * 4, rest.rows -= r;
    copy_words(&rest);
}

static void move_block(const block *b, int32_t to_type, int32_t from_type)
{
    int64_t width = width_of(to_type);
    if (to_type != from_type)
        convert(b, to_type, from_type);
    else if (b->to_each == width && b->from_each == width && b->n >= UN_LANES)
        for (int64_t r = 0; r < b->rows; r++)
            memcpy(b->to + r * b->to_row, b->from + r * b->from_row, (size_t)(b->n * width));
    else if (width == 4 && b->to_each == 4 && b->from_row == 4)
        turn(b);
    else if (width == 4)
        copy_words(b);
    else
        copy_halves(b);
}

static void move(const un_task *task, const un_tensor *out, const un_tensor *x)
{
    un_walk w = un_walk_of(task, out, x, NULL);
    un_piece p;
    while (un_walk_next(&w, &p)) {
        block b = {p.at[0], p.at[1], p.rows, p.n, w.s[0][2], w.s[0][3], w.s[1][2], w.s[1][3]};
        move_block(&b, out->type, x->type);
    }
}

void UN_(cast)(const un_task *task) { move(task, un_out(task), un_in(task, 0)); }
void UN_(cont)(const un_task *task) { move(task, un_out(task), un_in(task, 0)); }

void UN_(concat)(const un_task *task)
{
    const un_tensor *out = un_out(task);
    int64_t axis = task->step->i[0], start = 0;
    for (int i = 0; i < 2; i++) {
        const un_tensor *x = &task->tensors[task->step->in[i]];
        un_tensor part = *out;
        memcpy(part.n, x->n, sizeof part.n);
        part.data += start * out->s[axis];
        start += x->n[axis];
        move(task, &part, x);
    }
}
